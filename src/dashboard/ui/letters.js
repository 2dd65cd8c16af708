// Dead letters that lie in dead-letter queues: they died elsewhere, are ready there, and mostly have no consumers. They wait for a person.

import { answerOf, get, path, query } from './api.js';
import { may } from './session.js';

/** @typedef {import('./need.js').Need} Need */

/** The states in which one waits. */
export const WAITS = 'ready,scheduled,blocked';
/** How many are looked at for their errors and their number; more are counted by a dry run. */
const LOOKED_AT = 100;
/** So many of the first jobs of a queue tell what it has. */
const HEAD = 10;
/** For how long what a queue has is taken as it was read, in milliseconds. */
const KNOWN_MS = 30_000;

/** @typedef {{count: number, isAll: boolean, errors: {error: string, at: string}[], from: string[]}} Letters `isAll`: there are no more than `count`; `errors`: the
 *   last ones, each once */

/** Looks at the dead letters of a queue. @param {string} queue @param {AbortSignal} signal @returns {Promise<Letters>} */
export async function lettersOf(queue, signal) {
  const search = { queue, dead_lettered: true, state: WAITS, order: 'newest', payload: 'none', limit: LOOKED_AT };
  /** @type {{jobs: import('./json.js').Job[], complete: boolean, cursor?: string}} */
  const { jobs, cursor } = await get(query('/v1/jobs', search), signal);
  const origins = jobs.flatMap(({ dead_lettered_from: from }) => (from ? [from] : []));
  origins.sort((a, b) => (a.at < b.at ? 1 : -1));
  const errors = new Map(origins.toReversed().map(({ error = '', at }) => [error, { error, at }]));
  const found = {
    count: jobs.length,
    isAll: cursor === undefined,
    errors: [...errors.values()].toReversed(),
    from: [...new Set(origins.map(({ queue: of }) => of))].sort(),
  };
  if (found.isAll || !may('operate') || !may('push')) return found;
  const counted = await answerOf('POST', path('operations'), {
    body: { filter: { queue, dead_lettered: true }, action: 'redrive', dry_run: true },
    changes: false,
  });
  return { ...found, count: Math.max(found.count, counted.matched), isAll: counted.complete };
}

/** What was found, and when. @type {Map<string, {at: number, is: boolean}>} */
const known = new Map();

/** Whether the jobs that are ready first in a queue have died elsewhere. @param {string} queue @param {AbortSignal} signal */
export async function hasLetters(queue, signal) {
  const last = known.get(queue);
  if (last !== undefined && Date.now() - last.at < KNOWN_MS) return last.is;
  const { jobs } = await get(query('/v1/jobs', { queue, state: 'ready', order: 'oldest', payload: 'none', limit: HEAD }), signal);
  const is = jobs.length > 0 && jobs.every((/** @type {any} */ job) => job.dead_lettered_from !== undefined);
  if (known.size > 1000) known.clear();
  known.set(queue, { at: Date.now(), is });
  return is;
}

/** Whether that was found when it was last looked. @param {string} queue */
export function hadLetters(queue) {
  return known.get(queue)?.is === true;
}

/**
 * Why a queue needs somebody, where nobody takes its jobs: of dead letters that is no fault of workers.
 * @param {string} queue @param {Need} need @param {AbortSignal} signal @returns {Promise<Need>}
 */
export async function judged(queue, need, signal) {
  if (need.reason !== 'starved') return need;
  const is = await hasLetters(queue, signal).catch(() => false);
  return is ? letterNeed(need.jobs, need.since) : need;
}

/** @param {number} jobs @param {string} [since] @returns {Need} */
export function letterNeed(jobs, since) {
  const [are, they, wait] = jobs === 1 ? ['job lies', 'it', 'waits'] : ['jobs lie', 'they', 'wait'];
  return {
    reason: 'dead letters',
    jobs,
    since,
    detail: `${jobs} ${are} in this dead-letter queue: ${they} died elsewhere, and ${wait} for somebody`,
    next_step: 'See the errors, mend the cause, and redrive: each job returns to the queue where it died.',
  };
}
