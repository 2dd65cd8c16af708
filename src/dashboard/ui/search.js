// The conditions of a search: in the link, as chips, as parameters of GET /v1/jobs, as the filter of an operation.

import { query } from './api.js';
import * as format from './format.js';
import { plain, whole } from './json.js';
import { STATES } from './widgets.js';

/** @typedef {{name: string, value: string}} Condition */
/**
 * A kind of condition.
 * @typedef {{name: string, label: string, kind: 'text' | 'time' | 'int' | 'flag' | 'states', group: string}} Kind
 */

/** @type {Kind[]} */
export const KINDS = [
  { name: 'queue', label: 'queue', kind: 'text', group: 'Where' },
  {
    name: 'queue_prefix',
    label: 'queue begins with',
    kind: 'text',
    group: 'Where',
  },
  {
    name: 'state',
    label: 'state',
    kind: 'states',
    group: 'Where',
  },
  {
    name: 'batch',
    label: 'batch',
    kind: 'text',
    group: 'Where',
  },
  { name: 'group', label: 'group', kind: 'text', group: 'Where' },
  { name: 'key', label: 'key', kind: 'text', group: 'Where' },
  {
    name: 'worker',
    label: 'worker',
    kind: 'text',
    group: 'Where',
  },
  {
    name: 'error',
    label: 'error has',
    kind: 'text',
    group: 'What went wrong',
  },
  {
    name: 'error_group',
    label: 'error is',
    kind: 'text',
    group: 'What went wrong',
  },
  {
    name: 'no_error',
    label: 'without an error',
    kind: 'flag',
    group: 'What went wrong',
  },
  {
    name: 'dead_lettered',
    label: 'dead-lettered here',
    kind: 'flag',
    group: 'What went wrong',
  },
  { name: 'attempts_min', label: 'attempts ≥', kind: 'int', group: 'What went wrong' },
  { name: 'attempts_max', label: 'attempts ≤', kind: 'int', group: 'What went wrong' },
  {
    name: 'created_from',
    label: 'pushed from',
    kind: 'time',
    group: 'When',
  },
  { name: 'created_before', label: 'pushed before', kind: 'time', group: 'When' },
  {
    name: 'finished_from',
    label: 'ended from',
    kind: 'time',
    group: 'When',
  },
  {
    name: 'finished_before',
    label: 'ended before',
    kind: 'time',
    group: 'When',
  },
  { name: 'run_at_from', label: 'due from', kind: 'time', group: 'When' },
  { name: 'run_at_before', label: 'due before', kind: 'time', group: 'When' },
  { name: 'priority_min', label: 'priority ≥', kind: 'int', group: 'What is in it' },
  { name: 'priority_max', label: 'priority ≤', kind: 'int', group: 'What is in it' },
];

/** The kinds whose names one gives: a field of the payload, a header. */
export const NAMED = [
  {
    prefix: 'payload.',
    label: 'payload field',
  },
  { prefix: 'headers.', label: 'header' },
];

/** @param {string} name @returns {Kind | undefined} */
export function kindOf(name) {
  return KINDS.find((kind) => kind.name === name);
}

/** @param {URLSearchParams} params @param {Record<string, string>} fixed @returns {Condition[]} the conditions in a link, without those that are given */
export function conditionsOf(params, fixed) {
  return [...params]
    .filter(
      ([name, is]) =>
        is !== '' &&
        !Object.hasOwn(fixed, name) &&
        (kindOf(name) !== undefined || NAMED.some(({ prefix }) => name.startsWith(prefix) && name.length > prefix.length)),
    )
    .map(([name, is]) => ({ name, value: is }));
}

/** A condition in words. @param {Condition} condition @returns {{label: string, value: string}} */
export function inWords({ name, value: is }) {
  const kind = kindOf(name);
  if (kind === undefined) return { label: `${plain(name)} =`, value: plain(is) };
  if (kind.kind === 'flag') return { label: kind.label, value: '' };
  return { label: kind.label, value: kind.kind === 'time' ? format.time(is) : plain(is) };
}

