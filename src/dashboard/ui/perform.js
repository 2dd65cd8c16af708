// Does to one job what can be done, and says what happened, in words.

import { get, onceAnswered, path, send } from './api.js';
import { plain } from './json.js';

/**
 * Does it. A job is deleted as what it was shown as: another client may have redriven it meanwhile.
 * @param {import('./acts.js').Act} one @param {{id: string, state: string, unreadable?: string}} job @param {import('./acts.js').Wanted} [wanted] @returns {Promise<any>}
 */
export async function perform(one, { id, state, unreadable }, wanted = {}) {
  if (one.name === 'delete' && !unreadable) {
    const { state: now } = await get(path('jobs', id));
    if (now !== state) throw new Error(`The job is ${now} by now, not ${state}: nothing was deleted.`);
  }
  const { method, at, body } = one.call(id, wanted);
  const call = async (/** @type {Record<string, string>} */ headers) => (await send(method, at, { body, headers })).json();
  return one.name === 'replay' ? onceAnswered(`replay ${id}`, call) : call({});
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
