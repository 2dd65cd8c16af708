// Limits: semaphores with who holds them and who waits, and queues that are at what their settings allow.
import { curl, get, path, query } from '../api.js';
import { registerCommands } from '../commands.js';
import { h, swap, text, toggle } from '../dom.js';
import * as format from '../format.js';
import * as live from '../live.js';
import { bar, grid, loaded, orNothing, page, pager, shellLine } from '../parts.js';
import { every, go, link } from '../router.js';
import { asSeen, may } from '../session.js';
import { edit, semaphore } from './semaphore.js';
import { badge, button, card, empty, queueLink } from '../widgets.js';

/** @typedef {import('../api.js').Api<'Queue'>} Queue */
/** @typedef {import('../api.js').Api<'QueuesPage'>} QueuesPage */
/** @typedef {import('../api.js').Api<'Semaphore'>} Semaphore */
/** @typedef {import('../api.js').Api<'SemaphoresPage'>} SemaphoresPage */

/** How many queues with settings are read at most: pages of 1000. */
const PAGES = 12;
/** How many queues at limits are shown. */
const SHOWN = 200;

const at = (/** @type {string[]} */ ...parts) => path('semaphores', ...parts);

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function limits(context) {
  return context.parts.length > 1 ? semaphore(context) : all(context);
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
function all(context) {
  const { signal } = context;
  let { params } = context;
  const table = grid({
    caption: 'Semaphores',
    columns: [
      'Semaphore',
      { label: 'Held', class: 'wide' },
      { label: 'Waiting', class: 'num' },
      { label: 'Actions', hidden: true, class: 'num' },
    ],
    key: (/** @type {Semaphore} */ one) => one.name,
    href: (one) => link(['limits', one.name]),
    make: (first) => {
      let now = first;
      const used = bar(`Held of ${first.name}`);
      const held = h('span', { class: 'left' });
      const waiting = h('span');
      const change = button(
        'Capacity',
        async () => {
          if (await edit(first.name, now.capacity, now.held)) list.again();
        },
        { 'aria-label': `Change the capacity of ${first.name}` },
      );
      return {
        cells: [
          h('a', { class: 'name', href: link(['limits', first.name]) }, first.name),
          h('span', { class: 'leased' }, used.node, held),
          waiting,
          may('operate') && change,
        ],
        set: (one) => {
          now = one;
          used.set(one.held / one.capacity);
          text(held, `${format.count(one.held)} of ${format.count(one.capacity)}`);
          text(waiting, format.count(one.waiting));
          toggle(waiting, 'warn', one.waiting > 0);
        },
      };
    },
  });
  const none = empty(
    asSeen('There are no semaphores.'),
    'A semaphore limits how many jobs, of any queues, are worked on at once: those that use one database, say. ',
    may('operate') && shellLine(curl('PUT', '/v1/semaphores/database', '{"capacity": 5}')),
  );
  const body = orNothing(table, none);
  const pages = pager(context);
  const list = loaded(
    signal,
    2000,
    /** @returns {Promise<SemaphoresPage>} */ () => get(query(at(), { limit: 100, cursor: params.get('cursor') }), signal),
    (answer) => {
      body.set(answer.semaphores);
      pages.set(answer.cursor);
    },
    body.node,
    pages.node,
  );
  const create = async () => {
    const made = await edit();
    if (made !== undefined) go(link(['limits', made.name]));
  };
  if (may('operate')) registerCommands(signal, [{ label: 'New semaphore', run: create }]);
  return {
    title: 'Limits',
    node: page(
      'Limits',
      [may('operate') && button('New semaphore', create, { class: 'primary' })],
      card('Semaphores', list.node),
      queuesAtLimits(signal),
    ),
    update: (next) => {
      params = next.params;
      list.again();
    },
  };
}

/**
 * What a queue uses of a limit: 1 is all of it. @typedef {{queue: string, what: string, used: number, share: number, limit: string, why: string}} Use
 * @param {Queue} settings @returns {Use[]}
 */
function uses({ queue, max_reserved: reserved, rate, max_jobs: jobs }) {
  const now = live.queues.get(queue);
  const counts = now?.counts ?? { ready: 0, scheduled: 0, reserved: 0, blocked: 0, dead: 0, done: 0 };
  const found = [];
  if (reserved !== undefined) {
    found.push({
      queue,
      what: 'max_reserved',
      used: counts.reserved,
      share: counts.reserved / reserved,
      limit: `${format.count(counts.reserved)} of ${format.count(reserved)} reserved`,
      why: `${format.plural(counts.ready, 'ready job waits', 'ready jobs wait')}`,
    });
  }
  if (rate !== undefined) {
    const most = (1000 * rate.limit) / rate.per_ms;
    const is = now?.rates_per_s?.reserved ?? 0;
    found.push({
      queue,
      what: 'rate',
      used: is,
      share: is / most,
      limit: `${format.short((is * rate.per_ms) / 1000)} of ${format.count(rate.limit)} per ${format.per(rate.per_ms)}`,
      why: `${format.plural(counts.ready, 'ready job waits', 'ready jobs wait')}`,
    });
  }
  if (jobs !== undefined) {
    const unfinished = counts.ready + counts.scheduled + counts.reserved + counts.blocked;
    found.push({
      queue,
      what: 'max_jobs',
      used: unfinished,
      share: unfinished / jobs,
      limit: `${format.count(unfinished)} of ${format.count(jobs)} jobs`,
      why: 'further pushes are refused',
    });
  }
  return found;
}

/** Rates are means over a minute: one that is nearly at its limit, with jobs that wait, is at it. @param {Use} use */
function isAt(use) {
  return use.share >= (use.what === 'rate' ? 0.9 : 1) && (use.what === 'max_jobs' || (live.queues.get(use.queue)?.counts.ready ?? 0) > 0);
}

/** The queues with limits, those that are at one first. @param {AbortSignal} signal */
function queuesAtLimits(signal) {
  /** @type {Queue[]} */ let limited = [];
  let isPart = false;
  const table = grid({
    caption: 'Queues with limits',
    columns: ['Queue', 'Limit', { label: 'In use', class: 'wide' }, { label: 'State', hidden: true }],
    key: (/** @type {Use} */ use) => keyOf(use),
    href: (use) => link(['queues', use.queue]),
    make: (use) => {
      const share = bar(`${use.what} of ${use.queue}`);
      const figures = h('span', { class: 'left' });
      const note = h('span');
      return {
        cells: [queueLink(use.queue), h('span', { class: 'mono' }, use.what), h('span', { class: 'leased' }, share.node, figures), note],
        set: (next) => {
          share.set(next.share);
          text(figures, next.limit);
          const is = isAt(next);
          if (is !== (note.firstChild !== null)) swap(note, is && badge('at its limit', 'warn'), is && ' ', is && h('small'));
          if (is) text(/** @type {Element} */ (note.lastElementChild), next.why);
        },
      };
    },
  });
  const none = empty(
    asSeen('No queue has a limit.').replace('has a limit that this key may see', 'that this key may see has a limit'),
    'Settings of a queue limit its jobs (max_jobs), those reserved at once (max_reserved) and its deliveries in a time (rate).',
  );
  const body = orNothing(table, none);
  const more = h('p', { class: 'muted' });
  const keyOf = (/** @type {Use} */ use) => `${use.queue} ${use.what}`;
  // The place of each, as they were sorted last: rows do not swap places while one reads them.
  /** @type {Map<string, number>} */ let places = new Map();
  const draw = () => {
    const found = limited.flatMap(uses);
    if (places.size === 0) {
      found.sort((a, b) => Number(isAt(b)) - Number(isAt(a)) || b.share - a.share || (a.queue < b.queue ? -1 : 1));
      places = new Map(found.map((use, n) => [keyOf(use), n]));
    }
    found.sort((a, b) => (places.get(keyOf(a)) ?? 0) - (places.get(keyOf(b)) ?? 0));
    body.set(found.slice(0, SHOWN));
    const left = found.length - SHOWN;
    text(
      more,
      `${left > 0 ? `${format.count(left)} more limits are used less than these. ` : ''}${isPart ? `Only the first ${format.count(PAGES * 1000)} queues were looked at.` : ''}`,
    );
  };
  const list = loaded(
    signal,
    60_000,
    async () => {
      const found = [];
      let cursor;
      for (let n = 0; n < PAGES; n += 1) {
        /** @type {QueuesPage} */
        const answer = await get(query(path('queues'), { limit: 1000, cursor }), signal);
        found.push(
          ...answer.queues.filter(
            (/** @type {Queue} */ one) => one.max_reserved !== undefined || one.rate !== undefined || one.max_jobs !== undefined,
          ),
        );
        cursor = answer.cursor;
        if (cursor === undefined) break;
      }
      isPart = cursor !== undefined;
      return found;
    },
    (found) => {
      limited = found;
      places = new Map(); // each minute
      draw();
    },
    body.node,
    more,
  );
  every(signal, 2000, () => {
    if (limited.length > 0) draw();
  });
  const node = card('Queues with limits', list.node);
  node.classList.add('uses');
  return node;
}