/** What is wrong with a condition, or undefined. @param {Condition} condition @returns {string | undefined} */
export function faultOf({ name, value: is }) {
  const kind = kindOf(name)?.kind;
  if (is === '') return 'A value is missing.';
  if (kind === 'int' && !/^-?\d{1,10}$/.test(is)) return 'This must be a whole number.';
  if (kind === 'time' && Number.isNaN(Date.parse(is))) return 'This must be a time.';
  const other = kind === 'states' && is.split(',').find((state) => !STATES.includes(state));
  if (other !== false && other !== undefined) return `${plain(other)} is no state: they are ${STATES.join(', ')}.`;
  return undefined;
}

/** The call of a search. @param {Condition[]} conditions @param {Record<string, string>} fixed @param {Record<string, any>} extra */
export function searchPath(conditions, fixed, extra) {
  /** @type {Record<string, any>} */ const params = { ...fixed };
  let at = '/v1/jobs';
  for (const { name, value: is } of conditions) {
    if (name === 'no_error')
      at = '/v1/jobs?error_group='; // an empty value, which says: none
    else params[name] = is;
  }
  return query(at, { ...params, ...extra });
}

/** How many jobs a search looks at, in words; `slow` where that may be all. @param {Condition[]} conditions @param {Record<string, string>} fixed */
export function costOf(conditions, fixed) {
  const has = new Set([...Object.keys(fixed), ...conditions.map(({ name }) => name)]);
  const state = conditions.find(({ name }) => name === 'state')?.value;
  if (has.has('batch')) return { slow: false, text: 'Looks only at the jobs of the batch.' };
  if (has.has('worker') && state === 'reserved') return { slow: false, text: 'Looks only at what the worker holds.' };
  if (has.has('queue')) {
    const by = ['key', 'group', 'dead_lettered'].find((name) => has.has(name));
    if (by) return { slow: false, text: `Looks only at the jobs of the queue with this ${by === 'dead_lettered' ? 'mark' : by}.` };
    return { slow: false, text: `Looks at the jobs of the queue${state ? ` that are ${state.replaceAll(',', ' or ')}` : ''}.` };
  }
  if (has.has('queue_prefix') || has.has('key') || has.has('group') || state)
    return { slow: false, text: 'Fast if these are at most 20,000 jobs; else it looks at all.' };
  return {
    slow: conditions.length > 0,
    text: conditions.length > 0 ? 'Looks at all jobs, one after another: a queue or a state makes it faster.' : '',
  };
}

/** A value as the API reads it: as JSON, else as a text. @param {string} is */
function asJson(is) {
  try {
    const found = whole(is);
    return is.slice(found.start, found.end);
  } catch {
    return JSON.stringify(is);
  }
}

/**
 * The same conditions as the filter of an operation: its raw text.
 * @param {Condition[]} conditions @param {Record<string, string>} fixed @returns {{filter: string, queue?: string, confirm?: string}}
 */
export function filterOf(conditions, fixed) {
  const all = [...Object.entries(fixed).map(([name, is]) => ({ name, value: is })), ...conditions];
  /** @type {string[]} */ const parts = [];
  /** @type {Record<string, string[]>} */ const fields = { payload: [], headers: [] };
  const add = (/** @type {string} */ name, /** @type {string} */ is) => parts.push(`${JSON.stringify(name)}: ${is}`);
  for (const { name, value: is } of all) {
    const kind = kindOf(name);
    if (kind === undefined) {
      const [of] = name.split('.', 1);
      fields[of].push(`${JSON.stringify(name.slice(of.length + 1))}: ${asJson(is)}`);
    } else if (name === 'state' && is.includes(',')) add('states', JSON.stringify(is.split(',')));
    else if (kind.name === 'queue_prefix') add('queue', JSON.stringify(`${is}*`));
    else if (kind.name === 'no_error') add('error_group', '""');
    else if (kind.kind === 'int') add(name, String(Number(is)));
    else add(name, kind.kind === 'flag' ? 'true' : JSON.stringify(is));
  }
  for (const [of, list] of Object.entries(fields)) if (list.length > 0) add(of, `{${list.join(', ')}}`);
  const queue = all.find(({ name }) => name === 'queue')?.value;
  const prefix = all.find(({ name }) => name === 'queue_prefix')?.value;
  const confirm = queue !== undefined ? undefined : prefix !== undefined ? `${prefix}*` : 'all queues';
  return { filter: `{${parts.join(', ')}}`, queue, confirm };
}
