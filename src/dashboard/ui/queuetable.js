// The table of queues, of the overview and of the list.

import { curl, path } from './api.js';
import { attr, h, show, text, toggle } from './dom.js';
import * as board from './board.js';
import * as format from './format.js';
import { hadLetters, hasLetters } from './letters.js';
import * as live from './live.js';
import { every, link } from './router.js';
import { spark } from './spark.js';
import { asSeen, may } from './session.js';
import { table } from './table.js';
import { button, copy } from './widgets.js';

/** @typedef {import('./board.js').Row} Row */

/** The columns; `of` is what they are sorted by, `w1` to `w3` need a wide window. */
const COLUMNS = /** @type {(import('./table.js').Column & {of?: (row: Row) => number})[]} */ ([
  { id: 'name', label: 'Queue', class: 'c-name', sort: 'asc' },
  { id: 'pushed', label: 'Pushed', class: 'num w1', sort: 'desc', of: (row) => row.pushed },
  {
    id: 'finished',
    label: 'Finished',
    class: 'num',
    sort: 'desc',
    of: (row) => row.finished,
    title: 'Committed, or moved to another queue',
  },
  { id: 'failed', label: 'Failed', class: 'num w1', sort: 'desc', of: (row) => row.failed },
  { id: 'spark', label: 'Finished, 15 min', class: 'c-spark w2', title: 'Jobs finished, over the last 15 minutes' },
  { id: 'ready', label: 'Ready', class: 'num', sort: 'desc', of: (row) => row.counts.ready },
  {
    id: 'oldest',
    label: 'Oldest',
    class: 'num c-age w1',
    sort: 'desc',
    of: (row) => (row.oldest === undefined ? -1 : format.now() - Date.parse(row.oldest)),
    title: 'For how long the oldest ready job has been ready',
  },
  { id: 'scheduled', label: 'Scheduled', class: 'num w3', sort: 'desc', of: (row) => row.counts.scheduled },
  { id: 'reserved', label: 'Reserved', class: 'num w2', sort: 'desc', of: (row) => row.counts.reserved },
  { id: 'blocked', label: 'Blocked', class: 'num w3', sort: 'desc', of: (row) => row.counts.blocked },
  { id: 'dead', label: 'Dead', class: 'num c-dead', sort: 'desc', of: (row) => row.counts.dead },
  {
    id: 'queue_time_p95',
    label: 'p95 wait',
    class: 'num w2',
    sort: 'desc',
    of: (row) => row.figures?.queue_time_ms?.p95 ?? -1,
    title: 'Queue time: from due to delivery',
  },
  {
    id: 'run_time_p95',
    label: 'p95 run',
    class: 'num w3',
    sort: 'desc',
    of: (row) => row.figures?.run_time_ms?.p95 ?? -1,
    title: 'Run time: from delivery to commit',
  },
  {
    id: 'waiting',
    label: 'Waiting',
    class: 'num w3',
    sort: 'desc',
    of: (row) => waiting(row),
    title: 'Calls that wait for jobs of the queue',
  },
  { id: 'workers', label: 'Workers', class: 'num w2', title: 'Named workers that hold jobs of the queue' },
  {
    id: 'attention',
    label: '',
    class: 'unseen',
    of: (row) => (row.attention.length === 0 ? 0 : 9 - board.REASONS.indexOf(row.attention[0])),
  },
]);
const SHOWN = COLUMNS.filter(({ id }) => id !== 'attention');
/** Sorted by this, a list is sorted by what needs attention, and below that by what is ready. */
const FIRST = { by: 'attention', desc: true };

/** How long the order stays, how old the figures of a row that is seen may be, and how often those of the first rows are read. */
const SORTED_MS = 2000;
/** Sorting many takes its time: so many are sorted once in two seconds, more of them less often. */
const SORTED_OFTEN = 2000;
const OLD_MS = 30_000;
const PAGE_MS = 5000;
const FIRST_ROWS = 100;
/** So many rows that are seen are brought up to date at once. */
const AT_ONCE = 6;
/** Of so many rows whose jobs nobody takes it is looked whether these are dead letters. */
const STARVED = 20;

/** @param {Row} row */
function waiting(row) {
  const of = row.figures?.waiting;
  return of === undefined ? -1 : of.here + (of.elsewhere ? 1 : 0);
}

/**
 * The table; `sort` and `desc` are in the link. `limit`: only the first so many.
 * @param {() => import('./router.js').Context} context the latest one
 * @param {{limit?: number, choose?: (row: Row) => boolean, filter?: () => {prefix?: string, attention?: string},
 *   shown?: (figures: {matched: number, all: number, held: boolean}) => void, failed?: (error: any) => void}} [options]
 */
