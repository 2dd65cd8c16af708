// Workers: whether they are there, and what each holds.
import { curl, del, get, path, query } from '../api.js';
import { registerCommands } from '../commands.js';
import { confirm } from '../dialog.js';
import { h, show, swap, text, toggle } from '../dom.js';
import * as format from '../format.js';
import { plain } from '../json.js';
import { bar, crumb, grid, leases, leave, loaded, orNothing, page, pager, shellLine } from '../parts.js';
import { link } from '../router.js';
import { may } from '../session.js';
import { badge, button, card, copy, empty, facts, jobLink, queueLink, setWhen, toast, when } from '../widgets.js';

/** @typedef {import('../api.js').Api<'Job'>} Job */
/** @typedef {import('../api.js').Api<'JobsPage'>} JobsPage */
/** @typedef {import('../api.js').Api<'Worker'>} Worker */
/** @typedef {import('../api.js').Api<'WorkersPage'>} WorkersPage */

const at = (/** @type {string[]} */ ...parts) => path('workers', ...parts);

/** How often a removal is repeated while the worker still holds jobs. */
const REPEATS = 20;

/** @param {string} name @param {number} held @param {() => void} then */
function remove(name, held, then) {
  return confirm({
    title: `Remove ${name}?`,
    action: 'Remove the worker',
    word: name,
    text:
      `${held === 0 ? 'It holds no jobs.' : `Its ${format.plural(held, 'job')} are released at once: each is due again, that delivery counts as a failed attempt, and one that is out of attempts is dead.`}` +
      ' If the worker still runs, what it commits later is rejected; its next heartbeat brings it back to this list.',
    submit: async () => {
      let released = 0;
      for (let n = 0; n < REPEATS; n += 1) {
        const { affected, more } = await del(at(name));
        released += affected;
        if (!more) break;
      }
      toast(`${name} is removed, and ${format.plural(released, 'job is', 'jobs are')} released`);
      then();
    },
  });
}

