// What is known of every queue: the stream says what changes, `/v1/queues` adds what the stream does not have (sparklines, percentiles,
// workers)
// and the queues that are idle. Kept from screen to screen, so that a list is there at once.

import { get, path, query } from './api.js';
import { remember } from './bounded.js';
import * as live from './live.js';

/** @typedef {import('./api.js').Api<'Queue'>} Queue */
/** @typedef {import('./api.js').Api<'QueuesPage'>} QueuesPage */

/**
 * @typedef {{queue: string, counts: live.LiveQueue['counts'], paused: boolean, oldest?: string, isAbout: boolean, pushed: number, finished: number, failed: number,
 *   attention: string[], figures?: any, at: number}} Row `at`: when its figures of the list were read, 0 if they were not
 */

const NONE = { ready: 0, scheduled: 0, reserved: 0, blocked: 0, dead: 0, done: 0 };
/** More names than this are not listed; the others are found by the beginning of their names. */
const NAMES_MAX = 20_000;
/** Reasons for attention, the most urgent first. */
export const REASONS = ['starved', 'stuck', 'blocked', 'failing', 'growing', 'dead', 'paused'];
/** Those that are no emergency. */
export const MILD = new Set(['growing', 'paused']);

/** What the list said of each queue, and when. @type {Map<string, {figures: any, paused: boolean, at: number}>} */
const listed = new Map();
/** Rows that were made, until something of theirs changes. @type {Map<string, Row>} */
const made = new Map();
/** The last rates of queues that have no jobs just now: they come and go with each job. @type {Map<string, live.LiveQueue>} */
const left = new Map();
/** What the stream has said of each queue. @type {Map<string, live.LiveQueue>} */
const told = new Map();

/** Grows with every change: who has seen this one has nothing to do. */
export let version = 0;

/** Whether a queue that the stream does not tell of had no jobs when rows were made. */
let wasWhole = false;

live.follow(new AbortController().signal, (changed, _, isNew) => {
  const isOther = wasWhole !== live.isWhole();
  wasWhole = live.isWhole();
  if (changed.size > 0 || isOther) version += 1;
  if (isNew || isOther || made.size > 2 * NAMES_MAX) made.clear();
  for (const name of changed) {
    made.delete(name);
    const queue = live.queues.get(name);
    const before = told.get(name);
    if (queue !== undefined) {
      told.set(name, queue);
      left.delete(name);
    } else if (before !== undefined) {
      told.delete(name);
      remember(left, name, before, NAMES_MAX);
    }
  }
});

/** The names of all queues that are known. @returns {Set<string>} */
export function names() {
  const all = new Set(live.queues.keys());
  for (const name of listed.keys()) all.add(name);
  return all;
}

/** @param {string} name @returns {Row} */
export function row(name) {
  let row = made.get(name);
  if (row === undefined) made.set(name, (row = make(name)));
  return row;
}

/** @param {string} name @returns {Row} */
function make(name) {
  const now = live.queues.get(name);
  const of = listed.get(name);
  const figures = of?.figures;
  const attention = now?.attention ?? figures?.attention?.map((/** @type {any} */ one) => one.reason) ?? [];
  // The stream does not have queues without jobs: then the list knows more.
  const rates = now?.rates_per_s ?? (figures === undefined ? left.get(name)?.rates_per_s : undefined);
  return {
    queue: name,
    counts: now?.counts ?? (figures === undefined || live.isWhole() ? NONE : figures.counts),
    paused: now?.paused ?? of?.paused ?? false,
    oldest: now?.oldest_ready_at,
    isAbout: now?.oldest_is_approximate === true,
    pushed: rates === undefined ? (figures?.rates_per_s.pushed ?? 0) : (rates.pushed ?? 0),
    finished: rates === undefined ? (figures?.rates_per_s.finished ?? 0) : (rates.committed ?? 0) + (rates.moved ?? 0),
    failed: rates === undefined ? (figures?.rates_per_s.failed ?? 0) : (rates.rolled_back ?? 0) + (rates.lapsed ?? 0),
    attention,
    figures,
    at: of?.at ?? 0,
  };
}

/** When queues were deleted on this page. @type {Map<string, number>} */
const deleted = new Map();
/** For how long a list that was asked for meanwhile may still have one of them, in milliseconds. */
const DELETED_MS = 10_000;

/** @param {string} name @param {{figures: any, paused: boolean, at: number}} of */
function list(name, of) {
  if (Date.now() - (deleted.get(name) ?? 0) < DELETED_MS) return;
  remember(listed, name, of, 2 * NAMES_MAX);
}

/** @param {(Queue & {figures?: any})[]} queues of a response */
function take(queues) {
  version += 1;
  for (const one of queues) {
    const figures = one.figures ?? listed.get(one.queue)?.figures;
    list(one.queue, { figures, paused: one.effective.paused, at: one.figures === undefined ? 0 : Date.now() });
    made.delete(one.queue);
  }
}

/**
 * Reads the figures of the first queues of an order. Returns what is common to the list.
 * @param {{sort?: string, prefix?: string, attention?: string, limit?: number}} ask @param {AbortSignal} signal
 */
export async function loadPage(ask, signal) {
  /** @type {QueuesPage} */
  const page = await get(query(path('queues'), { ...ask, figures: true }), signal);
  take(page.queues);
  return page;
}

/** Reads the figures of one queue. @param {string} name @param {AbortSignal} signal */
export async function loadOne(name, signal) {
  /** @type {QueuesPage} */
  const page = await get(query(path('queues'), { prefix: name, sort: 'name', limit: 1 }), signal);
  take(page.queues);
  if (page.queues[0]?.queue !== name && listed.delete(name)) made.delete(name);
}

/** Reads the names of all queues, those without jobs as well, and forgets those that are gone. @param {AbortSignal} signal */
export async function loadNames(signal) {
  /** @type {Set<string>} */ const found = new Set();
  let cursor;
  do {
    /** @type {QueuesPage} */
    const page = await get(query(path('queues'), { limit: 1000, cursor }), signal);
    for (const one of page.queues) {
      found.add(one.queue);
      const known = listed.get(one.queue);
      if (known === undefined) list(one.queue, { figures: undefined, paused: one.effective.paused, at: 0 });
      else known.paused = one.effective.paused;
    }
    cursor = page.cursor;
  } while (cursor !== undefined && found.size < NAMES_MAX);
  version += 1;
  if (cursor === undefined) for (const name of listed.keys()) if (!found.has(name)) forget(name);
  return cursor === undefined;
}

/**
 * Takes in whether a queue is paused, which the stream does not tell of a queue without jobs.
 * @param {string} name
 * @param {boolean} paused
 */
export function setPaused(name, paused) {
  const known = listed.get(name);
  if (known?.paused === paused) return;
  if (known === undefined) list(name, { figures: undefined, paused, at: 0 });
  else known.paused = paused;
  made.delete(name);
  version += 1;
}

/** @param {string} name */
export function forget(name) {
  version += 1;
  listed.delete(name);
  left.delete(name);
  made.delete(name);
}

/** Forgets a queue that was deleted just now. @param {string} name */
export function setDeleted(name) {
  remember(deleted, name, Date.now(), 1000);
  forget(name);
}
