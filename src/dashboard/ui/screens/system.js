// The system: servers, their background tasks and their store, operations over many jobs, and who did what.
import { del, get, getText, path, query } from '../api.js';
import { h, show, swap, text, toggle } from '../dom.js';
import * as format from '../format.js';
import { plain } from '../json.js';
import { grid, loaded, orNothing, page } from '../parts.js';
import { link } from '../router.js';
import { asSeen, may, user } from '../session.js';
import { auditLog } from './audit.js';
import { badge, button, card, empty, facts, setWhen, toast, when } from '../widgets.js';

/** @typedef {import('../api.js').Api<'Operation'>} Operation */
/** @typedef {import('../api.js').Api<'OperationsPage'>} OperationsPage */
/** @typedef {import('../api.js').Api<'Server'>} Server */
/** @typedef {import('../api.js').Api<'ServersResponse'>} ServersResponse */
/** @typedef {import('../api.js').Api<'ServerStats'>} ServerStats */
/** @typedef {import('../api.js').Api<'TaskStatus'>} TaskStatus */

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function system(context) {
  const { signal } = context;
  const audit = user.scopes.includes('admin') ? auditLog(context) : undefined;
  const running = operations(signal);
  const links = [
    user.scopes.includes('admin') && h('a', { class: 'button', href: link(['keys']) }, 'Keys'),
    h('a', { class: 'button', href: '/docs/', target: '_blank', rel: 'noopener' }, 'API documentation'),
    h('a', { class: 'button', href: '/metrics', target: '_blank', rel: 'noopener' }, 'Metrics'),
  ];
  return {
    title: 'System',
    node: page(
      'System',
      links,
      h('div', { class: 'halves' }, card('Servers', servers(signal)), card('Store', store(signal))),
      card('Background tasks of this server', tasks(signal)),
      card('Operations', running.node),
      audit ? card('Audit', audit.node) : card('Audit', empty('This key may not see it.', 'That needs the scope admin.')),
    ),
    update: (next) => audit?.update(next),
  };
}

/** @param {AbortSignal} signal */
function servers(signal) {
  const table = grid({
    caption: 'Servers',
    columns: ['Server', { label: 'Version', class: '' }, { label: 'Started', class: 'num' }, { label: 'Last seen', class: 'num' }],
    key: (/** @type {Server} */ one) => one.id,
    make: (one) => {
      const seen = when(one.seen_at);
      return {
        cells: [
          [h('span', { class: 'mono', title: one.id }, one.id.slice(0, 12)), ' ', one.this && badge('this one', 'good')],
          one.version ?? 'unknown',
          when(one.since),
          seen,
        ],
        set: (next) => setWhen(seen, next.seen_at),
      };
    },
  });
  const mixed = h('p', { class: 'warn', role: 'status' });
  const clock = h('p', { class: 'muted' });
  const list = loaded(
    signal,
    5000,
    /** @returns {Promise<ServersResponse>} */ () => get(path('servers'), signal),
    (answer) => {
      table.set(answer.servers);
      const versions = [...new Set(answer.servers.map((/** @type {Server} */ one) => one.version ?? 'unknown'))];
      text(mixed, versions.length > 1 ? `They run different versions: ${versions.join(', ')}.` : '');
      text(clock, clocks());
    },
    table.node,
    mixed,
    clock,
  );
  return list.node;
}

/** Which zone and whose clock the times on the page are by. */
function clocks() {
  const ahead = format.clockAhead();
  const differs =
    Math.abs(ahead) > 2000
      ? ` The clock of this machine is ${format.duration(Math.round(Math.abs(ahead) / 1000) * 1000)} ${ahead > 0 ? 'behind' : 'ahead of'} it.`
      : ' The clock of this machine agrees with it.';
  return `Times are by the clock of the store, ${new Date(format.now()).toISOString().slice(11, 19)} UTC, and shown in the time zone of this machine, ${format.zone}.${differs}`;
}

/** What the text of /metrics says of one name, summed over its labels. @param {string} all @param {string} name @param {string} [labels] */
function metric(all, name, labels = '') {
  let sum;
  for (const line of all.split('\n')) {
    if (!line.startsWith(name) || !(line[name.length] === ' ' || line[name.length] === '{') || !line.includes(labels)) continue;
    sum = (sum ?? 0) + Number(line.slice(line.lastIndexOf(' ') + 1));
  }
  return sum;
}

