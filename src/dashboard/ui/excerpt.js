// Texts from outside in lists: what cannot be seen in them is shown, and no more than is read.

import { h } from './dom.js';
import { plain, visible } from './json.js';

/** A text with what cannot be seen in it shown as escapes. @param {string} text @param {boolean} [lines] whether line breaks stay @returns {Node[]} */
export function shown(text, lines = false) {
  return visible(text, lines).map((part) =>
    part.escape
      ? h(
          'span',
          { class: 'esc', title: 'This character itself is there; it is shown as an escape since one would not see it.' },
          part.text,
        )
      : document.createTextNode(part.text),
  );
}

/** The beginning of a raw text on one line. @param {string} raw @param {number} [most] */
export function excerpt(raw, most = 240) {
  const head = raw.slice(0, most * 2).replace(/[ \t\r\n]+/g, ' ');
  return head.length > most || raw.length > most * 2 ? `${plain(head.slice(0, most))}…` : plain(head);
}
