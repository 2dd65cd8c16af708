// The small editor that adds a condition to a search, and changes one.

import { get, query } from './api.js';
import { field } from './dialog.js';
import { attr, h, show, swap, text } from './dom.js';
import * as live from './live.js';
import { faultOf, KINDS, kindOf, NAMED } from './search.js';
import { STATES } from './widgets.js';

/** @typedef {import('./search.js').Condition} Condition */

/** What each kind of condition finds, and how fast. @type {Record<string, string>} */
const HINTS = {
  queue: 'One queue. Fast: only its jobs are looked at.',
  queue_prefix: 'All queues whose names begin so. Fast up to 20,000 jobs.',
  state: 'One state, or several: dead,done. Fast in one queue, or up to 20,000 jobs.',
  batch: 'The id of a batch. Fast: only its jobs are looked at.',
  group: 'Fast in one queue.',
  key: 'The deduplication key. Fast in one queue.',
  worker: 'The worker that reserved it last. Fast together with the state reserved.',
  error: 'A part of the last error, in the same case. Looks at every job that the others leave: give a queue or a state as well.',
  error_group: 'A group of errors, as the dead letters show it: "timeout after <n> ms".',
  no_error: 'Jobs that have no error.',
  dead_lettered: 'Jobs that died elsewhere and were put into this queue. Fast in one queue.',
  attempts_min: 'Delivered so often or more.',
  attempts_max: 'Delivered so often or less.',
  created_from: 'Pushed at this time or later. Times have no index: give a queue or a state as well.',
  created_before: 'Pushed before this time.',
  finished_from: 'Done or dead at this time or later.',
  finished_before: 'Done or dead before this time.',
  run_at_from: 'Whose run_at is this time or later.',
  run_at_before: 'Whose run_at is before this time.',
  priority_min: 'Of this priority or a higher one.',
  priority_max: 'Of this priority or a lower one.',
  'payload.':
    'A path such as user.id or items.0.sku, and the value that it has: 42 is the number, "42" the text. Looks into every job that the others leave.',
  'headers.': 'The name of a header, and the value that it has.',
};

let ids = 0;

/** What a value may be: from what the page knows, else from one small call. @param {string} name @param {AbortSignal} signal @returns {Promise<string[]>} */
async function suggestions(name, signal) {
  if (name === 'queue') return [...live.queues.keys()].sort().slice(0, 500);
  if (name === 'queue_prefix')
    return [
      ...new Set([...live.queues.keys()].filter((queue) => queue.includes('.')).map((queue) => queue.slice(0, queue.indexOf('.') + 1))),
    ]
      .sort()
      .slice(0, 200);
  if (name === 'state') return STATES;
  if (name === 'worker') return (await get('/v1/workers?limit=500', signal)).workers.map((/** @type {any} */ one) => one.name);
  if (name === 'batch') return (await get('/v1/batches?limit=50', signal)).batches.map((/** @type {any} */ one) => one.id);
  if (name === 'error_group')
    return (await get(query('/v1/dead', { group_by: 'error', limit: 50 }), signal)).groups
      .map((/** @type {any} */ one) => one.error)
      .filter(Boolean);
  return [];
}

