// Changing a job: what was not changed is not sent, and what was changed is sent as it was typed.

import { curl, path, send } from './api.js';
import { ask, field } from './dialog.js';
import { h, show, text } from './dom.js';
import { hasUnseen, unseenEscaped, whole } from './json.js';
import { button, copy } from './widgets.js';

/** A field for JSON: it says at once what is wrong. @param {string} name @param {string} value @param {number} [rows] */
function jsonField(name, value, rows = 8) {
  const input = h('textarea', { name, spellcheck: 'false', value, rows, class: 'edit-json' });
  const problem = h('small', { class: 'problem', role: 'status' });
  const before = input.value; // a browser changes the ends of lines
  const escape = button('Write them as escapes', () => {
    input.value = unseenEscaped(input.value);
    input.dispatchEvent(new Event('input', { bubbles: true }));
  });
  const unseen = h(
    'p',
    { class: 'row warn' },
    'This text has characters that one does not see here, or that change the order of others.',
    escape,
  );
  const isGood = () => {
    show(unseen, hasUnseen(input.value.replace(/[\t\n]/g, '')));
    try {
      if (input.value !== before) whole(input.value);
      text(problem, '');
      return true;
    } catch (/** @type {any} */ error) {
      text(problem, error.message);
      return false;
    }
  };
  return {
    input,
    problem: h('div', { class: 'stack small' }, unseen, problem),
    isGood,
    changed: () => (input.value === before ? undefined : input.value.trim()),
  };
}

/** @param {string} name @param {string} value @param {Record<string, any>} [props] */
function plainField(name, value, props = {}) {
  const input = h('input', { name, autocomplete: 'off', spellcheck: 'false', ...props, value });
  const before = input.value;
  return { input, changed: () => (input.value === before ? undefined : input.value) };
}

/** The time in a control, as an RFC 3339 time. @param {string} local */
const timeOf = (local) => new Date(local).toISOString();
/** @param {string | undefined} at */
const localOf = (at) => (at ? new Date(Date.parse(at) - new Date(at).getTimezoneOffset() * 60_000).toISOString().slice(0, 19) : '');

/** The raw text of a change: only what is another than before. @param {[string, string | undefined][]} fields names and raw values */
export function changeText(fields) {
  return `{${fields
    .filter(([, raw]) => raw !== undefined)
    .map(([name, raw]) => `${JSON.stringify(name)}: ${raw}`)
    .join(', ')}}`;
}

/** Asks for the changes of a job, and makes them. Resolves to true if there were any. @param {import('./json.js').Job} job one with `raw` @returns {Promise<boolean | undefined>} */
export function editJob(job) {
  const isBinary = job.payload_base64 !== undefined;
  const payload = jsonField('payload', isBinary ? '' : (job.raw.payload ?? ''));
  const headers = jsonField('headers', job.raw.headers ?? '{}', 3);
  const priority = plainField('priority', String(job.priority), { type: 'number', step: '1' });
  const due = plainField('run_at', localOf(job.run_at), { type: 'datetime-local', step: '1' });
  const most = plainField('max_attempts', String(job.max_attempts), { type: 'number', min: '0', step: '1', placeholder: 'as its queue' });
  const group = plainField('group', job.group ?? '');
  const expires = plainField('expires', '', { type: 'number', min: '1', placeholder: 'as it is' });
  const never = h('input', { type: 'checkbox', name: 'never' });
  const number = (/** @type {string | undefined} */ is) => (is === undefined ? undefined : is === '' ? 'null' : String(Number(is)));
  const body = () =>
    changeText([
      ['payload', payload.changed()],
      ['headers', headers.changed()],
      ['priority', priority.changed() === '' ? undefined : number(priority.changed())],
      ['run_at', due.changed() ? JSON.stringify(timeOf(due.input.value)) : undefined],
      ['max_attempts', number(most.changed())],
      ['group', group.changed() === undefined ? undefined : group.changed() === '' ? 'null' : JSON.stringify(group.changed())],
      ['expires_in_ms', never.checked ? 'null' : expires.changed() ? String(Math.round(Number(expires.input.value) * 1000)) : undefined],
    ]);
  const line = h('code', { class: 'curl' });
  const at = path('jobs', job.id);
  const problem = h('p', { class: 'muted', role: 'status' });
  return ask({
    title: 'Edit this job',
    action: 'Save',
    wide: true,
    body: [
      isBinary ? h('p', { class: 'muted' }, 'The payload is binary: type JSON to replace it.') : null,
      field('Payload', payload.input, 'The text as it is kept. It is sent only if you change it.'),
      payload.problem,
      field('Headers', headers.input),
      headers.problem,
      h(
        'div',
        { class: 'cards' },
        field('Priority', priority.input),
        field('Due', due.input),
        field('Attempts at most', most.input, '0: no limit; empty: as its queue.'),
        field('Group', group.input, 'It joins the end of its line.'),
        field('Expires in seconds', expires.input),
      ),
      job.expires_at ? h('label', { class: 'row' }, never, 'It never expires') : null,
      problem,
      h(
        'details',
        null,
        h('summary', null, 'The same as curl'),
        line,
        button('Copy', () => copy(line.textContent ?? ''), { class: 'quiet' }),
      ),
    ].filter(Boolean),
    ready: () => {
      const isGood = [payload, headers].map((one) => one.isGood()).every(Boolean);
      const change = isGood ? body() : '{}';
      text(line, curl('PATCH', at, change));
      show(problem, isGood && change === '{}');
      text(problem, 'Nothing is changed yet.');
      return isGood && change !== '{}';
    },
    submit: async () => {
      await send('PATCH', at, { raw: body(), type: 'application/json' });
      return true;
    },
  });
}