export function queueTable(context, { limit, choose = () => true, filter = () => ({}), shown, failed = () => {} } = {}) {
  const { signal } = context();
  const order = () => orderOf(context().params);
  /** @param {import('./table.js').Order} next */
  const onOrder = (next) => context().setParams({ sort: `${next.desc ? '-' : ''}${next.by}` }, true);
  const rows = table({ caption: 'Queues', columns: SHOWN, row: makeRow, signal, order, onOrder, class: 'queues' });
  /** @type {string[]} */ let sorted = [];
  let sortedAt = 0;
  let seenVersion = -1;
  let size = 0;
  // How many queues there are, as the server counts them: the page gets to know them one after the other.
  /** @type {number | undefined} */ let total;
  const nothing = noQueues();
  let drawnAt = 0;
  let asked = 0;
  /** @param {boolean} anew whether the order is another one */
  const draw = (anew) => {
    asked = 0;
    if (signal.aborted || document.hidden) return;
    drawnAt = Date.now();
    const held = !anew && isHeld(rows.node);
    const isDue = drawnAt - sortedAt >= SORTED_MS * Math.max(1, size / SORTED_OFTEN);
    if (anew || (!held && isDue && seenVersion !== board.version)) {
      seenVersion = board.version;
      const all = board.names();
      size = all.size;
      sorted = sort(
        [...all].filter((name) => choose(board.row(name))),
        order(),
      );
      sortedAt = drawnAt;
      shown?.({ matched: sorted.length, all: total ?? all.size, held });
      nothing.set(sorted.length, all.size);
      if (limit !== undefined) sorted = sorted.slice(0, limit);
    } else {
      shown?.({ matched: -1, all: -1, held });
    }
    rows.set(new Rows(sorted));
  };
  live.follow(signal, () => {
    if (asked === 0 && !document.hidden) asked = requestAnimationFrame(() => draw(sorted.length === 0));
  });
  every(signal, 1000, () => {
    if (Date.now() - drawnAt > 900) draw(sorted.length === 0);
  });
  const page = every(signal, PAGE_MS, async () => {
    try {
      const chosen = filter();
      const { matched } = await load(
        signal,
        order(),
        { ...chosen, limit: limit ?? FIRST_ROWS },
        () => rows.seen(),
        () => draw(sorted.length === 0),
      );
      if (chosen.prefix === undefined && chosen.attention === undefined) total = matched;
      failed(null);
    } catch (error) {
      if (!signal.aborted) failed(error);
    }
  });
  return {
    node: h('div', null, rows.node, nothing.node),
    /** Takes what the link says now. */
    update: () => {
      rows.order();
      draw(true);
      page();
    },
  };
}

/** Names, read as rows only where they are seen. */
class Rows {
  /** @param {string[]} names */
  constructor(names) {
    this.names = names;
    this.length = names.length;
  }

  /** @param {number} first @param {number} last */
  slice(first, last) {
    return this.names.slice(first, last).map(board.row);
  }
}

/** The order of a link. @param {URLSearchParams} params @returns {import('./table.js').Order} */
export function orderOf(params) {
  const text = params.get('sort') ?? '';
  const by = text.replace(/^-/, '');
  return COLUMNS.some((column) => column.id === by && (column.of !== undefined || by === 'name'))
    ? { by, desc: text.startsWith('-') }
    : FIRST;
}

/** @param {string[]} all @param {import('./table.js').Order} order */
function sort(all, { by, desc }) {
  all.sort(); // by name, also where the rest is equal
  if (by === 'name') return desc ? all.reverse() : all;
  const of = COLUMNS.find(({ id }) => id === by)?.of;
  if (of === undefined) return all;
  const sign = desc ? -1 : 1;
  const keyed = all.map((name) => ({ name, key: of(board.row(name)), ready: by === 'attention' ? board.row(name).counts.ready : 0 }));
  keyed.sort((a, b) => sign * (a.key - b.key) || b.ready - a.ready);
  return keyed.map(({ name }) => name);
}

/** Rows stay where they are while one is pointed at, or has the focus. @param {Element} node */
function isHeld(node) {
  const body = node.querySelector('tbody:not(.spacer)');
  return body !== null && (body.contains(document.activeElement) || (matchMedia('(hover: hover)').matches && body.matches(':hover')));
}

/**
 * Reads the figures of the first rows of the order, and of those that are seen. @param {AbortSignal} signal
 * @param {import('./table.js').Order} order @param {Record<string, any>} ask @param {() => Row[]} seen @param {() => void} then
 * @returns {Promise<{matched?: number}>} how many queues there are of this kind
 */
