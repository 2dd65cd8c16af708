// Where the page begins: who is asking, then the shell, the stream and the screen of the link.

import { get, onUnauthorized, path } from './api.js';
import { h } from './dom.js';
import { keyboard } from './keyboard.js';
import { lazy } from './lazy.js';
import * as live from './live.js';
import { parse, route } from './router.js';
import { may, setUser, user } from './session.js';
import { brand, logoutButton, shell } from './shell.js';
import { empty, failure, tick } from './widgets.js';

// A module of two screens is loaded once for both.
const loadLimits = lazy(async () => (await import('./screens/limits.js')).limits);
const loadSchedules = lazy(() => import('./screens/schedules.js'));
const loadBatches = lazy(() => import('./screens/batches.js'));
const loadWorkers = lazy(() => import('./screens/workers.js'));
// Without the question of `lazy`: that the login is needed is what the server has answered to it.
const loadLogin = () => import('./screens/login.js');

/**
 * The screens by the first part of the link: of the section, and of one thing in it. Each is loaded when it is first asked for.
 * @type {Record<string, (() => Promise<(context: import('./router.js').Context) => import('./router.js').Screen>)[]>}
 */
const SCREENS = {
  '': [lazy(async () => (await import('./screens/overview.js')).overview)],
  queues: [lazy(async () => (await import('./screens/queues.js')).queues), lazy(async () => (await import('./screens/queue.js')).queue)],
  jobs: [lazy(async () => (await import('./screens/jobs.js')).jobs), lazy(async () => (await import('./screens/job.js')).job)],
  dead: [lazy(async () => (await import('./screens/dead.js')).dead)],
  schedules: [async () => (await loadSchedules()).schedules, async () => (await loadSchedules()).schedule],
  limits: [loadLimits, loadLimits],
  groups: [lazy(async () => (await import('./screens/groups.js')).groups)],
  batches: [async () => (await loadBatches()).batches, async () => (await loadBatches()).batch],
  workers: [async () => (await loadWorkers()).workers, async () => (await loadWorkers()).worker],
  pipelines: [lazy(async () => (await import('./screens/pipelines.js')).pipelines)],
  system: [lazy(async () => (await import('./screens/system.js')).system)],
  keys: [lazy(async () => (await import('./screens/keys.js')).keys)],
};

const missing = () => ({
  title: 'Not found',
  node: h(
    'div',
    { class: 'stack' },
    h('h1', null, 'Not found'),
    empty('There is no such page.', h('a', { href: '#/' }, 'Go to the overview')),
  ),
});

/** @param {string[]} parts @returns {Promise<(context: import('./router.js').Context) => import('./router.js').Screen>} */
async function choose(parts) {
  const first = parts[0] ?? '';
  const found = Object.hasOwn(SCREENS, first) ? SCREENS[first][parts.length > 1 ? 1 : 0] : undefined;
  return found === undefined ? missing : found();
}

/** Whether the page is shown, and not only the login. */
let isShown = false;

async function begin() {
  choose(parse(location.hash).parts).catch(() => {}); // loads meanwhile
  try {
    setUser(await get(path('session')));
  } catch (/** @type {any} */ error) {
    if (error.status !== 401) document.body.replaceChildren(h('main', null, failure(error, begin)));
    return;
  }
  if (!may('read')) {
    const header = h('header', { class: 'top' }, brand(), h('span', { class: 'grow' }), user.keys_required && logoutButton(user));
    const advice = `The dashboard needs a key with the scope “read”; ${user.name ? `the key “${user.name}”` : 'this one'} has ${user.scopes.join(', ') || 'none'}. Log out, and log in with another one.`;
    document.body.replaceChildren(
      header,
      h('main', null, h('section', { class: 'card' }, empty('This key does not allow reading.', advice))),
    );
    return;
  }
  isShown = true;
  const shown = shell(user.keys_required ? logoutButton(user) : null);
  keyboard();
  tick();
  live.start();
  route(choose, shown);
}

let asked = false;

/** Waits until what a dialog shows this once (a new key) was seen. */
async function seen() {
  const kept = document.querySelector('dialog[data-keep]');
  if (kept !== null) await new Promise((then) => kept.addEventListener('close', then, { once: true }));
}

/**
 * Shows the login, once. What is on the page stays, with all that was typed, and goes on after it; a caller who may do something else gets
 * another page.
 */
async function ask() {
  if (asked) return;
  asked = true;
  if (isShown) live.pause();
  const loaded = await loadLogin().catch(() => null);
  await seen();
  if (loaded === null) return location.reload(); // the server may be of another version by now
  if (!isShown) return document.body.replaceChildren(loaded.login(() => location.reload()));
  const next = await loaded.loginAgain();
  await seen();
  const of = (/** @type {any} */ one) => JSON.stringify([one.name, one.scopes, one.queues]);
  if (of(next) !== of(user)) {
    location.reload();
    return;
  }
  asked = false;
  live.resume();
}

onUnauthorized(ask);
begin();
