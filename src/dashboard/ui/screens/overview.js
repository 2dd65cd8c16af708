// The overview: what flows, what needs attention, and what is behind it.
import { get } from '../api.js';
import { h, show, text, toggle } from '../dom.js';
import * as format from '../format.js';
import * as live from '../live.js';
import { attention } from '../attention.js';
import { chart, ruler } from '../chart.js';
import { queueTable } from '../queuetable.js';
import { every, link } from '../router.js';
import { RANGES, rangeOf } from '../scale.js';
import { loadSeries, rangeTabs, FAILED } from '../series.js';
import { servers } from '../servers.js';
import { spark } from '../spark.js';
import { states } from '../states.js';
import { card, message } from '../widgets.js';

/** @typedef {import('../api.js').Api<'ServerStats'>} ServerStats */

/** So many queues are here; the list has all. */
const QUEUES = 15;
const STATS_MS = 2000;
const METRICS = ['pushed', 'committed', ...FAILED, 'oldest_ready_age_ms', 'queue_time_p50', 'queue_time_p95', 'queue_time_p99'];

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function overview(context) {
  let current = context;
  const { signal } = context;
  const tiles = makeTiles();
  const needs = attention(signal);
  const history = makeHistory(() => current, tiles);
  const bar = states((state) => link(['jobs'], { state }));
  const behind = servers(signal);
  const all = h('a', { href: link(['queues']) }, 'All queues');
  const list = queueTable(() => current, {
    limit: QUEUES,
    shown: ({ all: n }) => n >= 0 && text(all, n > QUEUES ? `All ${format.count(n)} queues` : 'All queues'),
  });
  live.follow(signal, () => {
    const counts = live.allCounts();
    if (counts !== null) bar.set(counts);
  });
  let isRefused = false; // a key of some queues: their figures are in the stream
  const old = h('p', { class: 'remark bad', role: 'status', hidden: true });
  let readAt = 0;
  every(signal, STATS_MS, async () => {
    if (isRefused) return fromStream(tiles.now);
    try {
      /** @type {ServerStats} */
      const stats = await get('/stats', signal);
      readAt = Date.now();
      show(old, false);
      live.takeCounts(stats.counts);
      tiles.now(stats);
      history.now(stats);
      behind.tasks(stats);
      needs.tasks(stats.tasks);
    } catch (/** @type {any} */ error) {
      if (signal.aborted) return;
      isRefused = error.status === 403;
      behind.fail(error);
      show(old, !isRefused);
      if (isRefused) return fromStream(tiles.now);
      // What was read stays: a figure that is not known is no zero.
      text(old, `${readAt === 0 ? 'These figures cannot be read' : `Not read again since ${format.time(readAt)}`}: ${message(error)}`);
    }
  });
  const node = h(
    'div',
    { class: 'stack' },
    h('h1', { class: 'unseen' }, 'Overview'),
    old,
    tiles.node,
    needs.node,
    h('div', { class: 'head' }, h('h2', null, 'History'), history.tabs),
    history.node,
    card('Jobs by state', bar.node),
    h('section', { class: 'card flush', 'aria-label': 'Queues' }, h('div', { class: 'head' }, h('h2', null, 'Queues'), all), list.node),
    behind.node,
  );
  return {
    title: 'Overview',
    node,
    update: (next) => {
      current = next;
      history.update();
      list.update();
    },
  };
}

/** Shows the figures of the queues that the stream tells of, once it does, where the whole server's are not for this key. @param {(stats: any) => void} now */
function fromStream(now) {
  if (live.state.heardAt === 0) return;
  const { counts, rates } = live.totals();
  now({
    counts,
    rates_per_s: { pushed: 0, committed: 0, rolled_back: 0, lapsed: 0, reserved: 0, dead: 0, expired: 0, cancelled: 0, ...rates },
    isPart: true,
  });
}

/** The figures at the top. A job that a worker moved has finished in its queue, and goes on in another: of all together only what is committed is done. */
function makeTiles() {
  const made = {
    pushed: tile('Pushed', 'ready'),
    committed: tile('Committed', 'reserved'),
    failed: tile('Failed', 'dead'),
    oldest: tile('Oldest ready', 'blocked'),
    wait: tile('Queue time', 'p95'),
  };
  // From the beginning, so that nothing below moves when it comes.
  for (const one of [made.pushed, made.committed, made.failed, made.wait]) one.over();
  /** @type {{sum: number, label: string} | null} */ let pushed = null;
  /** @type {number | undefined} */ let rate;
  const setPushed = () => made.pushed.set(format.rate(rate), pushed === null ? '' : `${format.short(pushed.sum)} in ${pushed.label}`);
  return {
    node: h(
      'div',
      { class: 'cards tiles' },
      Object.values(made).map(({ node }) => node),
    ),
    /** @param {any} stats */
    now: (stats) => {
      const rates = stats.rates_per_s;
      for (const one of [made.pushed, made.committed, made.failed, made.wait]) one.over(stats.rates_over_ms);
      rate = rates.pushed;
      setPushed();
      const [note, kind] = pace(rates);
      made.committed.set(format.rate(rates.committed), note, kind);
      const failed = rates.rolled_back + rates.lapsed;
      made.failed.set(
        format.rate(failed),
        rates.reserved > 0 ? `${format.percent(Math.min(failed, rates.reserved), rates.reserved)} of deliveries` : 'nothing is delivered',
        failed > 0 && failed * 4 >= rates.reserved ? 'bad' : '',
      );
      const oldest = live.oldestReady();
      const age = stats.oldest_ready_age_ms ?? (oldest?.oldest_ready_at && format.now() - Date.parse(oldest.oldest_ready_at));
      const queue = age === undefined ? undefined : (stats.oldest_ready_queue ?? oldest?.queue);
      const where =
        queue === undefined
          ? age === undefined
            ? 'no job is ready'
            : ''
          : h('a', { href: link(['queues', queue]), title: queue }, `in ${queue}`);
      made.oldest.set(age === undefined ? '–' : format.duration(age), where, age > 60_000 ? 'warn' : '');
      const wait = stats.queue_time_ms;
      made.wait.set(
        format.duration(wait?.p95),
        wait === undefined
          ? stats.isPart
            ? 'needs a key for all queues'
            : 'nothing was delivered in a minute'
          : `p95; p50 ${format.duration(wait.p50)} · p99 ${format.duration(wait.p99)}`,
      );
    },
    /** @param {import('../series.js').Series} series @param {string} label */
    history: (series, label) => {
      pushed = { sum: series.sum(['pushed']), label };
      setPushed();
      made.pushed.spark(series.values(series.rate(['pushed'])));
      made.committed.spark(series.values(series.rate(['committed'])));
      made.failed.spark(series.values(series.rate(FAILED)));
      made.oldest.spark(series.values(series.of('oldest_ready_age_ms')));
      made.wait.spark(series.values(series.of('queue_time_p95')));
    },
  };
}

