// What is around every screen: the navigation, the search, whether the figures are live.

import { del, get, path, query } from './api.js';
import { openPalette } from './commands.js';
import { attr, h, show, text, toggle } from './dom.js';
import * as format from './format.js';
import { lazy } from './lazy.js';
import * as live from './live.js';
import { every, link } from './router.js';
import { ownQueues, user as caller } from './session.js';
import { button } from './widgets.js';

/** The sections, in the order of the navigation; `g` and the letter lead there. @type {{part: string, label: string, key: string}[]} */
export const SECTIONS = [
  { part: '', label: 'Overview', key: 'o' },
  { part: 'queues', label: 'Queues', key: 'q' },
  { part: 'jobs', label: 'Jobs', key: 'j' },
  { part: 'dead', label: 'Dead', key: 'd' },
  { part: 'schedules', label: 'Schedules', key: 's' },
  { part: 'limits', label: 'Limits', key: 'l' },
  { part: 'groups', label: 'Groups', key: 'u' },
  { part: 'batches', label: 'Batches', key: 'b' },
  { part: 'workers', label: 'Workers', key: 'w' },
  { part: 'pipelines', label: 'Pipelines', key: 'p' },
  { part: 'system', label: 'System', key: 'y' },
];

/** @param {Element | null} user what is said of who uses the page */
export function shell(user) {
  const dead = h('span', { class: 'pill', hidden: true });
  const links = SECTIONS.map(({ part, label }) => h('a', { href: link(part === '' ? [] : [part]) }, label, part === 'dead' && dead));
  const clock = h('a', { class: 'badge warn', href: '#/system', hidden: true });
  const servers = h('span', { class: 'roomy' });
  const status = h('span', { class: 'status' }, h('i', { class: 'dot' }), h('span', { role: 'status' }), servers);
  const search = h(
    'button',
    {
      type: 'button',
      class: 'search',
      on: { click: openPalette },
      'aria-keyshortcuts': '/',
      'aria-label': 'Search: queue, job id or command',
    },
    h('span', { class: 'long' }, 'Queue, job id or command'),
    h('span', { class: 'short' }, 'Search'),
    h('kbd', null, '/'),
  );
  const lost = h('div', { class: 'lost', role: 'alert', hidden: true });
  const main = h('main', { id: 'main', tabindex: '-1' });
  const scope = h('span', { class: 'badge warn scope', hidden: true });
  if (ownQueues() !== '')
    loadNotices().then(
      ({ tellScope }) => tellScope(scope, ownQueues()),
      () => {},
    );
  const header = h(
    'header',
    { class: 'top' },
    h(
      'a',
      {
        class: 'skip',
        href: '#main',
        on: {
          click: (/** @type {Event} */ event) => {
            event.preventDefault();
            main.focus();
          },
        },
      },
      'Skip to content',
    ),
    brand(),
    h('nav', { 'aria-label': 'Sections' }, ...links),
    search,
    clock,
    status,
    scope,
    caller.read_only && h('span', { class: 'badge', title: 'This server changes nothing (http.read_only).' }, 'read-only'),
    themeButton(),
    user,
  );
  document.body.replaceChildren(header, lost, main);

  const judge = () => {
    const { connection, storeAway } = live.state;
    const word = { live: 'live', connecting: 'connecting', lost: 'not connected' }[connection];
    text(status.children[1], storeAway ? 'no store' : word);
    attr(status, 'class', `status ${storeAway ? 'lost' : connection}`);
    const what = trouble();
    show(lost, what !== '');
    text(lost, what);
    toggle(document.body, 'stale', what !== '');
    judgeClock(clock);
  };
  const forever = new AbortController().signal;
  // The queues that settings name as dead-letter queues.
  /** @type {Set<string>} */ let letterQueues = new Set();
  let inPlace = 0;
  const count = () => {
    inPlace = live.allCounts()?.dead ?? inPlace;
    const letters = [...letterQueues].reduce((n, name) => n + waiting(live.queues.get(name)?.counts), 0);
    show(dead, inPlace + letters > 0);
    text(dead, format.count(inPlace + letters));
    attr(
      dead,
      'title',
      letters > 0 ? `${format.plural(inPlace, 'dead job')}, and ${format.plural(letters, 'job')} in dead-letter queues` : null,
    );
  };
  const readCounts = every(forever, COUNTS_MS, async () => {
    if (live.state.leftOut > 0)
      await get('/stats')
        .then(({ counts }) => live.takeCounts(counts))
        .catch(() => {});
  });
  live.follow(forever, (_, __, isNew) => {
    judge();
    count();
    if (isNew) readCounts();
  });
  every(forever, LETTERS_MS, async () => {
    letterQueues = (await readLetterQueues(forever)) ?? letterQueues;
    count();
  });
  every(forever, SERVERS_MS, async () => {
    const n = await countServers(forever);
    text(servers, n === undefined ? '' : `· ${format.plural(n, 'server')}`);
    attr(status, 'title', n === undefined ? null : format.plural(n, 'server'));
  });
  offerReload(forever, main);
  setInterval(() => !document.hidden && judge(), 1000);

  /** @param {{title: string, node: Element}} screen @param {string[]} parts */
  return (screen, parts) => {
    const first = main.firstChild === null;
    document.title = screen.title === '' ? 'Tailback' : `${screen.title} · Tailback`;
    attr(main, 'aria-label', screen.title || 'Overview');
    main.replaceChildren(screen.node);
    // Keyboard and screen reader go on where the new page begins.
    if (!first) main.focus({ preventScroll: true });
    const section = parts[0] === 'keys' ? 'system' : (parts[0] ?? '');
    SECTIONS.forEach(({ part }, n) => {
      attr(links[n], 'aria-current', section === part ? 'page' : null);
      if (section === part) reveal(links[n]);
    });
  };
}

