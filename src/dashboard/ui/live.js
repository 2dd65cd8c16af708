// One stream of what changes (`/v1/events`) for the whole page: the figures of all queues as they are now, and whether they are.

import { get, path } from './api.js';
import { setAhead } from './format.js';

/**
 * @typedef {{queue: string, paused: boolean, oldest_ready_at?: string, oldest_is_approximate?: boolean, attention?: string[],
 *   rates_per_s?: Record<string, number>, counts: Record<'ready' | 'scheduled' | 'reserved' | 'blocked' | 'dead' | 'done', number>}} LiveQueue
 * @typedef {{kind: string, queue?: string, worker?: string, jobs?: number, at: string}} Happening
 */

/** @type {Map<string, LiveQueue>} The queues that have jobs. */
export const queues = new Map();
/** Whether the picture is complete, and how old it is. */
export const state = {
  /** @type {'connecting' | 'live' | 'lost'} */ connection: 'connecting',
  // When the last message came, on the clock of this machine.
  heardAt: 0,
  // When the connection was lost.
  lostAt: 0,
  // Queues that are not in the picture, since there are more than it takes.
  leftOut: 0,
  complete: false,
  // Whether queues of this key may be missing, for the same reason.
  isPart: false,
  // Whether the server has lost its store: the picture stays as it was.
  storeAway: false,
};
/** What the parts of a message have told so far: its last part tells the listeners. @type {Set<string>} */
let changed = new Set();
/** @type {Happening[]} */ let happened = [];
/** @typedef {(changed: Set<string>, happened: Happening[], isNew: boolean) => void} Listener */
/** @type {Set<Listener>} */
const listeners = new Set();
/** @type {EventSource | null} */
let source = null;
let retry = 0;
let failures = 0;

/**
 * Calls `then` after each message, with the names of the queues that it was about; at once, if there is a picture already. `isNew`: the whole picture
 * came anew, so that nobody has told what happened meanwhile.
 * @param {AbortSignal} signal @param {Listener} then
 */
export function follow(signal, then) {
  listeners.add(then);
  signal.addEventListener('abort', () => listeners.delete(then));
  if (state.heardAt > 0) then(new Set(queues.keys()), [], false);
}

/** The sums over all queues of the picture, kept with every message; rates in thousandths, since sums of fractions drift. */
/** @type {Record<string, number>} */ let counts = {};
/** @type {Record<string, number>} */ let milli = {};
/** The queue with the oldest ready job; undefined: to be looked for. @type {LiveQueue | null | undefined} */
let oldest;

/** The sum over all queues of the picture. @returns {{counts: Record<string, number>, rates: Record<string, number>}} */
export function totals() {
  const zero = { ready: 0, scheduled: 0, reserved: 0, blocked: 0, dead: 0, done: 0 };
  return { counts: { ...zero, ...counts }, rates: Object.fromEntries(Object.entries(milli).map(([of, n]) => [of, n / 1000])) };
}

/** What `/stats` has counted in all queues, while the picture leaves some out. @type {Record<string, number> | null} */
let counted = null;

/** Takes that. @param {Record<string, number>} next */
export function takeCounts(next) {
  if (state.leftOut === 0) return;
  counted = next;
  tell(new Set(), [], false);
}

/** How many jobs of all queues, or of those of this key, are in each state; null where it is not known yet. */
export function allCounts() {
  if (!state.complete) return null;
  return state.leftOut > 0 ? counted : totals().counts;
}

/** Whether all queues that have jobs are in the picture. */
export function isWhole() {
  return state.complete && state.leftOut === 0 && !state.isPart;
}

/** The queue whose oldest ready job has been ready for the longest time, if any has one. @returns {LiveQueue | null} */
export function oldestReady() {
  if (oldest === undefined) {
    oldest = null;
    for (const queue of queues.values()) oldest = older(oldest, queue);
  }
  return oldest;
}

/** @param {LiveQueue | null} a @param {LiveQueue} b @returns {LiveQueue | null} */
function older(a, b) {
  if (b.oldest_ready_at === undefined) return a;
  // Times of one form: as texts they are in the order of time.
  return a?.oldest_ready_at === undefined || b.oldest_ready_at < a.oldest_ready_at ? b : a;
}

/** Takes a queue in, in place of what was known of it. @param {LiveQueue} queue */
function put(queue) {
  const before = queues.get(queue.queue);
  if (before !== undefined) add(before, -1);
  add(queue, 1);
  queues.set(queue.queue, queue);
  if (oldest !== undefined) oldest = oldest?.queue === queue.queue ? undefined : older(oldest, queue);
}

/** @param {string} name */
function remove(name) {
  const before = queues.get(name);
  if (before === undefined) return;
  add(before, -1);
  queues.delete(name);
  if (oldest?.queue === name) oldest = undefined;
}

/** @param {LiveQueue} queue @param {1 | -1} sign */
function add(queue, sign) {
  /** @type {Record<string, number>} */ const of = queue.counts;
  for (const state in of) counts[state] = (counts[state] ?? 0) + sign * of[state];
  for (const event in queue.rates_per_s) milli[event] = (milli[event] ?? 0) + sign * Math.round(1000 * queue.rates_per_s[event]);
}

/** Whether nobody is logged in. */
let paused = false;
/** When the stream, or the server beside it, last showed that it is there. */
let provedAt = 0;
/** For how long an idle stream may be silent before the server is asked, in milliseconds: JavaScript does not see its comments. */
const SILENCE_MS = 5000;
/** For how long one that is lost may take to open before another is begun: what has not reached the server is never answered. */
const OPEN_MS = 15_000;
/** How often that is looked at, and how long the answer may take. */
const PROVE_MS = 2500;
const ANSWER_MS = 3000;
/**
 * For how long it may be silent before it is begun anew, though the server is there: that another connection works does not prove that this one does.
 * Where there is work it is never silent for so long.
 */
