// Does to one job what can be done, and says what happened, in words.

import { answerOf, get, path } from './api.js';
import { plain } from './json.js';
import { isUnanswered, onceAnswered } from './unanswered.js';

/** What is done to a job only as it was shown. */
const AS_SHOWN = ['delete', 'cancel', 'release', 'move'];
/** What the server does once for each `Idempotency-Key`. */
const ONCE = ['replay', 'move'];

/**
 * Does it.
 * @param {import('./acts.js').Act} one @param {Shown} job @param {import('./acts.js').Wanted} [wanted] @returns {Promise<any>}
 */
export async function perform(one, job, wanted = {}) {
  const { method, at, body } = one.call(job.id, wanted);
  const what = `${one.name} ${job.id} ${JSON.stringify(body)}`;
  if (AS_SHOWN.includes(one.name) && !job.unreadable && !isUnanswered(what)) await mustBeAsShown(job);
  const call = (/** @type {Record<string, string>} */ headers) => answerOf(method, at, { body, headers });
  return ONCE.includes(one.name) ? onceAnswered(what, call) : call({});
}

/** @typedef {{id: string, state: string, queue?: string, attempt?: number, unreadable?: string}} Shown a job as it was shown */

/**
 * Refuses what would be done to another job than was shown: a worker may have finished it, and another one taken it, while somebody was asked. A cancel
 * would delete the result of one that is done.
 * @param {Shown} job
 */
async function mustBeAsShown({ id, state, queue, attempt }) {
  const now = await get(path('jobs', id));
  if (now.state !== state) throw new Error(`The job is ${now.state} by now, not ${state}: nothing was done.`);
  if (queue !== undefined && now.queue !== queue) throw new Error(`The job is in ${plain(now.queue)} by now: nothing was done.`);
  if (state === 'reserved' && attempt !== undefined && now.attempt !== attempt)
    throw new Error('Another worker has the job by now: nothing was done.');
}

/** What happened, in words. @param {import('./acts.js').Act} one @param {any} result what the API returned */
export function outcome(one, result) {
  if (one.name === 'replay') return `Pushed again as ${result.id}.`;
  if (one.name === 'cancel') return result.deleted ? 'The job is removed.' : 'Its worker is asked to stop.';
  if (one.name === 'move') return `The job is in ${plain(result.queue)} now, ${result.state}.`;
  if (one.name === 'release' && result.state === 'removed') return 'The job is removed: its cancellation had been requested.';
  if (one.name === 'redrive' || one.name === 'retry' || one.name === 'run')
    return `The job is ${result.state}${result.queue ? ` in ${plain(result.queue)}` : ''}.`;
  return `The job ${one.done}.`;
}