async function load(signal, order, ask, seen, then) {
  const page = await board.loadPage({ ...ask, sort: `${order.desc ? '-' : ''}${order.by === 'workers' ? 'name' : order.by}` }, signal);
  then();
  const starved = seen().filter(({ attention }) => attention[0] === 'starved');
  await Promise.all(starved.slice(0, STARVED).map(({ queue }) => hasLetters(queue, signal).catch(() => false)));
  if (starved.length > 0) then();
  const old = Date.now() - OLD_MS;
  const wanted = seen()
    .filter(({ at }) => at < old)
    .map(({ queue }) => queue);
  while (wanted.length > 0 && !signal.aborted) {
    await Promise.all(wanted.splice(0, AT_ONCE).map((name) => board.loadOne(name, signal)));
    then();
  }
  return { matched: page.figures?.matched };
}

/** The elements of a row. @returns {{node: any, set: (row: Row) => void}} */
function makeRow() {
  const cells = SHOWN.map((column) => h('td', { class: column.class }));
  const of = Object.fromEntries(SHOWN.map(({ id }, n) => [id, cells[n]]));
  const name = h('a', { class: 'name' });
  const badge = h('span', { class: 'badge', hidden: true });
  const line = spark('Jobs finished, over the last 15 minutes');
  of.name.append(h('div', { class: 'cut' }, name, badge));
  of.spark.append(line.node);
  /** @type {any} */ let drawn;
  return {
    node: h('tr', { 'data-row': true, tabindex: '-1' }, ...cells),
    set: (row) => {
      text(name, row.queue);
      attr(name, 'title', row.queue);
      attr(name, 'href', link(['queues', row.queue]));
      setBadge(badge, row);
      text(of.pushed, format.rate(row.pushed));
      text(of.finished, format.rate(row.finished));
      text(of.failed, format.rate(row.failed));
      toggle(of.failed, 'alarm', row.failed > 0);
      for (const state of /** @type {const} */ (['ready', 'scheduled', 'reserved', 'blocked', 'dead']))
        text(of[state], format.count(row.counts[state]));
      toggle(of.dead, 'alarm', row.counts.dead > 0);
      const age = row.oldest === undefined ? undefined : Math.max(0, format.now() - Date.parse(row.oldest));
      const shown = age === undefined ? '–' : age < 1000 ? 'now' : format.duration(age - (age % 1000));
      text(of.oldest, row.isAbout ? `~${shown}` : shown);
      toggle(of.oldest, 'warn', age !== undefined && age > 60_000);
      const { queue_time_ms: wait, run_time_ms: run, workers, sparkline } = row.figures ?? {};
      text(of.queue_time_p95, format.duration(wait?.p95));
      text(of.run_time_p95, format.duration(run?.p95));
      text(of.waiting, waiting(row) < 0 ? '–' : `${format.count(row.figures.waiting.here)}${row.figures.waiting.elsewhere ? '+' : ''}`);
      text(of.workers, format.count(workers));
      if (sparkline === drawn) return;
      drawn = sparkline;
      // The last step is under way: too little has happened in it.
      line.set(sparkline?.finished.slice(0, -1) ?? []);
    },
  };
}

/** @param {Element} badge @param {Row} row */
function setBadge(badge, row) {
  const [is, ...more] = row.attention.length > 0 ? row.attention : row.paused ? ['paused'] : [];
  // In the words of the overview.
  const first = is === 'starved' && hadLetters(row.queue) ? 'dead letters' : is;
  show(badge, first !== undefined);
  if (first === undefined) return;
  text(badge, more.length > 0 ? `${first} +${more.length}` : first);
  attr(badge, 'class', `badge ${board.MILD.has(first) ? 'warn' : 'bad'}`);
  attr(badge, 'title', [first, ...more].join(', '));
}

/** What is said where no queue is shown. */
function noQueues() {
  const line = curl('POST', path('queues', 'my-queue', 'jobs'), '{"payload": "hello"}');
  const title = h('p', { class: 'strong' });
  const advice = h(
    'div',
    { class: 'stack' },
    h('p', null, 'A queue is there as soon as a job is pushed to it:'),
    h('pre', { class: 'curl' }, line),
    h(
      'p',
      null,
      button('Copy', () => copy(line)),
    ),
  );
  const node = h('div', { class: 'empty', hidden: true }, title, advice);
  return {
    node,
    set: (/** @type {number} */ matched, /** @type {number} */ all) => {
      show(node, matched === 0 && live.state.complete);
      text(
        title,
        all === 0
          ? asSeen('There are no queues yet.').replace('yet that', 'that')
          : 'No queue is like this. Remove the filter to see all of them.',
      );
      show(advice, all === 0 && may('push'));
    },
  };
}