const ANEW_MS = 60_000;
/** When it was begun. */
let begunAt = 0;
/** Whether the server is being asked. */
let isAsked = false;

/** Connects, and stays connected while the page is seen. */
export function start() {
  document.addEventListener('visibilitychange', () => (document.hidden ? rest() : connect()));
  window.addEventListener('online', connect);
  setInterval(prove, PROVE_MS);
  if (!document.hidden) connect();
}

/** Ends the stream until `resume`: nobody is logged in. */
export function pause() {
  paused = true;
  rest();
}

/** Goes on. */
export function resume() {
  paused = false;
  connect();
}

/** Ends the stream where nobody looks: until it is there again the figures are not live. */
function rest() {
  stop();
  setConnection('connecting');
}

/** Ends the stream. */
function stop() {
  clearTimeout(retry);
  source?.close();
  source = null;
}

/** Begins the stream, if there is none. */
export function connect() {
  clearTimeout(retry);
  if (source !== null || paused || document.hidden) return;
  const stream = new EventSource('/v1/events');
  source = stream;
  provedAt = begunAt = Date.now();
  const message = (/** @type {MessageEvent} */ event) => source === stream && take(event.type, JSON.parse(event.data));
  stream.addEventListener('snapshot', message);
  stream.addEventListener('changes', message);
  stream.addEventListener('open', () => {
    provedAt = Date.now();
    failures = 0;
    setConnection('live');
  });
  stream.addEventListener('error', () => {
    if (source !== stream) return;
    provedAt = Date.now(); // it is not waiting any more
    again(stream.readyState === EventSource.CLOSED);
  });
}

/**
 * The stream is lost. A browser connects again by itself, unless it was refused: then it may be that the session has ended.
 * @param {boolean} refused @param {number} [since] when the server last showed that it was there
 */
function again(refused, since) {
  setConnection('lost', since);
  if (!refused) return;
  stop();
  failures += 1;
  retry = window.setTimeout(connect, Math.min(500 * 2 ** failures, 15_000));
  get(path('session')).catch(() => {});
}

/**
 * Asks whether the server is there, where its stream says nothing: a connection may be gone without either end being told, as when a machine sleeps.
 */
async function prove() {
  const stream = source;
  const since = Math.max(provedAt, state.heardAt);
  const patience = state.connection === 'lost' ? OPEN_MS : SILENCE_MS;
  if (stream === null || isAsked || document.hidden || Date.now() - since < patience) return;
  if (stream.readyState !== EventSource.OPEN) return again(true, since);
  isAsked = true;
  try {
    await get(path('session'), AbortSignal.timeout(ANSWER_MS));
    provedAt = Date.now();
  } catch (/** @type {any} */ error) {
    // A refusal of the server's own proves that it is there, unless it is about to end; what the stream has said meanwhile proves as much.
    if (error.status > 0 && error.code !== '' && error.code !== 'draining') provedAt = Date.now();
    else if (source === stream && state.heardAt <= since) again(true, since);
    return;
  } finally {
    isAsked = false;
  }
  if (source !== stream || Date.now() - Math.max(begunAt, state.heardAt) < ANEW_MS) return;
  stop();
  connect();
}

/** @param {'connecting' | 'live' | 'lost'} connection @param {number} [since] */
function setConnection(connection, since = Date.now()) {
  if (state.connection === connection) return;
  state.connection = connection;
  if (connection === 'lost') state.lostAt = since;
  if (connection === 'lost') state.storeAway = false;
  tell(new Set(), [], false);
}

/** @param {string} type @param {any} data */
function take(type, data) {
  if (type === 'snapshot') {
    if (data.part === 1) {
      for (const name of queues.keys()) changed.add(name);
      queues.clear();
      counts = {};
      milli = {};
      oldest = undefined;
      state.storeAway = false;
    }
    state.complete = !data.more;
    state.leftOut = 0;
    state.isPart = false;
  }
  // In `changes` they are there where they have changed.
  state.leftOut = data.left_out ?? state.leftOut;
  state.isPart = data.incomplete ?? state.isPart;
  if (state.leftOut === 0) counted = null;
  for (const queue of data.queues) {
    put(queue);
    changed.add(queue.queue);
  }
  for (const name of data.gone ?? []) {
    remove(name);
    changed.add(name);
  }
  state.heardAt = Date.now();
  compareClocks(Date.parse(data.at) - state.heardAt);
  state.connection = 'live';
  for (const one of data.happened ?? []) {
    if (one.kind === 'store_away') state.storeAway = true;
    if (one.kind === 'store_back') state.storeAway = false;
    happened.push({ ...one, at: data.at });
  }
  if (data.more) return;
  const [names, events] = [changed, happened];
  changed = new Set();
  happened = [];
  tell(names, events, type === 'snapshot');
}

/** How far the server's clock was ahead in the last messages; each was on its way for a while, so that the largest is the nearest. @type {number[]} */
let aheads = [];

/** @param {number} ahead */
function compareClocks(ahead) {
  aheads = [...aheads.slice(-9), ahead];
  setAhead(Math.max(...aheads));
}

/** @type {Listener} */
function tell(changed, happened, isNew) {
  for (const listener of listeners) {
    try {
      listener(changed, happened, isNew);
    } catch (error) {
      console.error(error);
    }
  }
}
