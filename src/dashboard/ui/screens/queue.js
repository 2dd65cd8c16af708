// One queue: its states and limits, what was, its settings, its jobs, and what can be done to it.
import { act, mayDo } from '../acts.js';
import { get, path, query } from '../api.js';
import { registerButtons } from '../commands.js';
import * as board from '../board.js';
import { chart, ruler } from '../chart.js';
import { each, h, show, swap, text } from '../dom.js';
import * as format from '../format.js';
import { jobList } from '../jobs.js';
import { plain } from '../json.js';
import { limitsInUse } from '../limitsinuse.js';
import { judged, letterNeed, lettersOf } from '../letters.js';
import * as live from '../live.js';
import { adviceOf, needLine, nextStep } from '../need.js';
import { queueActions } from '../queueacts.js';
import { every, link } from '../router.js';
import { RANGES, rangeOf } from '../scale.js';
import { FAILED, FINISHED, loadSeries, rangeTabs } from '../series.js';
import { settingsCard } from '../settings.js';
import { states } from '../states.js';
import { badge, button, empty, facts, message, when } from '../widgets.js';

/** @typedef {import('../api.js').Api<'QueueStats'>} QueueStats */

const STATS_MS = 2000;
const PERCENTILES = ['p50', 'p95', 'p99'];
const METRICS = [
  'depth_ready',
  'depth_reserved',
  'depth_blocked',
  'pushed',
  ...FINISHED,
  ...FAILED,
  ...PERCENTILES.flatMap((p) => [`queue_time_${p}`, `run_time_${p}`]),
];

/** @param {import('../router.js').Context} outer @returns {import('../router.js').Screen} */
export function queue(outer) {
  // All that is started here ends with the screen, or where the key turns out to be for other queues.
  const refused = new AbortController();
  const context = { ...outer, signal: AbortSignal.any([outer.signal, refused.signal]) };
  let current = context;
  const { signal } = context;
  const name = context.parts[1];
  const paused = badge('paused', 'warn');
  show(paused, false);
  const problem = h('p', { class: 'problem', role: 'alert', hidden: true });
  const settings = settingsCard(name, signal);
  const limits = limitsInUse(name, signal);
  const history = makeHistory(() => current, name);
  const needs = makeNeeds(name, signal, {
    changed: () => {
      load();
      settings.load();
    },
    redrive: () => actions.redrive(),
  });
  const at = makeFacts();
  const unknown = unknownNote(name, signal);
  const bar = states((state) => link(['queues', name], { ...Object.fromEntries(current.params), state, cursor: undefined }));
  const jobs = jobList(context, { fixed: { queue: name } });
  const load = every(signal, STATS_MS, async () => {
    try {
      /** @type {QueueStats & {attention?: any[]}} */
      const stats = await get(path('queues', name, 'stats'), signal);
      if (!live.queues.has(name)) bar.set(stats.counts);
      at.set(stats);
      history.now(stats);
      limits.stats(stats);
      needs.set(stats.attention ?? []);
      await unknown.set(stats.counts);
      show(problem, false);
    } catch (/** @type {any} */ error) {
      if (signal.aborted) return;
      if (error.status === 403 || error.status === 404 || error.status === 422) {
        refused.abort();
        return swap(node, h('h1', null, plain(name)), error.status === 403 ? noKey() : noSuch(error));
      }
      if (error.status === 0) return; // that the connection is lost is said above
      text(problem, `The figures of this queue cannot be read: ${message(error)}`);
      show(problem, true);
    }
  });
  const actions = queueActions(() => current, name, {
    pushed: load,
    changed: () => {
      draw();
      load();
      settings.load();
    },
  });
  const draw = () => {
    if (live.queues.has(name)) bar.set(board.row(name).counts);
    actions.draw();
    show(paused, actions.isPaused());
  };
  settings.follow((next) => {
    limits.settings(next);
    board.setPaused(name, next.effective.paused);
    actions.settings(next.effective.paused);
    draw();
  });
  live.follow(signal, (changed, happened, isNew) => {
    if (changed.has(name) || changed.size === 0) draw();
    const isTold = happened.some((one) => one.queue === name && ['settings', 'paused', 'resumed'].includes(one.kind));
    if (isTold || isNew) settings.load(); // changes of settings were missed while the stream was away
  });
  registerButtons(signal, actions.node, name);
  registerButtons(signal, settings.node, name);
  const head = h('div', { class: 'head' }, h('div', { class: 'row' }, h('h1', null, plain(name)), paused), actions.node);
  const counts = h('section', { class: 'card', 'aria-label': 'Jobs by state' }, bar.node, at.node);
  const over = h('div', { class: 'head' }, h('h2', null, 'History'), history.tabs);
  const node = h(
    'div',
    { class: 'stack' },
    head,
    problem,
    unknown.node,
    needs.node,
    counts,
    limits.node,
    over,
    history.node,
    settings.node,
    jobs.node,
  );
  return {
    title: name,
    node,
    update: (next) => {
      current = { ...next, signal };
      history.update();
      bar.links();
      jobs.update(current);
    },
  };
}

