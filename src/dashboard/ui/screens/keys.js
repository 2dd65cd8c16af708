// API keys: who may do what, until when, and how much.
import { del, get, path, post, curl } from '../api.js';
import { registerCommands } from '../commands.js';
import { ask, confirm, field } from '../dialog.js';
import { h, swap, text, toggle } from '../dom.js';
import * as format from '../format.js';
import { plain } from '../json.js';
import { grid, loaded, orNothing, page, shellLine } from '../parts.js';
import { may, user } from '../session.js';
import { badge, button, copy, empty, message, setWhen, toast, when } from '../widgets.js';

/** @typedef {import('../api.js').Api<'ApiKey'>} ApiKey */
/** @typedef {import('../api.js').Api<'KeysResponse'>} KeysResponse */
/** @typedef {import('../api.js').Api<'NewKey'>} NewKey */
/** @typedef {import('../api.js').Api<'UnreadableKey'>} UnreadableKey */

/** The scopes, and what each allows. @type {[string, string][]} */
const SCOPES = [
  ['push', 'push jobs'],
  ['consume', 'reserve and settle jobs, send heartbeats'],
  ['read', 'see everything: this page needs it'],
  ['operate', 'settings, pauses, schedules, semaphores, and what is done to jobs by hand'],
  ['admin', 'everything, in all queues: also keys and the audit'],
];
/** @type {[string, number][]} */
const EXPIRIES = [
  ['never', 0],
  ['1 hour', 3_600_000],
  ['1 day', 86_400_000],
  ['30 days', 2_592_000_000],
  ['90 days', 7_776_000_000],
  ['1 year', 31_536_000_000],
];
const WEEK_MS = 604_800_000;

/** Shows the text of a key, this once. @param {NewKey} key @param {string} [then] */
function reveal(key, then = '') {
  const text = h('output', { class: 'secret mono', tabindex: '0' }, key.key);
  const done = h('input', { type: 'checkbox', name: 'kept' });
  // `keep`: a session that ends now must not hide it.
  return ask({
    keep: true,
    title: `The key “${plain(key.name)}”`,
    action: 'Close',
    body: [
      h('p', null, 'This is the only time that it is shown: the server keeps a digest only.', then),
      text,
      h(
        'div',
        { class: 'row' },
        button('Copy', () => copy(key.key)),
      ),
      h('label', null, done, ' I have put it where it is needed'),
    ],
    ready: () => done.checked,
    submit: () => true,
  });
}

/** Asks for a key, and makes it. @param {number} count how many there are @param {() => void} again */
async function create(count, again) {
  const isFirst = count === 0 && !user.keys_required;
  const name = h('input', { name: 'name', required: true, maxlength: '128', autocomplete: 'off', autofocus: true });
  const scopes = SCOPES.map(([scope, what]) => ({
    scope,
    box: h('input', { type: 'checkbox', name: 'scopes', value: scope, checked: isFirst && scope === 'admin' }),
    what,
  }));
  const queues = h('input', { name: 'queues', autocomplete: 'off', spellcheck: 'false', placeholder: 'mail, etl.*' });
  const expiry = h('select', { name: 'expires_in_ms' }, ...EXPIRIES.map(([label, ms]) => h('option', { value: ms }, label)));
  const limit = h('input', { type: 'number', name: 'rate', min: '1', max: '1000000', placeholder: 'no limit' });
  const concurrent = h('input', { type: 'number', name: 'max_concurrent', min: '1', max: '100000', placeholder: 'no limit' });
  const body = () => {
    const patterns = queues.value.split(/[\s,]+/).filter((/** @type {string} */ one) => one !== '');
    return {
      name: name.value.trim(),
      scopes: scopes.filter(({ box }) => box.checked).map(({ scope }) => scope),
      ...(patterns.length > 0 ? { queues: patterns } : {}),
      ...(Number(expiry.value) > 0 ? { expires_in_ms: Number(expiry.value) } : {}),
      ...(limit.value ? { rate: { limit: Number(limit.value), per_ms: 1000 } } : {}),
      ...(concurrent.value ? { max_concurrent: Number(concurrent.value) } : {}),
    };
  };
  const made = await ask({
    title: 'New key',
    action: 'Create',
    body: [
      isFirst &&
        h(
          'p',
          { class: 'remark warn' },
          'This is the first key. Where the server requires keys by itself (auth.required = "auto"), every request needs one from then on: give this one the ' +
            'scope admin, or have the admin key of the configuration. Workers and producers without a key are refused at once.',
        ),
      field('Name', name, 'What people call it: the program that uses it, say.'),
      h(
        'fieldset',
        null,
        h('legend', null, 'Scopes'),
        ...scopes.map(({ scope, box, what }) => h('label', { class: 'check' }, box, h('span', null, h('strong', null, scope), ` ${what}`))),
      ),
      field('Queues', queues, 'Names and beginnings such as etl.*; semaphores and workers are matched by their names. Empty: all.'),
      field('Expires', expiry),
      h(
        'div',
        { class: 'halves' },
        field('Requests per second', limit, 'at each server'),
        field('Requests at once', concurrent, 'at each server, those that wait included'),
      ),
    ].filter(Boolean),
    ready: () => name.value.trim() !== '' && scopes.some(({ box }) => box.checked),
    submit: () => post(path('keys'), body()),
  });
  if (made === undefined) return;
  const said = isFirst ? await enter(made.key) : '';
  await reveal(made, said);
  if (isFirst) location.reload();
  else again();
}