/** @param {AbortSignal} signal */
function store(signal) {
  const rows = h('div');
  /** @type {{count: number, sum: number, pings: number, ping: number} | null} */ let before = null;
  const list = loaded(
    signal,
    5000,
    async () => {
      /** @type {ServerStats} */
      const stats = await get('/stats', signal);
      let metrics = '';
      try {
        metrics = await getText('/metrics', signal);
      } catch {
        /* it needs a key of its own, or is switched off */
      }
      return { stats, metrics };
    },
    ({ stats, metrics }) => {
      const of = (/** @type {string} */ name, labels = '') => metric(metrics, name, labels);
      const now = {
        count: of('tailback_store_call_seconds_count') ?? 0,
        sum: of('tailback_store_call_seconds_sum') ?? 0,
        pings: of('tailback_store_call_seconds_count', 'call="ping"') ?? 0,
        ping: of('tailback_store_call_seconds_sum', 'call="ping"') ?? 0,
      };
      const since = before ?? { count: 0, sum: 0, pings: 0, ping: 0 };
      const mean = (/** @type {number} */ sum, /** @type {number} */ n) => (n > 0 ? format.duration((1000 * sum) / n) : '–');
      const over = before === null ? 'since the server began' : 'in the last 5 s';
      const waiting = of('tailback_store_connections_waiting');
      const failed = of('tailback_store_errors_total') ?? 0;
      swap(
        rows,
        facts(
          [
            ['Kind', stats.store],
            ['Size on disk', metrics && format.bytes(of('tailback_store_size_bytes'))],
            ['Round trip', metrics && `${mean(now.ping - since.ping, now.pings - since.pings)} on average ${over}`],
            [
              'Calls',
              metrics &&
                `${mean(now.sum - since.sum, now.count - since.count)} on average ${over}, ${format.count(now.count - since.count)} of them`,
            ],
            [
              'Errors',
              metrics &&
                h(
                  'span',
                  { class: failed > 0 ? 'bad' : null },
                  failed === 0 ? 'none since the server began' : `${format.count(failed)} since the server began`,
                ),
            ],
            [
              'Connections',
              of('tailback_store_connections') !== undefined &&
                `${format.count(of('tailback_store_connections'))} of ${format.count(of('tailback_store_connections_max'))}${waiting ? `, ${format.plural(waiting, 'call waits', 'calls wait')}` : ''}`,
            ],
            [
              'Jobs',
              format.plural(
                Object.values(stats.counts).reduce((/** @type {number} */ n, m) => n + /** @type {number} */ (m), 0),
                'job',
              ),
            ],
            ['Queues', format.count(stats.queues)],
            ['Workers with heartbeats', format.count(stats.workers)],
            [
              'Waiting calls',
              `${format.count(stats.waiting.here)} at this server${stats.waiting.elsewhere ? ', and others elsewhere' : ''}`,
            ],
            [
              'Clock',
              stats.clock_ahead_ms
                ? h(
                    'span',
                    { class: 'warn' },
                    `${format.duration(stats.clock_ahead_ms)} ahead of the machine's, which was set back; it goes slower until they agree`,
                  )
                : undefined,
            ],
          ].map(([name, value]) => [name, value === false ? undefined : value]),
        ),
      );
      before = metrics ? now : null;
    },
    rows,
  );
  return list.node;
}

/** How long after its last error a task is still shown as failing, in milliseconds. */
const FRESH_MS = 60_000;

/** @param {AbortSignal} signal */
function tasks(signal) {
  const table = grid({
    caption: 'Background tasks',
    columns: [
      'Task',
      { label: 'Last run', class: 'num' },
      { label: 'Took', class: 'num' },
      { label: 'Runs', class: 'num opt' },
      { label: 'Did', class: 'num opt' },
      { label: 'Failed', class: 'num' },
      { label: 'Last error', class: 'wide' },
    ],
    key: (/** @type {TaskStatus} */ task) => task.name,
    make: (task) => {
      const dot = h('i', { class: 'dot good', 'aria-hidden': 'true' });
      const [last, took, runs, did, failures] = Array.from({ length: 5 }, () => h('span'));
      const error = h('span', { class: 'any' });
      return {
        cells: [[dot, ' ', h('span', { class: 'strong' }, task.name)], last, took, runs, did, failures, error],
        set: (next) => {
          const fails = next.last_error !== undefined && (next.last_error_ms_ago ?? 0) < FRESH_MS;
          toggle(dot, 'good', next.failures === 0);
          toggle(dot, 'warn', next.failures > 0 && !fails);
          toggle(dot, 'bad', fails);
          text(
            last,
            next.last_run_ms_ago === undefined
              ? 'not yet'
              : `${format.duration(Math.max(1000, Math.round(next.last_run_ms_ago / 1000) * 1000))} ago`,
          );
          text(took, next.runs === 0 ? '–' : format.duration(next.last_run_took_ms));
          text(runs, format.count(next.runs));
          text(did, format.count(next.done));
          text(failures, format.count(next.failures));
          toggle(failures, 'bad', fails);
          text(error, next.last_error === undefined ? '' : `${plain(next.last_error)} (${format.duration(next.last_error_ms_ago)} ago)`);
          toggle(error, 'bad', fails);
        },
      };
    },
  });
  const list = loaded(
    signal,
    3000,
    /** @returns {Promise<ServerStats>} */ () => get('/stats', signal),
    (stats) => table.set([...stats.tasks].sort((a, b) => Number(b.failures > 0) - Number(a.failures > 0))),
    table.node,
  );
  return list.node;
}

