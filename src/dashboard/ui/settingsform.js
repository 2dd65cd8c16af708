// The form of the settings of a queue, which changes only what was changed in it.

import { answerOf, get, path } from './api.js';
import { ask } from './dialog.js';
import { h } from './dom.js';
import { form, object, writeDuration } from './fields.js';
import { loadSettings } from './settings.js';
import { toast } from './widgets.js';

/** @typedef {import('./fields.js').FieldSpec} FieldSpec */

const KEEP = 'Empty: the default of the server';
/** The settings that stand alone. @type {FieldSpec[]} */
const FIELDS = [
  { name: 'lease_ms', label: 'Lease', type: 'duration', hint: 'Of a reservation that does not say' },
  { name: 'max_attempts', label: 'Attempts', type: 'whole', hint: 'How often a job is delivered before it is dead; 0 for no limit' },
  { name: 'dead_letter', label: 'Dead-letter queue', type: 'text', hint: 'Takes the dead jobs of this queue; empty: they stay here' },
  { name: 'max_jobs', label: 'Most jobs', type: 'whole', hint: 'Further pushes are refused; empty: no limit' },
  { name: 'max_reserved', label: 'Most reserved at once', type: 'whole', hint: 'Empty: no limit' },
  { name: 'retain_done_ms', label: 'Keep finished jobs for', type: 'duration', hint: 'The history; 0 keeps none' },
  { name: 'retain_result_ms', label: 'Keep results for', type: 'duration', hint: 'For producers that ask for them later' },
  { name: 'retain_dead_ms', label: 'Keep dead jobs for', type: 'duration', hint: '0: until they are deleted or redriven' },
  {
    name: 'on_group_dead',
    label: 'If the first of a group dies',
    type: 'text',
    options: [
      ['', 'Default: hold the group'],
      ['hold', 'hold the group'],
      ['skip', 'skip the job'],
    ],
  },
  {
    name: 'lapsed',
    label: 'A lapsed job comes back',
    type: 'text',
    options: [
      ['', 'Default'],
      ['now', 'behind all that waits'],
      ['first', 'where it was'],
    ],
  },
];
/** Those of which several make one. @type {Record<string, {label: string, fields: FieldSpec[]}>} */
const GROUPS = {
  rate: {
    label: 'Rate: deliveries at most, on all servers together',
    fields: [
      { name: 'limit', label: 'Deliveries', type: 'whole', hint: 'Empty: no limit' },
      { name: 'per_ms', label: 'in any', type: 'duration', hint: 'Such as 1s' },
    ],
  },
  backoff: {
    label: 'Backoff: how long a job waits before it is tried again',
    fields: [
      {
        name: 'kind',
        label: 'Kind',
        type: 'text',
        options: [
          ['', 'Default'],
          ['exponential', 'exponential'],
          ['fixed', 'fixed'],
        ],
      },
      { name: 'base_ms', label: 'First delay', type: 'duration', hint: KEEP },
      { name: 'factor', label: 'Factor', type: 'number', hint: 'Exponential only' },
      { name: 'max_ms', label: 'Longest delay', type: 'duration' },
      { name: 'jitter', label: 'Jitter', type: 'number', hint: '0 to 1: the share that is random' },
    ],
  },
};

/** What a field says at first. @param {FieldSpec} spec @param {any} value */
function write(spec, value) {
  if (value === undefined || value === null) return '';
  return spec.type === 'duration' ? writeDuration(value) : String(value);
}

/** @param {FieldSpec[]} specs @param {any} values */
function writeAll(specs, values) {
  return Object.fromEntries(specs.map((spec) => [spec.name, write(spec, values?.[spec.name])]));
}

/** The defaults of the server: what is in effect for a queue that nobody has set. */
async function loadDefaults() {
  try {
    return (await get(path('queues', 'tailback.defaults.of.no.queue'))).effective;
  } catch {
    return undefined; // a key of some queues may not ask; the fields stay without a hint
  }
}

/** Asks for the settings of a queue. Resolves to whether anything was saved. @param {string} queue @param {any} settings */
export async function editSettings(queue, settings) {
  const defaults = await loadDefaults();
  const single = form(FIELDS, writeAll(FIELDS, settings), writeAll(FIELDS, defaults));
  const grouped = Object.entries(GROUPS).map(([name, { label, fields }]) => ({
    name,
    label,
    was: settings[name],
    ...form(fields, writeAll(fields, settings[name]), writeAll(fields, defaults?.[name])),
  }));
  let { version } = settings;
  const submit = async () => {
    const members = single.changed();
    for (const group of grouped) {
      const changed = group.changed();
      if (changed.length === 0) continue;
      const isEmpty = group.inputs.every((one) => one.value.trim() === '');
      // What is not set yet is set as a whole, and a backoff needs these.
      if (group.name === 'backoff' && group.was === undefined) {
        for (const name of ['kind', 'base_ms']) {
          if (!changed.some(([one]) => one === name)) changed.push([name, JSON.stringify(settings.effective.backoff[name])]);
        }
      }
      members.push([group.name, isEmpty ? 'null' : object(changed)]);
    }
    if (members.length === 0) throw new Error('Nothing is changed.');
    version = await save(queue, version, members);
    toast(`The settings of ${queue} are saved`);
    return true;
  };
  const body = [
    h('p', { class: 'muted' }, 'Only what you change is sent. What is empty has the default, which stands in grey.'),
    h('div', { class: 'fields' }, single.nodes),
    ...grouped.map(({ label, nodes }) => h('fieldset', null, h('legend', null, label), h('div', { class: 'fields' }, nodes))),
  ];
  return ask({
    title: `Settings of ${queue}`,
    body,
    action: 'Save',
    wide: true,
    submit: async () => {
      try {
        return await submit();
      } catch (/** @type {any} */ error) {
        if (error.status !== 412) throw error;
        const now = await loadSettings(queue);
        const other = [...FIELDS.map(({ name }) => name), ...Object.keys(GROUPS)].filter(
          (name) => JSON.stringify(now[name]) !== JSON.stringify(settings[name]),
        );
        version = now.version;
        throw new Error(
          `Somebody has changed the settings meanwhile (${other.join(', ') || 'a pause'}). Save again to make your changes as well, or cancel to look first.`,
        );
      }
    },
  });
}

/** @param {string} queue @param {string} version @param {[string, string][]} members */
async function save(queue, version, members) {
  const kept = await answerOf('PATCH', path('queues', queue), {
    raw: object(members),
    type: 'application/merge-patch+json',
    headers: { 'if-match': `"${version}"` },
  });
  return kept.version;
}
