// A semaphore: who holds it, who waits, its capacity.
import { del, get, path, put, query } from '../api.js';
import { registerButtons } from '../commands.js';
import { ask, confirm, field } from '../dialog.js';
import { h, show, text, toggle } from '../dom.js';
import * as format from '../format.js';
import { bar, crumb, grid, leases, leave, loaded, orNothing, page } from '../parts.js';
import { link } from '../router.js';
import { may } from '../session.js';
import { button, card, empty, jobLink, queueLink, toast, when } from '../widgets.js';

/** @typedef {import('../api.js').Api<'Job'>} Job */
/** @typedef {import('../api.js').Api<'JobsPage'>} JobsPage */
/** @typedef {import('../api.js').Api<'Semaphore'>} Semaphore */
/** @typedef {import('../api.js').Api<'SemaphoreHolder'>} SemaphoreHolder */

/** How many blocked jobs are looked at for those that wait for one semaphore. */
const LOOKED_AT = 2000;

const at = (/** @type {string[]} */ ...parts) => path('semaphores', ...parts);

/** Asks for a capacity and stores it. @param {string} [name] @param {number} [capacity] @param {number} [held] */
export function edit(name, capacity, held = 0) {
  const title = name === undefined ? 'New semaphore' : `Capacity of ${name}`;
  const of = h('input', {
    name: 'name',
    required: true,
    maxlength: '128',
    pattern: '[A-Za-z0-9][A-Za-z0-9._:\\-]*',
    autocomplete: 'off',
    spellcheck: 'false',
    autofocus: true,
    title: '1 to 128 of A-Z a-z 0-9 . _ : -, the first a letter or a digit',
  });
  const n = h('input', {
    type: 'number',
    name: 'capacity',
    min: '1',
    max: '1000000',
    step: '1',
    required: true,
    value: String(capacity ?? 1),
  });
  return ask({
    title,
    action: 'Save',
    body: [
      name === undefined
        ? field('Name', of, 'Jobs name it in “semaphores”: such a job is delivered only while fewer jobs than its capacity hold it.')
        : null,
      field(
        'Capacity',
        n,
        held > 0
          ? `How many jobs may hold it at once. ${format.plural(held, 'job holds', 'jobs hold')} it now: those keep it, also where this is less.`
          : 'How many jobs may hold it at once, across all queues.',
      ),
    ].filter(Boolean),
    submit: async () => {
      if (name === undefined) await mustBeNew(of.value);
      const kept = await put(at(name ?? of.value), { capacity: Number(n.value) });
      toast(`${name ?? of.value}: at most ${format.plural(Number(n.value), 'job')} at once`);
      return kept;
    },
  });
}

/** A new semaphore must not change the capacity of another one. @param {string} name */
async function mustBeNew(name) {
  try {
    await get(at(name));
  } catch (/** @type {any} */ error) {
    if (error.status === 404) return;
    throw error;
  }
  throw new Error(`There is a semaphore of the name ${name} already.`);
}