/** How often it is looked whether a queue without jobs is known at all. */
const KNOWN_MS = 10_000;

/** Says where the server knows nothing of a queue: its name may be mistyped. @param {string} name @param {AbortSignal} signal */
function unknownNote(name, signal) {
  const node = h(
    'p',
    { class: 'remark', role: 'status', hidden: true },
    'Nothing is known of this queue: no jobs, no settings. It is there as soon as a job is pushed to it. ',
    h('a', { href: link(['queues']) }, 'See all queues'),
  );
  let at = 0;
  return {
    node,
    set: async (/** @type {Record<string, number>} */ counts) => {
      const isEmpty = Object.values(counts).every((n) => n === 0);
      if (!isEmpty) return show(node, false);
      if (Date.now() - at < KNOWN_MS) return;
      at = Date.now();
      const { queues } = await get(query(path('queues'), { prefix: name, sort: 'name', limit: 1 }), signal);
      show(node, queues[0]?.queue !== name);
    },
  };
}

function noKey() {
  return empty('Your key is not for this queue.', h('a', { href: link(['queues']) }, 'See the queues that it is for'));
}

/** A link may have any name. @param {any} error */
function noSuch(error) {
  return empty('There is no such queue.', `${plain(message(error))}. `, h('a', { href: link(['queues']) }, 'See all queues'));
}

/**
 * Why the queue needs somebody. @param {string} name @param {AbortSignal} signal
 * @param {{changed: () => void, redrive: () => any}} then
 */
function makeNeeds(name, signal, { changed, redrive }) {
  const list = h('ul', { class: 'needs' });
  const node = h('section', { class: 'card', 'aria-label': 'Needs attention', hidden: true }, list);
  const set = each(
    list,
    (/** @type {import('../need.js').Need} */ need) => need.reason,
    () =>
      needLine({
        words: (need) => `${need.detail}. ${adviceOf(need)}`,
        step: (need) => (need.reason === LETTERS && mayDo(act('redrive')) ? button('Redrive', redrive) : stepHere(name, need, changed)),
      }),
  );
  let letters = 0;
  /** @type {any[]} */ let needs = [];
  const draw = () => {
    const all = letters > 0 ? [letterNeed(letters), ...needs.filter(({ reason }) => reason !== LETTERS)] : needs;
    show(node, all.length > 0);
    set(all);
  };
  let counted = '';
  every(signal, LETTERS_MS, async () => {
    const counts = JSON.stringify(board.row(name).counts);
    if (counts === counted) return;
    try {
      const { count } = await lettersOf(name, signal);
      letters = count;
      counted = counts;
      draw();
    } catch {
      /* the figures say why */
    }
  });
  return {
    node,
    set: async (/** @type {any[]} */ next) => {
      needs = await Promise.all(next.map((need) => judged(name, need, signal)));
      draw();
    },
  };
}

const LETTERS = letterNeed(1).reason;
const LETTERS_MS = 10_000;

/** The next step, unless it leads to where one is. @param {string} name @param {any} need @param {() => void} changed */
function stepHere(name, need, changed) {
  const step = nextStep(name, need, changed);
  return step.getAttribute('href') === link(['queues', name]) ? null : step;
}

