// What keys do, wherever one is; not while something is typed, and never with another key held.

import { help, openPalette } from './commands.js';
import { attr, isTyping } from './dom.js';
import { go, link } from './router.js';
import { SECTIONS } from './shell.js';

/** How long a `g` waits for its letter, in milliseconds. */
const LETTER_MS = 1500;

export function keyboard() {
  let wanted = 0;
  document.addEventListener('keydown', (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (isTyping(event.target) || document.querySelector('dialog[open]') !== null) return;
    const { key } = event;
    if (Date.now() - wanted < LETTER_MS) {
      wanted = 0;
      const section = SECTIONS.find((one) => one.key === key);
      if (section !== undefined) {
        event.preventDefault();
        go(link(section.part === '' ? [] : [section.part]));
        return;
      }
    }
    const done = {
      '/': openPalette,
      '?': help,
      g: () => {
        wanted = Date.now();
      },
      j: () => step(1),
      k: () => step(-1),
      ArrowDown: () => here() !== null && step(1),
      ArrowUp: () => here() !== null && step(-1),
      x: choose,
      Enter: () => open(event.target),
    }[key];
    if (done !== undefined && done() !== false) event.preventDefault();
  });
}

/** Whether a row is shown, and something can be done with it. @param {any} row */
function isStop(row) {
  return row.offsetParent !== null && (targetOf(row) !== null || row.querySelector('input[type=checkbox]') !== null);
}

/** Where a row leads. @param {HTMLElement} row @returns {string | null} */
function targetOf(row) {
  return row.dataset.href ?? row.querySelector('a[href]')?.getAttribute('href') ?? null;
}

/** The rows of the table that one is in, or of the first one that has any. @returns {HTMLElement[]} */
function rows() {
  const table = here()?.closest('table') ?? [...document.querySelectorAll('main tr[data-row]')].find(isStop)?.closest('table');
  return /** @type {HTMLElement[]} */ ([...(table?.querySelectorAll(':scope > tbody > tr[data-row]') ?? [])]).filter(isStop);
}

/** The row that has the focus, or something in it. @returns {HTMLElement | null} */
function here() {
  return document.activeElement?.closest('main tr[data-row]') ?? null;
}

/** The row that had it last: going on where one was, after a click elsewhere. @type {WeakRef<HTMLElement> | null} */
let last = null;

/** @param {number} by */
function step(by) {
  const all = rows();
  if (all.length === 0) return false;
  // What waits for what is above it to be read has no focus: by keyboard one does not wait.
  for (const one of document.querySelectorAll('[data-first]')) attr(one, 'data-first', null);
  const from = here() ?? last?.deref();
  const at = from === null || from === undefined ? -1 : all.indexOf(from);
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + by))];
  attr(next, 'tabindex', '-1');
  next.focus({ preventScroll: true });
  // Not under the bar at the top: scroll-margin is in the style.
  next.scrollIntoView({ block: 'nearest' });
  // A table of many rows has only those that are seen: the next ones are there before the next key.
  if (next === all[0] || next === all[all.length - 1]) next.closest('table')?.dispatchEvent(new Event('edge'));
  last = new WeakRef(next);
  return true;
}

/** Selects the row, or no longer. */
function choose() {
  const box = /** @type {HTMLElement | null | undefined} */ (here()?.querySelector('input[type=checkbox]'));
  box?.click();
  return box !== null && box !== undefined;
}

/** @param {EventTarget | null} target a link or a button in the row has its own Enter */
function open(target) {
  const row = here();
  if (row === null || target !== row) return false;
  const to = targetOf(row);
  if (!to) return false;
  go(to);
  return true;
}