/** @param {string} name @param {() => void} then */
function remove(name, then) {
  return confirm({
    title: `Delete ${name}?`,
    action: 'Delete the semaphore',
    word: name,
    text: 'That is refused while a job needs it: one that waits, is scheduled, reserved or dead.',
    submit: async () => {
      await del(at(name));
      toast(`${name} is deleted`);
      then();
    },
  });
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function semaphore(context) {
  const { signal } = context;
  const name = context.parts[1];
  const used = bar(`Held of ${name}`);
  const held = h('span', { class: 'left strong' });
  const waits = h('span');
  const lease = leases(signal);
  const holders = grid({
    caption: `Jobs that hold ${name}`,
    columns: ['Job', 'Queue', 'Worker', 'Lease left'],
    key: (/** @type {SemaphoreHolder} */ one) => one.id,
    href: (one) => link(['jobs', one.id]),
    make: (one) => {
      const shown = lease(one.id);
      return {
        cells: [
          jobLink(one.id),
          queueLink(one.queue),
          one.worker ? h('a', { href: link(['workers', one.worker]), class: 'name' }, one.worker) : '–',
          shown.node,
        ],
        set: (next) => shown.set(next.reserved_until, next.started_at),
      };
    },
  });
  const holding = orNothing(holders, empty('No job holds it.'));
  const cut = h('p', { class: 'muted' });
  /** @type {Semaphore} */ let now;
  const one = loaded(
    signal,
    1000,
    /** @returns {Promise<Semaphore>} */ () => get(at(name), signal),
    (answer) => {
      now = answer;
      used.set(answer.held / answer.capacity);
      text(held, `${format.count(answer.held)} of ${format.count(answer.capacity)} held`);
      text(waits, answer.waiting === 0 ? 'no job waits' : `${format.plural(answer.waiting, 'job waits', 'jobs wait')}`);
      toggle(waits, 'warn', answer.waiting > 0);
      holding.set(answer.holders ?? []);
      text(
        cut,
        answer.held > (answer.holders?.length ?? 0)
          ? `The ${format.count(answer.holders?.length)} whose leases end first of ${format.count(answer.held)}.`
          : '',
      );
    },
    h('div', { class: 'card row' }, used.node, held, waits),
    card('Holders', holding.node, cut),
    card('Waiting line', waitingLine(signal, name)),
  );
  const change = button('Capacity', async () => {
    if (await edit(name, now.capacity, now.held)) one.again();
  });
  const bin = button('Delete…', () => remove(name, () => leave('limits')), { class: 'danger' });
  const actions = h('div', { class: 'row' }, ...one.acts(may('operate') ? [change, bin] : []));
  registerButtons(signal, actions, name);
  return { title: name, node: page(crumb('limits', 'Limits', name), [actions], one.node) };
}

/** The jobs that wait, in their order, as far as they are found among the blocked ones. @param {AbortSignal} signal @param {string} name */
function waitingLine(signal, name) {
  const table = grid({
    caption: `Jobs that wait for ${name}`,
    columns: [{ label: 'Place', class: 'num' }, 'Job', 'Queue', { label: 'Priority', class: 'num' }, { label: 'Due', class: 'num' }],
    key: (/** @type {Job & {place: number}} */ job) => job.id,
    href: (job) => link(['jobs', job.id]),
    make: (job) => {
      const place = h('span');
      return {
        cells: [place, jobLink(job.id), queueLink(job.queue), String(job.priority), when(job.run_at)],
        set: (next) => text(place, format.count(next.place)),
      };
    },
  });
  const note = h('p', { class: 'muted' });
  const list = loaded(
    signal,
    5000,
    async () => {
      const { waiting } = await get(at(name), signal);
      if (waiting === 0) return { jobs: [], looked: 0, complete: true, waiting };
      const jobs = [];
      let cursor;
      let looked = 0;
      do {
        /** @type {JobsPage} */
        const answer = await get(query(path('jobs'), { state: 'blocked', payload: 'none', limit: 1000, cursor }), signal);
        jobs.push(...answer.jobs.filter((/** @type {Job} */ job) => job.waits_for === name));
        looked += answer.scanned;
        cursor = answer.cursor;
      } while (cursor !== undefined && looked < LOOKED_AT);
      jobs.sort((a, b) => b.priority - a.priority || Date.parse(a.run_at) - Date.parse(b.run_at));
      return { jobs, looked, complete: cursor === undefined, waiting };
    },
    ({ jobs, looked, complete, waiting }) => {
      table.set(jobs.slice(0, 100).map((/** @type {Job} */ job, /** @type {number} */ n) => ({ ...job, place: n + 1 })));
      show(table.node, jobs.length > 0);
      const rest = waiting - jobs.length;
      const beyond = complete ? '' : `, or not among the ${format.count(looked)} blocked jobs that were looked at`;
      const more =
        rest > 0 ? ` ${format.plural(rest, 'more job waits', 'more jobs wait')}: ready ones that were not tried yet${beyond}.` : '';
      const first = jobs.length > 100 ? ` The first 100 of ${format.count(jobs.length)}.` : '';
      const isNone = jobs.length === 0 && rest <= 0;
      text(note, isNone ? 'No job waits.' : `By priority, then by the time since which a job is due.${first}${more}`);
    },
    table.node,
    note,
  );
  return list.node;
}
