// The public API, and nothing else: whatever this page does, curl can do.

import { user } from './session.js';

/**
 * What the API returns, by its names in openapi/tailback.json; `scripts/ui-check types` compares.
 * @template {keyof import('openapi').components['schemas']} Name
 * @typedef {import('openapi').components['schemas'][Name]} Api
 */

/** What is said where the server does not: a proxy may stand in front of it. @type {Record<number, string>} */
const SAID = {
  0: 'The server cannot be reached.',
  401: 'The session has ended: log in again.',
  403: 'This key does not allow that.',
  502: 'The proxy cannot reach the server (502).',
  503: 'The server cannot be reached at the moment (503).',
  504: 'The server took too long to respond (504).',
};

/** An error that the server does not explain. @param {number} status @param {boolean} changes whether it may be done all the same */
function unexplained(status, changes) {
  // What a proxy has not is not what the server has not.
  if ([403, 404, 410].includes(status)) return new Problem(502, { detail: `A proxy returned ${status} in place of the server.` });
  const isUnknown = changes && [0, 502, 504].includes(status);
  return new Problem(status, isUnknown ? { detail: `${SAID[status]} It may be done all the same: look before you repeat it.` } : null);
}

/** An error that the server explains (RFC 9457), or that it could not be reached (`status` 0). */
export class Problem extends Error {
  /** @param {number} status @param {any} body */
  constructor(status, body) {
    super(body?.detail ?? body?.title ?? SAID[status] ?? `The server returned ${status}.`);
    this.status = status;
    /** @type {string} */
    this.code = body?.code ?? '';
    /** Which field is wrong, where one is. @type {string | undefined} */
    this.pointer = body?.pointer;
    this.body = body;
    /** When to try again, as a header said. @type {number | undefined} */
    this.retryAfterMs = undefined;
  }
}

/** When to try again, in milliseconds, where an error says that. @param {any} error @returns {number | undefined} */
export function retryAfter(error) {
  return error?.body?.retry_after_ms ?? error?.retryAfterMs;
}

/** Called where a call is 401: the page shows the login. */
let unauthorized = () => {};

/** @param {() => void} then */
export function onUnauthorized(then) {
  unauthorized = then;
}

/**
 * Makes a path of parts: each is one segment, whatever is in it.
 * @param {...string} parts
 */
export function path(...parts) {
  return `/v1/${parts.map(encodeURIComponent).join('/')}`;
}

/**
 * Adds parameters; those without a value are left out, lists are repeated.
 * @param {string} at
 * @param {Record<string, any>} params
 */
export function query(at, params) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== '') search.append(name, String(one));
    }
  }
  const text = search.toString();
  return text === '' ? at : `${at}${at.includes('?') ? '&' : '?'}${text}`;
}

/** How long a GET may take, in milliseconds: a connection may be gone without this side being told. What may be large may take longer. */
const GET_MS = 30_000;
const LARGE_MS = 180_000;

/** @typedef {{body?: any, raw?: BodyInit, type?: string, headers?: Record<string, string>, signal?: AbortSignal, changes?: boolean}} Options */

/**
 * Sends a request. `body` is sent as JSON; `raw` as it is. `changes`: whether it may change something.
 * @param {string} method
 * @param {string} at
 * @param {Options} [options]
 * @returns {Promise<Response>}
 */
export async function send(method, at, { body, raw, type = 'application/json', headers = {}, signal, changes = method !== 'GET' } = {}) {
  const content = raw ?? (body === undefined ? undefined : JSON.stringify(body));
  /** @type {Response} */
  let response;
  try {
    response = await fetch(at, {
      method,
      body: content,
      headers: content === undefined ? headers : { 'content-type': type, ...headers },
      signal,
      cache: 'no-store',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw unexplained(0, changes);
  }
  if (response.ok) return response;
  let problem = null;
  try {
    problem = await response.json();
  } catch {
    /* not from us: a proxy */
  }
  if (response.status === 401 && !(method === 'POST' && at === path('session'))) unauthorized();
  const failed = problem?.code === undefined ? unexplained(response.status, changes) : new Problem(response.status, problem);
  const seconds = Number(response.headers.get('retry-after'));
  if (seconds > 0) failed.retryAfterMs = 1000 * seconds;
  throw failed;
}

/** Sends a request, and returns what the response says. @param {string} method @param {string} at @param {Options} [options] @returns {Promise<any>} */
export async function answerOf(method, at, options = {}) {
  const response = await send(method, at, options);
  try {
    return await response.json();
  } catch (error) {
    // It is cut off midway.
    if (options.signal?.aborted) throw error;
    throw unexplained(0, options.changes ?? method !== 'GET');
  }
}

/** @param {string} at @param {AbortSignal} [signal] @returns {Promise<any>} */
export function get(at, signal) {
  return read(at, GET_MS, signal, (response) => response.json());
}

/**
 * Sends a GET and takes all of its response within this time, or it counts as not reached.
 * @param {string} at @param {number} ms @param {AbortSignal | undefined} signal @param {(response: Response) => Promise<any>} take
 */
async function read(at, ms, signal, take) {
  const limit = AbortSignal.timeout(ms);
  try {
    return await take(await send('GET', at, { signal: signal === undefined ? limit : AbortSignal.any([signal, limit]) }));
  } catch (error) {
    // A body that is cut off midway is a TypeError.
    if ((limit.aborted || error instanceof TypeError) && !signal?.aborted) throw new Problem(0, null);
    throw error;
  }
}

/** The response as text, for what JSON.parse would change. @param {string} at @param {AbortSignal} [signal] */
export function getText(at, signal) {
  return read(at, LARGE_MS, signal, (response) => response.text());
}

/** @param {string} at @param {any} [body] @param {Record<string, string>} [headers] @returns {Promise<any>} */
export function post(at, body, headers) {
  return answerOf('POST', at, { body, headers });
}

/** @param {string} at @param {any} body @param {Record<string, string>} [headers] @returns {Promise<any>} */
export function put(at, body, headers) {
  return answerOf('PUT', at, { body, headers });
}

/** A merge patch. @param {string} at @param {any} body @param {Record<string, string>} [headers] @returns {Promise<any>} */
export function patch(at, body, headers) {
  return answerOf('PATCH', at, { body, type: 'application/merge-patch+json', headers });
}

/** @param {string} at @param {any} [body] @returns {Promise<any>} */
export function del(at, body) {
  return answerOf('DELETE', at, { body });
}

/** A key for a call that must not happen twice. */
export function once() {
  return { 'idempotency-key': crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` };
}

/**
 * Keys for the calls of a form that is sent until it succeeds: the same call has the same key each time, another call another key.
 * @returns {(call: string) => Record<string, string>}
 */
export function attempts() {
  let last = '';
  let key = once();
  return (call) => {
    if (last !== '' && call !== last) key = once();
    last = call;
    return key;
  };
}

/** The same call for a shell; where keys are required with that of its variable TAILBACK_KEY. @param {string} method @param {string} at @param {string} [body] */
export function curl(method, at, body) {
  const quote = (/** @type {string} */ word) => `'${word.replaceAll("'", "'\\''")}'`;
  const send = body === undefined ? '' : ` --json ${quote(body)}`;
  const key = user.keys_required ? ' -H "authorization: Bearer $TAILBACK_KEY"' : '';
  return `curl -s${method === 'GET' ? '' : ` -X ${method}`}${key}${send} ${quote(location.origin + at)}`;
}