/** Brings the link of the section into view where the navigation is wider than the page. @param {HTMLElement} to */
function reveal(to) {
  const nav = /** @type {HTMLElement} */ (to.parentElement);
  const left = to.offsetLeft - nav.offsetLeft;
  if (left < nav.scrollLeft || left + to.offsetWidth > nav.scrollLeft + nav.clientWidth) nav.scrollLeft = left - 40;
}

/** How often the dead-letter queues are looked for, how many pages of queues are read for that, and how often the servers are counted. */
const LETTERS_MS = 120_000;
const PAGES = 5;
const SERVERS_MS = 30_000;
/** How often all jobs are counted while the stream leaves queues out. */
const COUNTS_MS = 5000;

/** How many jobs wait, of which each died elsewhere where the queue is for those. @param {Record<string, number> | undefined} counts */
function waiting(counts) {
  return (counts?.ready ?? 0) + (counts?.scheduled ?? 0) + (counts?.blocked ?? 0);
}

/** @param {AbortSignal} signal @returns {Promise<Set<string> | undefined>} undefined where they cannot be read */
async function readLetterQueues(signal) {
  /** @type {Set<string>} */ const found = new Set();
  let cursor;
  try {
    for (let page = 0; page < PAGES; page += 1) {
      const { queues, cursor: next } = await get(query(path('queues'), { limit: 1000, cursor }), signal);
      for (const { dead_letter: to } of queues) if (to !== undefined) found.add(to);
      cursor = next;
      if (next === undefined) break;
    }
    return found;
  } catch {
    return undefined; // that the server is away is said; the next time will do
  }
}

/** How many servers there are, where this key may know it. @param {AbortSignal} signal @returns {Promise<number | undefined>} */
async function countServers(signal) {
  if (ownQueues() !== '') return undefined;
  return get(path('servers'), signal).then(
    ({ servers }) => servers.length,
    () => undefined,
  );
}

/** What is wrong with the figures on the page, or nothing. */
function trouble() {
  const { connection, heardAt, lostAt, storeAway } = live.state;
  const of =
    heardAt === 0
      ? 'No figures were received yet.'
      : `The figures are as of ${format.time(heardAt)}, ${format.duration(Date.now() - heardAt)} ago.`;
  if (connection === 'lost' && Date.now() - lostAt > 1500)
    return `The server cannot be reached since ${format.time(lostAt)}. ${of} Trying again.`;
  if (storeAway) return `The server has lost the connection to its store. ${of} Jobs are neither taken nor lost; it tries again.`;
  return '';
}

/** Loads what says that the server is of another version than this page, or that its clock is another one: both are rare. */
const loadNotices = lazy(() => import('./notices.js'));

/** Says where the server is of another version than this page. @param {AbortSignal} signal @param {HTMLElement} main */
function offerReload(signal, main) {
  let isSaid = false;
  live.follow(signal, async (_, __, isNew) => {
    if (!isNew || isSaid) return;
    const { version } = await get(path('session')).catch(() => ({}));
    if (isSaid || version === undefined || version === caller.version) return;
    isSaid = true;
    // A module of this version may be gone from the server.
    const said = await loadNotices().then(
      ({ reloadLine }) => reloadLine(version),
      () => h('p', { class: 'remark warn', role: 'status' }, `The server is version ${version} now: reload this page.`),
    );
    main.before(said);
  });
}

/** From how much on a difference between the clocks is told, in milliseconds: what a snapshot says may be two seconds old. */
const CLOCKS_MS = 5000;

/** Says where the clocks differ: ages on the page are by the server's. @param {Element} node */
function judgeClock(node) {
  const differs = Math.abs(format.clockAhead()) > CLOCKS_MS;
  if (!differs) return show(node, false);
  loadNotices().then(
    ({ tellClock }) => tellClock(node),
    () => {},
  );
}

export function brand() {
  const mark = h('img', { src: new URL('./icon.svg', import.meta.url).href, alt: '', width: '18', height: '18' });
  return h('a', { class: 'brand', href: '#/', 'aria-label': 'Tailback, overview' }, mark, h('span', null, 'Tailback'));
}

/** The themes, and what they are called. @type {Record<string, string>} */
export const THEMES = { '': 'Theme: as the system', light: 'Theme: light', dark: 'Theme: dark' };
let theme = '';
/** Shows the theme that is chosen, once there is a button that says it. */
let showTheme = () => {};

/** Chooses a theme, kept in this browser. @param {string} next of `THEMES` */
export function setTheme(next) {
  theme = next;
  try {
    localStorage.setItem('tailback.theme', theme);
  } catch {
    /* no storage */
  }
  showTheme();
}

/** By the system, light, dark. */
function themeButton() {
  const themes = Object.keys(THEMES);
  try {
    theme = localStorage.getItem('tailback.theme') ?? '';
  } catch {
    /* no storage */
  }
  const node = h(
    'button',
    {
      type: 'button',
      class: 'icon',
      on: {
        click: () => setTheme(themes[(themes.indexOf(theme) + 1) % themes.length]),
      },
    },
    '◐',
  );
  showTheme = () => {
    attr(document.documentElement, 'data-theme', theme || null);
    attr(node, 'aria-label', THEMES[theme]);
    attr(node, 'title', THEMES[theme]);
  };
  showTheme();
  return node;
}

/** @param {any} user @returns {Element} */
export function logoutButton(user) {
  return button(
    'Log out',
    async () => {
      await del(path('session'));
      location.reload();
    },
    { class: 'quiet', title: `Logged in with ${user.name === undefined ? 'the admin key' : `the key “${user.name}”`}` },
  );
}