/** A time as the control of the browser has it, which knows no zone: here. @param {string} is */
function localTime(is) {
  const date = new Date(is);
  return Number.isNaN(date.getTime()) ? '' : new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

/** @param {Set<string>} without kinds that are given already */
function chooser(without) {
  const select = h('select', { name: 'kind' });
  for (const group of new Set(KINDS.map((kind) => kind.group))) {
    select.append(
      h(
        'optgroup',
        { label: group },
        ...KINDS.filter((kind) => kind.group === group && !without.has(kind.name)).map(({ name, label }) =>
          h('option', { value: name }, label),
        ),
        ...(group === 'What is in it' ? NAMED.map(({ prefix, label }) => h('option', { value: prefix }, label)) : []),
      ),
    );
  }
  return select;
}

/**
 * The editor. @param {{fixed: Record<string, string>, signal: AbortSignal, put: (next: Condition, before: Condition | null) => void, close: () => void}} options
 */
export function editor({ fixed, signal, put, close }) {
  const without = new Set(Object.keys(fixed));
  if (without.has('queue')) without.add('queue_prefix');
  const kind = chooser(without);
  const list = h('datalist', { id: `suggested-${++ids}` });
  const path = h('input', { name: 'path', placeholder: 'user.id', autocomplete: 'off', spellcheck: 'false' });
  const input = h('input', { name: 'value', autocomplete: 'off', spellcheck: 'false', maxlength: '2000' });
  const [pathField, valueField] = [field('Which', path), field('Value', input)];
  const hint = h('p', { class: 'muted', role: 'status' });
  /** @type {Condition | null} */ let before = null;
  const prefixOf = () => NAMED.find(({ prefix }) => prefix === kind.value);
  const judge = async () => {
    const named = prefixOf();
    const of = kindOf(kind.value);
    show(pathField, named !== undefined);
    show(valueField, of?.kind !== 'flag');
    attr(input, 'type', of?.kind === 'time' ? 'datetime-local' : 'text');
    attr(input, 'step', of?.kind === 'time' ? '1' : null);
    attr(input, 'inputmode', of?.kind === 'int' ? 'numeric' : null);
    attr(input, 'list', of?.kind === 'time' || of?.kind === 'int' || named ? null : list.id);
    text(hint, HINTS[named?.prefix ?? of?.name ?? ''] ?? '');
    hint.className = 'muted';
    const name = kind.value;
    try {
      const found = await suggestions(name, signal);
      if (kind.value === name) swap(list, ...found.map((one) => h('option', { value: one })));
    } catch {
      /* without suggestions, then */
    }
  };
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const named = prefixOf();
    const of = kindOf(kind.value);
    const is = of?.kind === 'flag' ? 'true' : of?.kind === 'time' && input.value !== '' ? new Date(input.value).toISOString() : input.value;
    const next = {
      name: named ? named.prefix + path.value.trim() : kind.value,
      value: of?.kind === 'states' ? is.replaceAll(' ', '') : is,
    };
    const fault = named && path.value.trim() === '' ? 'The name is missing.' : faultOf(next);
    if (fault) {
      text(hint, fault);
      hint.className = 'problem';
      return (named && path.value === '' ? path : input).focus();
    }
    put(next, before);
  };
  kind.addEventListener('change', () => {
    input.value = '';
    judge();
  });
  const node = h(
    'form',
    {
      class: 'chip-editor',
      hidden: true,
      on: { submit, keydown: (/** @type {KeyboardEvent} */ event) => event.key === 'Escape' && close() },
    },
    h(
      'div',
      { class: 'row fields' },
      field('Condition', kind),
      pathField,
      valueField,
      list,
      h(
        'div',
        { class: 'row' },
        h('button', { type: 'submit', class: 'primary' }, 'Set'),
        h('button', { type: 'button', on: { click: close } }, 'Cancel'),
      ),
    ),
    hint,
  );
  return {
    node,
    /** @param {Condition | null} condition */
    open(condition) {
      before = condition;
      const named = condition && NAMED.find(({ prefix }) => condition.name.startsWith(prefix));
      kind.value = named ? named.prefix : (condition?.name ?? (without.has('queue') ? 'error' : 'queue'));
      path.value = named && condition ? condition.name.slice(named.prefix.length) : '';
      const isTime = kindOf(kind.value)?.kind === 'time';
      attr(input, 'type', isTime ? 'datetime-local' : 'text');
      input.value = condition ? (isTime ? localTime(condition.value) : condition.value) : '';
      judge();
      show(node, true);
      (condition ? input : kind).focus();
    },
  };
}