/** @param {Worker} worker */
function state(worker) {
  return worker.silent ? badge('silent', 'bad') : badge('alive', 'good');
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function workers(context) {
  const { signal } = context;
  let { params } = context;
  const table = grid({
    caption: 'Workers',
    columns: [
      'Worker',
      { label: 'State', class: '' },
      { label: 'Last heartbeat', class: 'num' },
      { label: 'Holds', class: 'num' },
      { label: 'Slots in use', class: 'wide opt' },
      { label: 'Version', class: 'opt' },
      { label: 'Timeout', class: 'num opt' },
    ],
    key: (/** @type {Worker} */ one) => one.name,
    href: (one) => link(['workers', one.name]),
    make: (one) => {
      const is = h('span');
      const seen = when(one.seen_at);
      const held = h('span');
      const slots = bar(`Slots of ${one.name}`);
      const figures = h('span', { class: 'left' });
      const slotted = h('span', { class: 'leased' }, slots.node, figures);
      const version = h('span', { class: 'any' });
      const timeout = h('span');
      return {
        cells: [h('a', { class: 'name', href: link(['workers', one.name]) }, one.name), is, seen, held, slotted, version, timeout],
        set: (next) => {
          if (is.textContent !== (next.silent ? 'silent' : 'alive')) swap(is, state(next));
          setWhen(seen, next.seen_at);
          toggle(seen, 'bad', next.silent);
          text(held, format.count(next.reserved));
          const { slots: many = 0 } = next;
          show(slotted, many > 0);
          slots.set(next.reserved / many);
          text(figures, `${format.count(next.reserved)} of ${format.count(many)}`);
          text(version, next.version === undefined ? '–' : plain(next.version));
          text(timeout, format.duration(next.timeout_ms));
        },
      };
    },
  });
  const none = empty(
    'No worker has sent a heartbeat.',
    'A worker that gives its name when it reserves, and sends heartbeats, is listed here; its jobs are released when it falls silent. ',
    shellLine(curl('POST', '/v1/workers/encoder-1/heartbeat', '{"slots": 4, "version": "1.2"}')),
  );
  const body = orNothing(table, none);
  const pages = pager(context);
  const sum = h('p', { class: 'muted', role: 'status' });
  const list = loaded(
    signal,
    2000,
    /** @returns {Promise<WorkersPage>} */ () => get(query(at(), { limit: 200, cursor: params.get('cursor') }), signal),
    (answer) => {
      // The silent ones first: there is something to do about them.
      body.set([
        ...answer.workers.filter((/** @type {Worker} */ one) => one.silent),
        ...answer.workers.filter((/** @type {Worker} */ one) => !one.silent),
      ]);
      const silent = answer.workers.filter((/** @type {Worker} */ one) => one.silent).length;
      const holding = answer.workers.reduce((/** @type {number} */ n, /** @type {Worker} */ one) => n + one.reserved, 0);
      text(
        sum,
        answer.workers.length === 0
          ? ''
          : `${format.plural(answer.workers.length, 'worker')}${answer.cursor ? ' on this page' : ''}, ${silent === 0 ? 'none silent' : `${format.count(silent)} silent`}; they hold ${format.plural(holding, 'job')}.`,
      );
      pages.set(answer.cursor);
    },
    h('section', { class: 'card stack', 'aria-label': 'Workers' }, sum, body.node),
    pages.node,
  );
  return {
    title: 'Workers',
    node: page('Workers', [], list.node),
    update: (next) => {
      params = next.params;
      list.again();
    },
  };
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function worker(context) {
  const { signal } = context;
  const name = context.parts[1];
  const is = h('span');
  const seen = when(undefined);
  const [version, slots, timeout, reserved] = [1, 2, 3, 4].map(() => h('span', { class: 'any' }));
  const lease = leases(signal);
  const table = grid({
    caption: `Jobs that ${name} holds`,
    columns: ['Job', 'Queue', { label: 'Attempt', class: 'num' }, { label: 'For', class: 'num' }, 'Lease'],
    key: (/** @type {Job} */ job) => job.id,
    href: (job) => link(['jobs', job.id]),
    make: (job) => {
      const shown = lease(job.id);
      const attempt = h('span');
      const since = h('span');
      const asked = badge('cancellation requested', 'warn');
      return {
        cells: [[jobLink(job.id), ' ', asked], queueLink(job.queue), attempt, since, shown.node],
        set: (next) => {
          shown.set(next.reserved_until, next.started_at);
          text(attempt, next.max_attempts === 0 ? String(next.attempt) : `${next.attempt} of ${next.max_attempts}`);
          text(
            since,
            next.started_at ? format.duration(Math.max(0, Math.floor((format.now() - Date.parse(next.started_at)) / 1000) * 1000)) : '–',
          );
          show(asked, next.cancel_requested === true);
        },
      };
    },
  });
  const body = orNothing(table, empty('It holds no jobs.'));
  const more = h('p', { class: 'muted' });
  /** @type {Worker | undefined} */ let now;
  const one = loaded(
    signal,
    1000,
    /** @returns {Promise<{worker: Worker, held: JobsPage}>} */ async () => {
      const [worker, held] = await Promise.all([
        get(at(name), signal),
        get(query(at(name, 'jobs'), { limit: 200, payload: 'none' }), signal),
      ]);
      return { worker, held };
    },
    ({ worker: of, held }) => {
      now = of;
      if (is.textContent !== (of.silent ? 'silent' : 'alive')) swap(is, state(of));
      setWhen(seen, of.seen_at);
      text(version, of.version === undefined ? 'not told' : plain(of.version));
      text(slots, of.slots === undefined ? 'not told' : format.count(of.slots));
      text(timeout, `${format.duration(of.timeout_ms)} without a heartbeat`);
      text(reserved, format.plural(of.reserved, 'job'));
      body.set(held.jobs);
      text(more, held.cursor ? `The first 200 of ${format.count(of.reserved)}.` : '');
    },
    card(
      'Worker',
      facts([
        ['State', is],
        ['Last heartbeat', seen],
        ['Holds', reserved],
        ['Slots', slots],
        ['Version', version],
        ['Its jobs are released after', timeout],
      ]),
    ),
    card('What it holds', body.node, more),
  );
  const bin = button('Remove…', () => remove(name, now?.reserved ?? 0, () => leave('workers')), { class: 'danger' });
  if (may('operate')) registerCommands(signal, [{ label: `Remove ${name}`, run: () => bin.click() }]);
  return {
    title: name,
    node: page(
      crumb('workers', 'Workers', name),
      [
        h('a', { class: 'button', href: link(['jobs'], { worker: name }) }, 'All jobs it had last'),
        button('Copy as curl', () => copy(curl('GET', at(name))), { class: 'quiet' }),
        may('operate') && bin,
      ],
      one.node,
    ),
  };
}
