// Pushes a job: the payload goes to the server as it was written, byte for byte.

import { answerOf, attempts, curl, path } from './api.js';
import { ask, field } from './dialog.js';
import { h, show } from './dom.js';
import { checkJson, form, object, READ } from './fields.js';
import * as format from './format.js';
import { button, copy, toast } from './widgets.js';

/** @typedef {import('./fields.js').FieldSpec} FieldSpec */

/** What is often set. @type {FieldSpec[]} */
const OFTEN = [
  { name: 'priority', label: 'Priority', type: 'whole', hint: 'Higher is delivered first; empty: 0' },
  { name: 'delay_ms', label: 'Deliver in', type: 'duration', hint: 'Such as 90s or 1h 30m; empty: at once' },
  { name: 'key', label: 'Key', type: 'text', hint: 'While a job has it, a push of the same is not stored again' },
  { name: 'group', label: 'Group', type: 'text', hint: 'Jobs of one group are delivered one at a time, in their order' },
];
/** @type {FieldSpec[]} */
const MORE = [
  { name: 'max_attempts', label: 'Attempts', type: 'whole', hint: '0 for no limit; empty: as the queue says' },
  { name: 'lease_ms', label: 'Lease', type: 'duration', hint: 'Empty: as the queue says' },
  { name: 'max_run_ms', label: 'Longest run', type: 'duration', hint: 'Over all extensions of one delivery' },
  { name: 'expires_in_ms', label: 'Expires in', type: 'duration', hint: 'Removed then, unless it is reserved or finished' },
  { name: 'retain_result_ms', label: 'Keep the result for', type: 'duration' },
  { name: 'key_ttl_ms', label: 'Key in use for', type: 'duration', hint: 'At least' },
  {
    name: 'key_until',
    label: 'Key in use until',
    type: 'text',
    options: [
      ['', 'it is finished'],
      ['reserved', 'it is reserved'],
      ['ttl', 'the time is over'],
    ],
  },
  {
    name: 'key_conflict',
    label: 'Where a job has the key',
    type: 'text',
    options: [
      ['', 'return that job'],
      ['replace', 'replace it'],
      ['refuse', 'refuse this push'],
    ],
  },
  { name: 'semaphores', label: 'Semaphores', type: 'words', hint: 'Names, with spaces between them' },
  { name: 'then', label: 'Route', type: 'stages', hint: 'Queues that the job goes on to, with spaces between them' },
];
READ.stages = (written) =>
  `[${written
    .split(/[\s,]+/)
    .filter((word) => word !== '')
    .map((queue) => object([['queue', JSON.stringify(queue)]]))
    .join(', ')}]`;

/** Asks for a job, and pushes it. Resolves to what was pushed. @param {string} queue */
export function pushDialog(queue) {
  const payload = h('textarea', { name: 'payload', spellcheck: 'false', autofocus: true, 'aria-label': 'Payload' }, '{}');
  const kind = h('select', { name: 'kind' }, h('option', { value: 'json' }, 'JSON'), h('option', { value: 'base64' }, 'base64 (bytes)'));
  const type = h('input', { type: 'text', name: 'type', placeholder: 'application/octet-stream', spellcheck: 'false' });
  const typeField = field('Media type', type);
  show(typeField, false);
  kind.addEventListener('change', () => show(typeField, kind.value === 'base64'));
  const headers = h('textarea', { name: 'headers', spellcheck: 'false', class: 'low', placeholder: '{"trace": "…"}' });
  const often = form(OFTEN);
  const more = form(MORE);
  const at = path('queues', queue, 'jobs');
  const keys = attempts();
  /** The body of the call. */
  const make = () => {
    /** @type {[string, string][]} */ const members = [];
    if (kind.value === 'json') {
      checkJson(payload.value, 'The payload');
      members.push(['payload', payload.value]);
    } else {
      members.push(['payload_base64', JSON.stringify(payload.value.replace(/\s+/g, ''))]);
      if (type.value.trim() !== '') members.push(['payload_type', JSON.stringify(type.value.trim())]);
    }
    members.push(...often.changed(), ...more.changed());
    if (headers.value.trim() !== '') members.push(['headers', READ.json(headers.value, 'Headers')]);
    return object(members);
  };
  const body = [
    h('div', { class: 'row' }, field('Payload as', kind), typeField),
    payload,
    h('div', { class: 'fields' }, often.nodes),
    h(
      'details',
      null,
      h('summary', null, 'Headers, attempts, key, semaphores, route'),
      h(
        'div',
        { class: 'stack' },
        field('Headers', headers, 'An object of names and JSON values'),
        h('div', { class: 'fields' }, more.nodes),
      ),
    ),
    h(
      'p',
      null,
      button('Copy as curl', () => copy(curl('POST', at, make())), { class: 'quiet' }),
    ),
  ];
  return ask({
    title: `Push a job to ${queue}`,
    body,
    action: 'Push',
    wide: true,
    submit: async () => {
      const raw = make();
      const pushed = await answerOf('POST', at, { raw, headers: keys(raw) });
      if (pushed.replaced) toast(`Replaced ${pushed.id}, which has this key`);
      else if (pushed.deduplicated) toast(`Nothing is stored: ${pushed.id} has this key already`);
      else toast(`Pushed ${pushed.id}: ${pushed.state === 'scheduled' ? `due ${format.ago(pushed.run_at)}` : pushed.state}`);
      return pushed;
    },
  });
}