/** What else is known of it now. */
function makeFacts() {
  const node = h('div', { class: 'room-low' });
  let said = '';
  return {
    node,
    set: (/** @type {QueueStats} */ stats) => {
      const { waiting, workers, backoff, oldest_ready_age_ms: oldest, next_due_at: due, reserved_for: held } = stats;
      const longest =
        held.longer > 0
          ? `${format.count(held.longer)} for more than an hour`
          : held.under_1_hour > 0
            ? `${format.count(held.under_1_hour)} for more than ten minutes`
            : '';
      const rows = /** @type {[string, any][]} */ ([
        ['Oldest ready', oldest === undefined ? 'none is ready' : format.duration(oldest - (oldest >= 1000 ? oldest % 1000 : 0))],
        [
          'Workers',
          `${workers === 0 ? 'none holds a job' : workers === 1 ? '1 holds jobs' : `${format.count(workers)} hold jobs`}${longest === '' ? '' : `, ${longest}`}`,
        ],
        ['Waiting calls', `${format.count(waiting.here)} here${waiting.elsewhere ? ', others on other servers' : ''}`],
        ['Tried again later', format.plural(backoff, 'job')],
        ['Next due', due === undefined ? 'none is scheduled' : when(due)],
      ]);
      const next = JSON.stringify(rows.map(([label, value]) => [label, typeof value === 'string' ? value : due]));
      if (next === said) return;
      said = next;
      swap(node, h('div', { class: 'now-facts wide-facts' }, facts(rows)));
    },
  };
}

/** The four charts. @param {() => import('../router.js').Context} context @param {string} name */
function makeHistory(context, name) {
  const { signal } = context();
  const shared = ruler();
  const tabs = rangeTabs(context);
  const times = PERCENTILES.toReversed().map((p) => ({ id: p, label: p, kind: p }));
  const depth = chart({
    title: 'Depth',
    unit: 'count',
    ruler: shared,
    signal,
    lines: [
      { id: 'ready', label: 'ready', kind: 'ready', area: true },
      { id: 'reserved', label: 'reserved', kind: 'reserved' },
      { id: 'blocked', label: 'blocked', kind: 'blocked' },
    ],
  });
  const jobs = chart({
    title: 'Jobs per second',
    unit: 'rate',
    ruler: shared,
    signal,
    lines: [
      { id: 'finished', label: 'finished', kind: 'reserved', area: true },
      { id: 'pushed', label: 'pushed', kind: 'ready' },
      { id: 'failed', label: 'failed', kind: 'dead' },
    ],
  });
  const wait = chart({ title: 'Queue time', unit: 'duration', ruler: shared, signal, lines: times });
  const run = chart({ title: 'Run time', unit: 'duration', ruler: shared, signal, lines: times });
  const all = [depth, jobs, wait, run];
  let range = rangeOf(context().params);
  const load = every(signal, RANGES['15m'].every, async () => {
    const asked = range;
    try {
      const series = await loadSeries(asked, METRICS, name, signal);
      if (asked !== range) return;
      depth.set(
        series.figures({
          ready: series.of('depth_ready'),
          reserved: series.of('depth_reserved'),
          blocked: series.of('depth_blocked'),
        }),
      );
      jobs.set(series.figures({ finished: series.rate(FINISHED), pushed: series.rate(['pushed']), failed: series.rate(FAILED) }));
      wait.set(series.figures(Object.fromEntries(PERCENTILES.map((p) => [p, series.of(`queue_time_${p}`)]))));
      run.set(series.figures(Object.fromEntries(PERCENTILES.map((p) => [p, series.of(`run_time_${p}`)]))));
    } catch (/** @type {any} */ error) {
      if (!signal.aborted) for (const one of all) one.fail(message(error));
    }
  });
  return {
    node: h(
      'div',
      { class: 'halves' },
      all.map(({ node }) => node),
    ),
    tabs: tabs.node,
    /** @param {QueueStats} stats */
    now: ({ counts, rates_per_s: rates, rates_over_ms: over, queue_time_ms: waited, run_time_ms: ran }) => {
      depth.now({ ready: counts.ready, reserved: counts.reserved, blocked: counts.blocked });
      jobs.now({ finished: rates.committed + rates.moved, pushed: rates.pushed, failed: rates.rolled_back + rates.lapsed }, over);
      wait.now({ p50: waited?.p50, p95: waited?.p95, p99: waited?.p99 }, over);
      run.now({ p50: ran?.p50, p95: ran?.p95, p99: ran?.p99 }, over);
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
