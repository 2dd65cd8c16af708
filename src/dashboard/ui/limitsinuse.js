// How much of its limits a queue uses now: reserved jobs, the rate, the most jobs, semaphores.

import { get, path, query } from './api.js';
import { attr, each, h, show, text, toggle } from './dom.js';
import * as format from './format.js';
import { every, link } from './router.js';

/** So many jobs of a state are looked at for the semaphores that they need. */
const LOOKED_AT = 30;
const READ_MS = 5000;

/** @typedef {{id: string, label: string, used: number, most: number, words: string, to?: string, hint?: string}} Use */

/** @param {string} queue @param {AbortSignal} signal */
export function limitsInUse(queue, signal) {
  const list = h('ul', { class: 'meters' });
  const none = h('p', { class: 'muted' }, 'Loading');
  const node = h('section', { class: 'card', 'aria-label': 'Limits in use' }, h('h2', null, 'Limits in use'), none, list);
  const set = each(list, (/** @type {Use} */ use) => use.id, meter);
  /** @type {any} */ let settings = null;
  /** @type {any} */ let stats = null;
  /** @type {any[]} */ let semaphores = [];
  const draw = () => {
    if (settings === null || stats === null) return;
    const uses = [...ofQueue(settings, stats), ...semaphores.map(ofSemaphore)];
    set(uses);
    show(none, uses.length === 0);
    text(none, 'The queue has no limits: its settings may set some, and jobs may need semaphores.');
  };
  every(signal, READ_MS, async () => {
    try {
      semaphores = await findSemaphores(queue, signal);
    } catch {
      /* the figures above say that the server cannot be reached, or this key may not ask */
    }
    draw();
  });
  return {
    node,
    /** @param {any} next */ settings: (next) => {
      settings = next;
      draw();
    },
    /** @param {any} next */ stats: (next) => {
      stats = next;
      draw();
    },
  };
}

/** @param {any} settings @param {any} stats @returns {Use[]} */
function ofQueue({ max_reserved: most, max_jobs: jobs, rate }, { counts, rates_per_s: rates }) {
  /** @type {Use[]} */ const uses = [];
  if (most !== undefined) {
    uses.push({
      id: 'reserved',
      label: 'Reserved',
      used: counts.reserved,
      most: Number(most),
      words: `${format.count(counts.reserved)} of ${format.count(Number(most))}`,
    });
  }
  if (rate !== undefined) {
    const window = rate.per_ms / 1000;
    const used = rates.reserved * window;
    uses.push({
      id: 'rate',
      label: 'Rate',
      used,
      most: rate.limit,
      words: `${format.short(used)} of ${format.count(rate.limit)} per ${format.per(rate.per_ms)}`,
      hint: 'Deliveries, averaged over the last minute',
    });
  }
  if (jobs !== undefined) {
    const unfinished = counts.ready + counts.scheduled + counts.reserved + counts.blocked;
    uses.push({
      id: 'jobs',
      label: 'Jobs',
      used: unfinished,
      most: Number(jobs),
      words: `${format.count(unfinished)} of ${format.count(Number(jobs))}`,
      hint: 'Unfinished jobs; when it is full, pushes are refused',
    });
  }
  return uses;
}

/** @param {any} semaphore @returns {Use} */
function ofSemaphore({ name, capacity, held, waiting }) {
  return {
    id: `semaphore ${name}`,
    label: `semaphore ${name}`,
    used: held,
    most: capacity,
    to: link(['limits', name]),
    words: `${format.count(held)} of ${format.count(capacity)} held${waiting > 0 ? `, ${format.count(waiting)} wait` : ''}`,
    hint: 'A semaphore: all queues share it',
  };
}

/** The semaphores that jobs of the queue need: of those that are first in each state. @param {string} queue @param {AbortSignal} signal */
async function findSemaphores(queue, signal) {
  const pages = await Promise.all(
    ['reserved', 'blocked', 'ready'].map((state) =>
      get(query(path('queues', queue, 'jobs'), { state, payload: 'none', order: 'oldest', limit: LOOKED_AT }), signal),
    ),
  );
  const names = new Set(pages.flatMap(({ jobs }) => jobs.flatMap((/** @type {any} */ job) => job.semaphores ?? [])));
  return Promise.all([...names].sort().map((name) => get(path('semaphores', name), signal)));
}

function meter() {
  const label = h('span', { class: 'cut' });
  const name = h('a', { class: 'name cut', hidden: true });
  const words = h('span', { class: 'num' });
  const used = h('i');
  const bar = h('div', { class: 'meter', role: 'meter', 'aria-valuemin': 0 }, used);
  return {
    node: h('li', null, h('div', { class: 'cut' }, label, name), words, bar),
    set: (/** @type {Use} */ use) => {
      text(label, use.label);
      show(label, use.to === undefined);
      show(name, use.to !== undefined);
      if (use.to !== undefined) {
        text(name, use.label);
        attr(name, 'href', use.to);
      }
      attr(label, 'title', use.hint);
      attr(name, 'title', use.hint);
      text(words, use.words);
      const share = use.most > 0 ? Math.min(use.used / use.most, 1) : 1;
      toggle(bar, 'full', share >= 1);
      used.style.setProperty('width', `${100 * share}%`);
      attr(bar, 'aria-label', use.label);
      attr(bar, 'aria-valuemax', use.most);
      attr(bar, 'aria-valuenow', Math.min(Math.round(use.used * 100) / 100, use.most));
      attr(bar, 'aria-valuetext', use.words);
    },
  };
}
