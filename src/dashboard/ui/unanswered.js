// Calls that must not happen twice, and were not answered.

import { once } from './api.js';
import { remember } from './bounded.js';

/** The keys of calls that were not answered, and when they were made or that was known. @type {Map<string, {key: Record<string, string>, at: number}>} */
const unanswered = new Map();
/** For how long one is kept, in milliseconds: who makes the same call later wants it to happen again, and the server remembers its answer for a day. */
const KEPT_MS = 60_000;

/**
 * Makes a call that must not happen twice. Its key is kept for a while where no answer has come, so that who tries again after a lost connection
 * does not do it a second time.
 * @template T
 * @param {string} what names the call @param {(headers: Record<string, string>) => Promise<T>} call @returns {Promise<T>}
 */
export async function onceAnswered(what, call) {
  const key = (isUnanswered(what) ? unanswered.get(what)?.key : undefined) ?? once();
  const keep = () => remember(unanswered, what, { key, at: Date.now() }, 1000);
  keep();
  try {
    const answer = await call(key);
    unanswered.delete(what);
    return answer;
  } catch (/** @type {any} */ error) {
    if (error.status >= 400 && error.status < 500 && error.status !== 409) unanswered.delete(what);
    else keep();
    throw error;
  }
}

/** Whether a call of this name was made lately, and not answered. @param {string} what */
export function isUnanswered(what) {
  const kept = unanswered.get(what);
  return kept !== undefined && Date.now() - kept.at < KEPT_MS;
}
