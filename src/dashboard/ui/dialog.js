// Questions: a form in a dialog, and the confirmation of what cannot be undone.

import { attr, h, show, text } from './dom.js';
import * as live from './live.js';
import { message, toast } from './widgets.js';

/** How many were opened: each has a title of its own. */
let opened = 0;

/** Marks the field that an error is about, by the deepest part of its pointer that names one, and goes there. @param {HTMLFormElement} form @param {any} error */
function pointTo(form, error) {
  const names = String(error?.pointer ?? '')
    .split('/')
    .filter((name) => name !== '')
    .reverse();
  const field = names.map((name) => form.elements.namedItem(name)).find((one) => one instanceof HTMLElement);
  if (!(field instanceof HTMLElement)) return;
  attr(field, 'aria-invalid', 'true');
  field.focus();
}

/**
 * Opens a dialog with these contents. `submit` is run by the button (or Enter); the dialog closes once it has ended without an error, which is
 * shown otherwise. Resolves to what `submit` returned, or to undefined if the dialog was cancelled: never while `submit` runs, since
 * that goes on whatever happens to the dialog. With `keep` nothing but the button closes it.
 * @param {{title: string, body: any[], action: string, danger?: boolean, submit: (form: HTMLFormElement) => any, ready?: () => boolean, wide?: boolean, keep?: boolean}} options
 * @returns {Promise<any>}
 */
export function ask({ title, body, action, danger = false, submit, ready, wide = false, keep = false }) {
  return new Promise((resolve) => {
    const problem = h('p', { class: 'problem', role: 'alert', hidden: true });
    const go = h('button', { type: 'submit', class: danger ? 'danger' : 'primary' }, action);
    const cancel = h('button', { type: 'button', on: { click: () => dialog.close() } }, /cancel/i.test(action) ? 'Keep it' : 'Cancel');
    opened += 1;
    const label = `dialog-${opened}`;
    const form = h(
      'form',
      { method: 'dialog' },
      h('h2', { id: label }, title),
      ...body,
      problem,
      h('div', { class: 'actions' }, !keep && cancel, go),
    );
    const dialog = h('dialog', { 'aria-labelledby': label, class: wide ? 'wide' : '', 'data-keep': keep }, form);
    /** @type {any} */ let result;
    let running = false;
    let isDone = false;
    /** Whether another screen was shown while it ran. */
    let isLeft = false;
    // Both, since a browser asks only once before Escape closes a dialog; of the window, since a button that is off has no focus.
    const hold = (/** @type {any} */ event) => {
      if ((keep || running) && (event.type === 'cancel' || event.key === 'Escape')) event.preventDefault();
    };
    dialog.addEventListener('cancel', hold);
    window.addEventListener('keydown', hold, true);
    const judge = () => {
      attr(go, 'disabled', running || !(ready?.() ?? true));
      attr(cancel, 'disabled', running);
    };
    form.addEventListener('input', (/** @type {Event} */ event) => {
      if (event.target instanceof Element) attr(event.target, 'aria-invalid', null);
      judge();
    });
    // A dialog is about the screen below it.
    const left = () => {
      if (running) isLeft = true;
      else if (!keep) dialog.close();
    };
    window.addEventListener('hashchange', left);
    form.addEventListener('submit', async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (go.disabled) return;
      running = true;
      judge();
      try {
        result = await submit(form);
        isDone = true;
      } catch (error) {
        text(problem, message(error));
        show(problem, true);
        pointTo(form, error);
        if (isLeft || !dialog.open) toast(message(error), 'bad');
      }
      running = false;
      judge();
      if (!dialog.open) end();
      else if (isDone || (isLeft && !keep)) dialog.close();
    });
    const end = () => {
      window.removeEventListener('hashchange', left);
      window.removeEventListener('keydown', hold, true);
      dialog.remove();
      resolve(result);
    };
    dialog.addEventListener('close', () => running || end());
    document.body.append(dialog);
    judge();
    dialog.showModal();
  });
}

/**
 * Asks before something that cannot be undone, where `word` must be typed (such as the name of the queue).
 * @param {{title: string, text: any, action: string, word?: string, submit: () => any}} options
 */
export function confirm({ title, text: what, action, word, submit }) {
  const input = h('input', { type: 'text', name: 'word', autocomplete: 'off', spellcheck: 'false', autofocus: true });
  const body = [h('p', null, what)];
  if (word !== undefined)
    body.push(h('label', { class: 'field' }, h('span', null, 'Type ', h('strong', { class: 'mono' }, word), ' to confirm'), input));
  return ask({ title, body, action, danger: true, submit, ready: () => word === undefined || input.value === word });
}

/** A field of a form. @param {string} label @param {any} input @param {string} [hint] */
export function field(label, input, hint) {
  return h('label', { class: 'field' }, h('span', null, label), input, hint && h('small', null, hint));
}

/** A field for the name of a queue, which offers those that the page knows. @param {string} label */
export function queueField(label) {
  const known = [...live.queues.keys()].sort().slice(0, 500);
  const list = h('datalist', { id: 'queues-known' }, ...known.map((value) => h('option', { value })));
  const input = h('input', { name: 'to', list: 'queues-known', autocomplete: 'off', spellcheck: 'false', required: true });
  return { input, nodes: [field(label, input), list] };
}
