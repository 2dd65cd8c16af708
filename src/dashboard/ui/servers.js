// The servers over the store, and the background tasks of the one that answers.

import { get, path } from './api.js';
import { isFailing } from './attention.js';
import { attr, each, h, show, swap, text, toggle } from './dom.js';
import * as format from './format.js';
import { every } from './router.js';
import { message, setWhen } from './widgets.js';

/** @typedef {import('./api.js').Api<'Server'>} Server */
/** @typedef {import('./api.js').Api<'ServersResponse'>} ServersResponse */
/** @typedef {import('./api.js').Api<'ServerStats'>} ServerStats */
/** @typedef {import('./api.js').Api<'TaskStatus'>} TaskStatus */

const READ_MS = 10_000;

/** @param {AbortSignal} signal */
export function servers(signal) {
  const list = h('ul', { class: 'servers' });
  const grid = h('ul', { class: 'tasks' });
  const note = h('p', { class: 'problem', hidden: true });
  const facts = h('span', { class: 'muted' });
  const node = h(
    'section',
    { class: 'card', 'aria-label': 'Servers and background tasks' },
    h('div', { class: 'head' }, h('h2', null, 'Servers and background tasks'), facts),
    list,
    note,
    h('h3', null, 'Background tasks of this server'),
    grid,
  );
  const setServers = each(list, (/** @type {Server} */ server) => server.id, makeServer);
  const setTasks = each(grid, (/** @type {TaskStatus} */ task) => task.name, makeTask);
  /** What went wrong with the servers, and with the tasks: each is said until it is read again. @type {Record<'servers' | 'tasks', any>} */
  const failed = { servers: null, tasks: null };
  const fail = (/** @type {'servers' | 'tasks'} */ of, /** @type {any} */ error) => {
    failed[of] = error;
    const first = failed.servers ?? failed.tasks;
    show(note, first !== null);
    attr(note, 'class', first?.status === 403 ? 'muted' : 'problem');
    text(note, first === null ? '' : first.status === 403 ? 'These figures need a key for all queues.' : message(first));
  };
  let isRefused = false;
  every(signal, READ_MS, async () => {
    if (isRefused) return;
    try {
      /** @type {ServersResponse} */
      const found = await get(path('servers'), signal);
      fail('servers', null);
      setServers(found.servers.toSorted((a, b) => Number(b.this) - Number(a.this)));
    } catch (/** @type {any} */ error) {
      if (signal.aborted) return;
      isRefused = error.status === 403;
      fail('servers', error);
    }
  });
  return {
    node,
    fail: (/** @type {any} */ error) => fail('tasks', error),
    /** @param {ServerStats} stats */
    tasks: (stats) => {
      fail('tasks', null);
      setTasks(stats.tasks);
      text(
        facts,
        `${stats.store} · ${format.plural(stats.workers, 'worker')} with heartbeats · up for ${format.duration(stats.uptime_ms - (stats.uptime_ms % 1000))}`,
      );
    },
  };
}

function makeServer() {
  const name = h('span', { class: 'mono cut' });
  const mine = h('span', { class: 'badge good', hidden: true }, 'answers you');
  const version = h('span', { class: 'muted' });
  const since = h('time', { class: 'when' });
  const node = h('li', null, h('i', { class: 'dot good' }), name, mine, version, h('span', { class: 'muted' }, 'started ', since));
  return {
    node,
    set: (/** @type {Server} */ server) => {
      text(name, server.id.slice(0, 8));
      name.setAttribute('title', server.id);
      show(mine, server.this);
      text(version, server.version === undefined ? '' : `version ${server.version}`);
      show(/** @type {any} */ (since.parentElement), server.since !== undefined);
      setWhen(since, server.since);
    },
  };
}

function makeTask() {
  const dot = h('i', { class: 'dot' });
  const name = h('b');
  const ran = h('span', { class: 'muted num' });
  const error = h('p', { class: 'problem', hidden: true });
  return {
    node: h('li', null, dot, name, ran, error),
    set: (/** @type {TaskStatus} */ task) => {
      const failing = isFailing(task);
      toggle(dot, 'good', !failing && task.last_run_ms_ago !== undefined);
      toggle(dot, 'bad', failing);
      text(name, task.name.replaceAll('_', ' '));
      attr(name, 'title', name.textContent);
      text(
        ran,
        task.last_run_ms_ago === undefined
          ? 'not yet'
          : `${format.duration(coarse(task.last_run_ms_ago))} ago · ${format.duration(task.last_run_took_ms)}`,
      );
      show(error, task.last_error !== undefined);
      if (task.last_error === undefined) return swap(error);
      text(
        error,
        `${format.duration(coarse(task.last_error_ms_ago))} ago, ${format.plural(task.failures, 'failure')} in all: ${task.last_error}`,
      );
    },
  };
}

/** Tenths of a second are not read. @param {number | undefined} ms */
function coarse(ms = 0) {
  return ms < 1000 ? ms : ms - (ms % 1000);
}
