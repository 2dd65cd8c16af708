// Workers: whether they are there, and what each holds.
import { curl, del, get, path, query } from '../api.js';
import { registerButtons } from '../commands.js';
import { confirm } from '../dialog.js';
import { h, show, swap, text, toggle } from '../dom.js';
import * as format from '../format.js';
import { plain } from '../json.js';
import { bar, crumb, grid, leases, leave, loaded, orNothing, page, pager, shellLine } from '../parts.js';
import { link } from '../router.js';
import { asSeen, may } from '../session.js';
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

/**
 * A worker of the list; one without heartbeats is only known by what it holds, or by some of that.
 * @typedef {Pick<Worker, 'name' | 'reserved'> & Partial<Worker> & {isPart?: boolean}} Listed
 */

/** @param {Listed} worker @returns {[string, string]} */
function stateOf(worker) {
  if (worker.seen_at === undefined) return ['no heartbeats', 'warn'];
  return worker.silent ? ['silent', 'bad'] : ['alive', 'good'];
}

/** @param {Element} place @param {Listed} worker */
function setState(place, worker) {
  const [word, kind] = stateOf(worker);
  if (place.textContent !== word) swap(place, badge(word, kind));
}

/** How often the workers without heartbeats are looked for, and among how many reserved jobs. */
const UNSEEN_MS = 10_000;
const LOOKED_AT = 1000;

/**
 * Finds the workers that send no heartbeats among the reserved jobs: `/v1/workers` does not have them.
 * @param {AbortSignal} signal @returns {(seen: Set<string>) => Promise<Listed[]>}
 */
function unseenWorkers(signal) {
  let at = 0;
  let isPart = false;
  /** @type {Map<string, number>} */ let holding = new Map();
  return async (seen) => {
    if (Date.now() - at > UNSEEN_MS) {
      at = Date.now();
      try {
        const { jobs, cursor } = await get(query('/v1/jobs', { state: 'reserved', payload: 'none', limit: LOOKED_AT }), signal);
        isPart = cursor !== undefined;
        holding = new Map();
        for (const { worker } of jobs) if (worker !== undefined) holding.set(worker, (holding.get(worker) ?? 0) + 1);
      } catch (/** @type {any} */ error) {
        // A key of some queues does not search all of them; where the server cannot answer now the last ones stay.
        if (error.status === undefined) throw error;
      }
    }
    return [...holding].filter(([name]) => !seen.has(name)).map(([name, reserved]) => ({ name, reserved, isPart }));
  };
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
    key: (/** @type {Listed} */ one) => one.name,
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
          setState(is, next);
          setWhen(seen, next.seen_at);
          toggle(seen, 'bad', next.silent === true);
          text(held, `${format.count(next.reserved)}${next.isPart ? ' or more' : ''}`);
          const { slots: many = 0 } = next;
          show(slots.node, many > 0);
          slots.set(next.reserved / many);
          text(figures, many > 0 ? `${format.count(next.reserved)} of ${format.count(many)}` : '–');
          text(version, next.version === undefined ? '–' : plain(next.version));
          text(timeout, format.duration(next.timeout_ms));
        },
      };
    },
  });
  const none = empty(
    asSeen('There are no workers.'),
    'A worker that sends heartbeats, or holds jobs that it reserved by its name, is listed here. Jobs of one that falls silent are released. ',
    may('consume') && shellLine(curl('POST', '/v1/workers/encoder-1/heartbeat', '{"slots": 4, "version": "1.2"}')),
  );
  const body = orNothing(table, none);
  const pages = pager(context);
  const sum = h('p', { class: 'muted', role: 'status' });
  const unseen = unseenWorkers(signal);
  const list = loaded(
    signal,
    2000,
    /** @returns {Promise<{workers: Listed[], cursor?: string}>} */ async () => {
      /** @type {WorkersPage} */
      const answer = await get(query(at(), { limit: 200, cursor: params.get('cursor') }), signal);
      // On the only page: on one of several it is not known which are on the others.
      const isAll = answer.cursor === undefined && !params.get('cursor');
      const others = isAll ? await unseen(new Set(answer.workers.map(({ name }) => name))) : [];
      return { workers: [...answer.workers, ...others], cursor: answer.cursor };
    },
    ({ workers: all, cursor }) => {
      // The silent ones first: there is something to do about them.
      body.set([...all.filter((one) => one.silent), ...all.filter((one) => !one.silent)]);
      const silent = all.filter((one) => one.silent).length;
      const holding = all.reduce((n, one) => n + one.reserved, 0);
      text(
        sum,
        all.length === 0
          ? ''
          : `${format.plural(all.length, 'worker')}${cursor ? ' on this page' : ''}, ${silent === 0 ? 'none silent' : `${format.count(silent)} silent`}; they hold ${all.some((one) => one.isPart) ? 'at least ' : ''}${format.plural(holding, 'job')}.`,
      );
      pages.set(cursor);
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
    columns: ['Job', 'Queue', { label: 'Attempt', class: 'num' }, { label: 'Held for', class: 'num' }, 'Lease left'],
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
  let holds = 0;
  const one = loaded(
    signal,
    1000,
    /** @returns {Promise<{worker: Listed, held: JobsPage}>} */ async () => {
      const [found, held] = await Promise.all([
        get(at(name), signal).catch((/** @type {any} */ error) => {
          if (error.status !== 404) throw error;
          return error;
        }),
        get(query(at(name, 'jobs'), { limit: 200, payload: 'none' }), signal),
      ]);
      // One without heartbeats is there all the same while it holds jobs.
      if (found.status === 404 && held.jobs.length === 0) throw found;
      return { worker: found.status === 404 ? { name, reserved: held.jobs.length } : found, held };
    },
    ({ worker: of, held }) => {
      holds = of.reserved;
      const beats = of.seen_at !== undefined;
      const most = beats ? format.count(of.reserved) : `${format.count(of.reserved)} or more`;
      setState(is, of);
      setWhen(seen, of.seen_at);
      if (!beats) text(seen, 'none lately');
      text(version, of.version === undefined ? 'not told' : plain(of.version));
      text(slots, of.slots === undefined ? 'not told' : format.count(of.slots));
      text(timeout, beats ? `${format.duration(of.timeout_ms)} without a heartbeat` : 'the lease of each: it sends no heartbeats');
      text(reserved, held.cursor && !beats ? `${most} jobs` : format.plural(of.reserved, 'job'));
      body.set(held.jobs);
      text(more, held.cursor ? `The first 200 of ${most}.` : '');
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
  const bin = button('Remove…', () => remove(name, holds, () => leave('workers')), { class: 'danger' });
  const same = button('Copy as curl', () => copy(curl('GET', at(name))), { class: 'quiet' });
  const actions = h('div', { class: 'row' }, ...one.acts([same, may('operate') && bin]));
  registerButtons(signal, actions, name);
  return {
    title: name,
    node: page(
      crumb('workers', 'Workers', name),
      [h('a', { class: 'button', href: link(['jobs'], { worker: name }) }, 'All jobs it had last'), actions],
      one.node,
    ),
  };
}