/** Whether as many jobs leave as come. @param {any} rates @returns {[string, string]} */
function pace({ pushed, committed, dead, expired, cancelled }) {
  const growth = pushed - committed - dead - expired - cancelled;
  if (growth > Math.max(0.05 * pushed, 0.05)) return [`behind by ${format.rate(growth)}`, 'warn'];
  if (-growth > Math.max(0.05 * pushed, 0.05)) return [`catching up by ${format.rate(-growth)}`, ''];
  return [pushed > 0 || committed > 0 ? 'keeps up' : 'nothing comes in', ''];
}

/** A figure with what was. @param {string} label @param {string} kind */
function tile(label, kind) {
  const value = h('p', { class: 'figure' }, '–');
  const note = h('p', { class: 'note cut' }, '\u00a0');
  const line = spark(`${label}, over the chosen time`);
  let said = '';
  const over = h('small');
  const node = h(
    'div',
    { class: `card tile of-${kind}`, role: 'group', 'aria-label': label },
    h('h2', null, label, ' ', over),
    value,
    note,
    line.node,
  );
  return {
    node,
    spark: line.set,
    /** Says of which time the figure is. @param {number} [ms] as much of the last minute as was seen */
    over: (ms) => text(over, format.over(ms)),
    /** @param {string} figure @param {string | Element} words @param {string} [mood] */
    set: (figure, words, mood = '') => {
      text(value, figure);
      toggle(value, 'warn', mood === 'warn');
      toggle(value, 'bad', mood === 'bad');
      toggle(note, 'warn', mood === 'warn');
      const next = typeof words === 'string' ? words : (words.textContent ?? '');
      if (next === said) return; // a link that has the focus stays
      said = next;
      note.replaceChildren(words === '' ? '\u00a0' : words);
    },
  };
}

/** The charts. @param {() => import('../router.js').Context} context @param {ReturnType<typeof makeTiles>} tiles */
function makeHistory(context, tiles) {
  const { signal } = context();
  const shared = ruler();
  const tabs = rangeTabs(context);
  const jobs = chart({
    title: 'Jobs per second',
    unit: 'rate',
    ruler: shared,
    signal,
    lines: [
      { id: 'committed', label: 'committed', kind: 'reserved', area: true },
      { id: 'pushed', label: 'pushed', kind: 'ready' },
      { id: 'failed', label: 'failed', kind: 'dead' },
    ],
  });
  const wait = chart({
    title: 'Queue time',
    unit: 'duration',
    ruler: shared,
    signal,
    lines: [
      { id: 'p99', label: 'p99', kind: 'p99' },
      { id: 'p95', label: 'p95', kind: 'p95' },
      { id: 'p50', label: 'p50', kind: 'p50' },
    ],
  });
  let range = rangeOf(context().params);
  let isRefused = false;
  const load = every(signal, RANGES['15m'].every, async () => {
    if (isRefused) return;
    const asked = range;
    try {
      const series = await loadSeries(asked, METRICS, undefined, signal);
      if (asked !== range) return;
      tiles.history(series, RANGES[asked].label);
      jobs.set(series.figures({ committed: series.rate(['committed']), pushed: series.rate(['pushed']), failed: series.rate(FAILED) }));
      wait.set(series.figures({ p50: series.of('queue_time_p50'), p95: series.of('queue_time_p95'), p99: series.of('queue_time_p99') }));
    } catch (/** @type {any} */ error) {
      if (signal.aborted) return;
      isRefused = error.status === 403;
      const why = isRefused ? 'The figures of all queues together need a key for all of them.' : message(error);
      jobs.fail(why);
      wait.fail(why);
    }
  });
  return {
    node: h('div', { class: 'halves' }, jobs.node, wait.node),
    tabs: tabs.node,
    /** @param {any} stats */
    now: ({ rates_per_s: rates, rates_over_ms: over, queue_time_ms: time }) => {
      jobs.now({ committed: rates.committed, pushed: rates.pushed, failed: rates.rolled_back + rates.lapsed }, over);
      wait.now({ p50: time?.p50, p95: time?.p95, p99: time?.p99 }, over);
    },
    update: () => {
      tabs.update();
      const next = rangeOf(context().params);
      if (next === range) return;
      range = next;
      load();
    },
  };
}
