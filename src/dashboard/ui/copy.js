// Copying where the browser gives the page no clipboard.

import { h } from './dom.js';

/**
 * Copies a text by selecting it: over plain HTTP from another machine a page has no clipboard. In the dialog that is open, since nothing else may
 * have the focus then. @param {string} what
 */
export function copySelected(what) {
  const place = document.querySelector('dialog[open]') ?? document.body;
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  const field = h('textarea', { class: 'unseen', 'aria-hidden': 'true', readonly: true, value: what });
  place.append(field);
  field.select();
  const is = document.execCommand('copy');
  field.remove();
  focused?.focus();
  return is;
}