/** Goes on with the first key, since nothing works without one from now on. @param {string} key */
async function enter(key) {
  try {
    await post(path('session'), { key });
    return ' This page goes on with it.';
  } catch (error) {
    return ` This page cannot go on with it by itself: ${message(error)}`;
  }
}

/** @param {ApiKey} key @param {() => void} again */
function actions(key, again) {
  const name = plain(key.name);
  return h(
    'span',
    { class: 'row end' },
    button(
      'Rotate…',
      () =>
        confirm({
          title: `Rotate “${name}”?`,
          action: 'Rotate the key',
          text:
            'It gets a new text, and keeps its scopes and its expiry. The text that it has now is refused here at once and everywhere ' +
            `within two seconds, and its sessions end.${user.name === key.name ? ' You may be logged in with it: then you log in again with the new one.' : ''}`,
          submit: () => post(path('keys', key.id, 'rotate')),
        }).then((made) => made && reveal(made).then(again)),
      { 'aria-label': `Rotate ${name}` },
    ),
    button('Revoke…', () => revoke(key.id, name, again), { class: 'danger', 'aria-label': `Revoke ${name}` }),
  );
}

/** @param {string} id @param {string} name @param {() => void} again */
function revoke(id, name, again) {
  return confirm({
    title: `Revoke “${name}”?`,
    action: 'Revoke the key',
    word: id,
    text: 'It is refused here at once and everywhere within two seconds, and its sessions end. That cannot be undone.',
    submit: async () => {
      await del(path('keys', id));
      toast(`“${name}” is revoked`);
      again();
    },
  });
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function keys(context) {
  const { signal } = context;
  if (!may('admin') && !user.scopes.includes('admin')) {
    return { title: 'Keys', node: page('Keys', [], empty('This key may not see the others.', 'That needs the scope admin.')) };
  }
  const table = grid({
    caption: 'Keys',
    columns: [
      'Key',
      'Scopes',
      { label: 'Queues', class: 'any' },
      'Limits',
      { label: 'Last used', class: 'num' },
      { label: 'Expires', class: 'num' },
      { label: 'Created', class: 'num' },
      { label: 'Actions', hidden: true, class: 'num' },
    ],
    key: (/** @type {ApiKey} */ key) => key.id,
    make: (first) => {
      const used = when(undefined);
      const expires = when(undefined);
      return {
        cells: [
          [h('strong', { class: 'any' }, plain(first.name)), h('small', { class: 'mono block' }, first.id)],
          h(
            'span',
            { class: 'row' },
            ...first.scopes.map((/** @type {string} */ scope) => badge(plain(scope), scope === 'admin' ? 'warn' : '')),
          ),
          first.queues ? h('span', { class: 'mono' }, first.queues.join(', ')) : h('span', { class: 'muted' }, 'all'),
          limitsOf(first),
          used,
          expires,
          when(first.created_at),
          may('admin') && actions(first, () => list.again()),
        ],
        set: (key) => {
          setWhen(used, key.last_used_at);
          if (!key.last_used_at) text(used, 'never');
          setWhen(expires, key.expires_at);
          if (!key.expires_at) text(expires, 'never');
          const left = key.expires_at ? Date.parse(key.expires_at) - format.now() : Infinity;
          toggle(expires, 'bad', left <= 0);
          toggle(expires, 'warn', left > 0 && left < WEEK_MS);
        },
      };
    },
  });
  const none = empty(
    'There are no keys.',
    user.keys_required
      ? 'You use the admin key of the configuration. '
      : 'Requests need none so far: whoever reaches this server may do everything. ',
    shellLine(curl('POST', '/v1/keys', '{"name": "mailer", "scopes": ["push", "consume"], "queues": ["mail.*"]}')),
  );
  const body = orNothing(table, none);
  const broken = h('div');
  let count = 0;
  const list = loaded(
    signal,
    10_000,
    /** @returns {Promise<KeysResponse>} */ () => get(path('keys'), signal),
    (answer) => {
      count = answer.keys.length;
      body.set(answer.keys);
      swap(
        broken,
        ...(answer.unreadable ?? []).map((/** @type {UnreadableKey} */ one) =>
          h(
            'p',
            { class: 'remark bad' },
            h('strong', { class: 'mono' }, one.id),
            ` cannot be read, and opens nothing: ${plain(one.detail)} `,
            may('admin') && button('Revoke…', () => revoke(one.id, one.id, list.again), { class: 'danger' }),
          ),
        ),
      );
    },
    broken,
    h('section', { class: 'card', 'aria-label': 'Keys' }, body.node),
  );
  const fresh = () => create(count, list.again);
  if (may('admin')) registerCommands(signal, [{ label: 'New key', run: fresh }]);
  return { title: 'Keys', node: page('Keys', [may('admin') && button('New key', fresh, { class: 'primary' })], list.node) };
}

/** @param {ApiKey} key */
function limitsOf(key) {
  const parts = [
    key.rate && `${format.count(key.rate.limit)} per ${format.per(key.rate.per_ms)}`,
    key.max_concurrent && `${format.count(key.max_concurrent)} at once`,
  ].filter(Boolean);
  return parts.length > 0 ? parts.join(', ') : h('span', { class: 'muted' }, 'none');
}
