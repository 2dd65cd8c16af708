// JSON as one reads it: folded, made as far as it is looked at, and never more of it than a page bears.

import { attr, h, show, swap, text as setText } from './dom.js';
import { shown } from './excerpt.js';
import * as format from './format.js';
import { members, whole } from './json.js';
import { copy } from './widgets.js';

/** How many members are shown at once. */
const STEP = 100;
/** How many rows are open from the beginning. */
const ROWS = 120;
/** What has more members, or is longer, is folded at first. */
const [MEMBERS, BYTES] = [50, 4000];
/** How much of a string is shown at once. */
const STRING = 2000;
/** How much of a raw text is shown at once: browsers are slow with long lines. */
const RAW = 50_000;

/** @param {string} text @param {import('./json.js').Value} value */
function leaf(text, value) {
  const all = text.slice(value.start, value.end);
  const node = h('span', { class: `j-${value.kind}` });
  let end = Math.min(STRING, all.length);
  node.append(...shown(all.slice(0, end)));
  if (end < all.length) {
    const more = h('button', {
      type: 'button',
      class: 'more',
      on: {
        click: () => {
          more.before(...shown(all.slice(end, end + RAW)));
          end = Math.min(end + RAW, all.length);
          label();
          if (end >= all.length) more.remove();
        },
      },
    });
    const label = () => setText(more, `… ${format.count(all.length - end)} more characters`);
    label();
    node.append(more);
  }
  return node;
}

/** How large a value is, in words: for what is folded. @param {string} text @param {import('./json.js').Value} value */
function size(text, value) {
  let n = 0;
  for (const _ of members(text, value)) if (++n > 999) break;
  const of = value.kind === '{' ? 'field' : 'element';
  const bytes = value.end - value.start;
  return `${n > 999 ? 'more than 999' : n} ${of}${n === 1 ? '' : 's'}${bytes > 2000 ? `, ${format.bytes(bytes)}` : ''}`;
}

/** Whether a value is folded at first; of the whole only the number of its members counts, so that one sees what it has. @param {string} text @param {import('./json.js').Value} value @param {boolean} isWhole */
function isLarge(text, value, isWhole) {
  if (!isWhole && value.end - value.start > BYTES) return true;
  let n = 0;
  for (const _ of members(text, value)) if (++n > MEMBERS) return true;
  return false;
}

/**
 * A row: a key, a value, and what is in it once that is opened.
 * @param {string} text @param {import('./json.js').Member} member @param {{left: number}} budget rows that may be open from the beginning
 */
function row(text, { key, value }, budget) {
  const isWhole = budget.left === ROWS;
  budget.left -= 1;
  const label = key
    ? [
        h(
          'span',
          { class: 'j-key' },
          ...shown(text.slice(key.start, Math.min(key.end, key.start + 300))),
          key.end - key.start > 300 && '…',
        ),
        ': ',
      ]
    : [];
  const isEmpty =
    value.end - value.start < 3 ||
    [...text.slice(value.start + 1, Math.min(value.end - 1, value.start + 40))].every((one) => ' \t\r\n'.includes(one));
  if ((value.kind !== '{' && value.kind !== '[') || (isEmpty && value.end - value.start < 40)) {
    return h('li', null, h('div', { class: 'j-line' }, ...label, leaf(text, value)));
  }
  const list = h('ul', { hidden: true });
  const brackets = value.kind === '{' ? ['{', '}'] : ['[', ']'];
  const about = h('span', { class: 'muted' }, size(text, value));
  const fold = h(
    'button',
    { type: 'button', class: 'fold', 'aria-expanded': 'false', on: { click: () => open(list.hidden) } },
    ...label,
    brackets[0],
    ' ',
    about,
    ' ',
    brackets[1],
  );
  let isMade = false;
  const open = (/** @type {boolean} */ is) => {
    if (is && !isMade) {
      isMade = true;
      fill(list, text, value, budget);
    }
    show(list, is);
    attr(fold, 'aria-expanded', is ? 'true' : 'false');
  };
  if (budget.left > 0 && !isLarge(text, value, isWhole)) open(true);
  return h('li', null, h('div', { class: 'j-line' }, fold), list);
}

/** @param {Element} list @param {string} text @param {import('./json.js').Value} value @param {{left: number}} budget */
function fill(list, text, value, budget) {
  const rest = members(text, value);
  const more = h('button', { type: 'button', class: 'more', on: { click: () => step() } }, `Show ${STEP} more`);
  const last = h('li', null, more);
  let next = rest.next();
  const step = () => {
    last.remove();
    for (let n = 0; n < STEP && !next.done; n++, next = rest.next()) list.append(row(text, next.value, budget));
    if (!next.done) list.append(last);
  };
  step();
}

/** JSON with folds. @param {string} text @returns {Element} */
export function pretty(text) {
  const value = whole(text);
  return h('ul', { class: 'json' }, row(text, { key: null, value }, { left: ROWS }));
}

/** A text as it is, a part at a time. @param {string} text @returns {Element} */
export function raw(text) {
  const node = h('pre', { class: 'raw', tabindex: '0' });
  let end = 0;
  const more = h('button', { type: 'button', class: 'more', on: { click: () => step() } });
  const step = () => {
    more.remove();
    node.append(...shown(text.slice(end, end + RAW), true));
    end = Math.min(end + RAW, text.length);
    if (end < text.length) {
      setText(more, `… ${format.count(text.length - end)} more characters`);
      node.append(more);
    }
  };
  step();
  return node;
}

/** Saves a text as a file. @param {string} name @param {BlobPart} content @param {string} type */
export function save(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  h('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * Raw JSON with its tools: folded or as it is, copy, download. Told the next text it changes only if that is another one.
 * @param {string} title @param {{file?: string, none?: string, badge?: Element}} [options]
 */
export function jsonCard(title, { file = 'value', none = 'None.', badge } = {}) {
  const body = h('div', { class: 'j-body' });
  const bytes = h('span', { class: 'muted num' });
  /** @type {string | undefined} */ let now;
  let asRaw = false;
  const draw = () => {
    if (now === undefined) return swap(body, h('p', { class: 'muted' }, none));
    if (asRaw) return swap(body, raw(now));
    try {
      swap(body, pretty(now));
    } catch {
      swap(body, raw(now)); // not JSON, which only what another program wrote can be
    }
  };
  const mode = h(
    'button',
    {
      type: 'button',
      class: 'quiet',
      'aria-pressed': 'false',
      on: {
        click: () => {
          asRaw = !asRaw;
          attr(mode, 'aria-pressed', asRaw ? 'true' : 'false');
          draw();
        },
      },
    },
    'Raw',
  );
  const tools = h(
    'div',
    { class: 'row' },
    bytes,
    mode,
    h('button', { type: 'button', class: 'quiet', on: { click: () => copy(now ?? '') } }, 'Copy'),
    h('button', { type: 'button', class: 'quiet', on: { click: () => save(`${file}.json`, now ?? '', 'application/json') } }, 'Download'),
  );
  const node = h(
    'section',
    { class: 'card', 'aria-label': title },
    h('div', { class: 'head' }, h('h2', null, title, badge && ' ', badge), tools),
    body,
  );
  return {
    node,
    /** @param {string | undefined} next */
    set(next) {
      if (next === now && body.firstChild) return;
      now = next;
      show(tools, next !== undefined);
      if (next !== undefined) setText(bytes, format.bytes(new Blob([next]).size));
      draw();
    },
  };
}