const OPEN = ['queued', 'running'];
/** @type {Record<string, string>} */
const KINDS = { running: 'reserved', queued: 'scheduled', done: 'good', failed: 'bad', cancelled: 'warn' };

/** What an operation does to what, in words. @param {Operation} one */
function saying(one) {
  const filter = Object.entries(one.filter)
    .filter(([name]) => name !== 'queue')
    .map(([name, value]) => `${name} ${typeof value === 'object' ? JSON.stringify(value) : value}`)
    .join(', ');
  return `${one.filter.queue ?? 'all queues'}${filter === '' ? '' : `: ${filter}`}${one.to ? ` → ${one.to}` : ''}${one.priority === undefined ? '' : ` → priority ${one.priority}`}`;
}

/** @param {Operation} one */
function progressOf(one) {
  const isOpen = OPEN.includes(one.state);
  const of = isOpen && one.matched !== undefined ? ` of about ${format.count(one.matched)}` : '';
  const rest = isOpen && one.remaining_ms !== undefined ? `, ${format.duration(one.remaining_ms)} left` : '';
  return `${format.count(one.affected)}${of} affected, ${format.count(one.skipped)} skipped${rest}`;
}

/** @param {AbortSignal} signal */
function operations(signal) {
  const table = grid({
    caption: 'Operations',
    columns: [
      'Operation',
      { label: 'State', class: '' },
      'Jobs',
      'Progress',
      { label: 'Asked for', class: 'num opt' },
      { label: 'Actions', hidden: true, class: 'num' },
    ],
    key: (/** @type {Operation} */ one) => one.id,
    href: (one) => link(['jobs'], { operation: one.id }),
    make: (first) => {
      const action = first.action.replaceAll('_', ' ');
      const state = h('span');
      const bar = h('progress', { max: '1', 'aria-label': `Progress of ${action}` });
      const figures = h('span');
      const errors = h('small', { class: 'bad any block' });
      const stop = button(
        'Cancel',
        async () => {
          const after = await del(path('operations', first.id));
          toast(`Cancelled: ${progressOf(after)}. What was done stays.`);
          list.again();
        },
        { 'aria-label': `Cancel ${action}` },
      );
      return {
        cells: [
          h('a', { class: 'name', href: link(['jobs'], { operation: first.id }) }, action),
          state,
          h('span', { class: 'any' }, plain(saying(first))),
          [bar, ' ', figures, errors],
          when(first.created_at),
          may('operate') && stop,
        ],
        set: (one) => {
          if (state.textContent !== one.state) swap(state, badge(one.state, KINDS[one.state] ?? ''));
          const isOpen = OPEN.includes(one.state);
          show(bar, isOpen);
          if (one.matched !== undefined && one.matched > 0) bar.value = Math.min(1, (one.affected + one.skipped) / one.matched);
          else bar.removeAttribute('value');
          text(figures, progressOf(one));
          text(errors, plain(one.error ?? one.errors?.at(-1) ?? ''));
          show(stop, isOpen);
        },
      };
    },
  });
  const body = orNothing(
    table,
    empty(
      asSeen('There are no operations.'),
      'Those over many jobs – retry, move, delete, redrive, replay – run in the background and are listed here for a week.',
    ),
  );
  const note = h('p', { class: 'muted' });
  const list = loaded(
    signal,
    2000,
    /** @returns {Promise<OperationsPage>} */ () => get(query(path('operations'), { limit: 25 }), signal),
    (answer) => {
      const open = answer.operations.filter((/** @type {Operation} */ one) => OPEN.includes(one.state));
      body.set([...open, ...answer.operations.filter((/** @type {Operation} */ one) => !OPEN.includes(one.state))]);
      text(note, answer.cursor ? 'The last 25.' : '');
    },
    body.node,
    note,
  );
  return list;
}
