// What several screens are made of.

import { attr, h, text } from './dom.js';
import * as format from './format.js';
import { plain } from './json.js';
import * as live from './live.js';
import { link } from './router.js';

/** The states of jobs, in the order in which they are shown. */
export const STATES = ['ready', 'scheduled', 'reserved', 'blocked', 'dead', 'done'];

/** A part of the page with a heading. @param {string} title @param {...any} children */
export function card(title, ...children) {
  return h('section', { class: 'card', 'aria-label': title }, h('h2', null, title), ...children);
}

/**
 * A button. A click runs `act`; until that has ended the button takes no other one.
 * @param {string} label @param {(event: Event) => any} act @param {Record<string, any>} [props]
 */
export function button(label, act, props = {}) {
  const node = h(
    'button',
    {
      type: 'button',
      ...props,
      on: {
        click: async (/** @type {Event} */ event) => {
          if (node.getAttribute('aria-disabled') === 'true') return;
          attr(node, 'aria-disabled', 'true');
          try {
            await act(event);
          } catch (error) {
            toast(message(error), 'bad');
          } finally {
            attr(node, 'aria-disabled', null);
          }
        },
      },
    },
    label,
  );
  return node;
}

/** A word in a coloured field. @param {string} label @param {string} [kind] bad, warn, good, or a state */
export function badge(label, kind = '') {
  return h('span', { class: `badge ${kind}` }, label);
}

/** A time, relative to now, and exactly on hover; it goes on by itself. @param {string | undefined} at @returns {HTMLElement} */
export function when(at) {
  const node = h('time', { class: 'when' });
  setWhen(node, at);
  return node;
}

/** @param {HTMLElement} node @param {string | undefined} at */
export function setWhen(node, at) {
  if (node.getAttribute('datetime') !== (at ?? null)) {
    attr(node, 'datetime', at);
    attr(node, 'title', at && format.exact(at));
  }
  text(node, format.ago(at));
}

/** Lets relative times go on while the page is seen. */
export function tick() {
  setInterval(() => {
    if (document.hidden) return;
    for (const node of document.querySelectorAll('time.when[datetime]')) {
      text(node, format.ago(node.getAttribute('datetime') ?? undefined));
    }
  }, 1000);
}

/** A link to a queue. @param {string} queue */
export function queueLink(queue) {
  return h('a', { href: link(['queues', queue]), class: 'name' }, queue);
}

/** A link to a job. @param {string} id */
export function jobLink(id) {
  return h('a', { href: link(['jobs', id]), class: 'mono' }, id);
}

/** What is said where there is nothing, and what to do. @param {string} title @param {...any} advice */
export function empty(title, ...advice) {
  return h('div', { class: 'empty' }, h('p', { class: 'strong' }, title), advice.some(Boolean) && h('p', null, ...advice));
}

/** Facts in two columns. @param {[string, any][]} rows those without a value are left out */
export function facts(rows) {
  const list = h('dl', { class: 'facts' });
  for (const [name, value] of rows) {
    if (value === undefined || value === null || value === '') continue;
    list.append(h('div', null, h('dt', null, name), h('dd', null, value)));
  }
  return list;
}

/** Copies a text, and says so. @param {string} what */
export async function copy(what) {
  try {
    await navigator.clipboard.writeText(what);
    toast('Copied');
  } catch {
    const is = await import('./copy.js').then(({ copySelected }) => copySelected(what)).catch(() => false);
    toast(is ? 'Copied' : 'The browser does not let this page copy', is ? '' : 'bad');
  }
}

/** What an error says to a person. @param {any} error */
export function message(error) {
  return plain(error?.message ?? String(error));
}

/** Where they are said; made with the first one. @type {any} */
let toasts;

/** Says something for a few seconds. @param {string} what @param {'' | 'bad'} [kind] */
export function toast(what, kind = '') {
  toasts ??= h('div', { class: 'toasts', role: 'status', 'aria-live': 'polite' });
  // Screen readers are not told what lies outside of an open dialog.
  const dialog = document.querySelector('dialog[open]');
  if (toasts.parentNode !== (dialog ?? document.body)) (dialog ?? document.body).append(toasts);
  dialog?.addEventListener('close', () => document.body.append(toasts), { once: true });
  const node = h('div', { class: `toast ${kind}` }, what);
  toasts.append(node);
  setTimeout(() => node.remove(), kind === 'bad' ? 8000 : 3500);
}

/** What the server did not say: it, or its store, is away. */
const AWAY = [0, 502, 503, 504];

/**
 * An error of a whole screen or card, with a way out; where the server was away it is taken once it is back.
 * @param {any} error @param {() => void} [again]
 */
export function failure(error, again) {
  if (error?.status === 403) return empty('This key does not allow that.', message(error));
  const node = h(
    'div',
    { class: 'empty bad', role: 'alert' },
    h('p', { class: 'strong' }, error?.status === 404 ? 'There is nothing here.' : 'This cannot be shown.'),
    h('p', null, message(error)),
    again && button('Try again', again),
  );
  if (again && AWAY.includes(error?.status)) onceBack(node, again);
  return node;
}

/** What is shown in place of what could not be read, and how it is read again. @type {Map<Element, () => void>} */
const missing = new Map();
let isFollowed = false;

/** Runs `again` once the server has come back, if the node is still shown then. @param {Element} node @param {() => void} again */
function onceBack(node, again) {
  for (const other of missing.keys()) if (!other.isConnected) missing.delete(other);
  missing.set(node, again);
  if (isFollowed) return;
  isFollowed = true;
  live.follow(new AbortController().signal, (_, happened, isNew) => {
    if (!isNew && !happened.some(({ kind }) => kind === 'store_back')) return;
    const all = [...missing];
    missing.clear();
    for (const [one, then] of all) if (one.isConnected) then();
  });
}
