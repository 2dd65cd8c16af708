// Parts of screens that are read again and again: a table, what a call returned, bars, pages.

import { attr, each, h, show, text, toggle } from './dom.js';
import * as format from './format.js';
import { plain } from './json.js';
import { every, go, link, parse } from './router.js';
import { button, failure, message } from './widgets.js';

/** How often what is not there is asked for, in milliseconds: it may be made meanwhile. */
const MISSING_MS = 15_000;

/**
 * Reads something now and every `ms`, and shows it. Until it is there the room is reserved; where it fails what was shown stays, and says since when
 * it is old.
 * @template T
 * @param {AbortSignal} signal @param {number} ms
 * @param {() => Promise<T>} load @param {(value: T) => void} set
 * @param {...any} content the parts that `set` fills
 * @returns {{node: any, again: () => Promise<void>, acts: (nodes: any[]) => any[]}} `acts` takes buttons that are hidden while what they are about is missing
 */
export function loaded(signal, ms, load, set, ...content) {
  const inner = h('div', { class: 'stack' }, ...content);
  const note = h('p', { class: 'remark bad', role: 'status', hidden: true });
  const waiting = h('div', { class: 'waiting', 'aria-hidden': 'true' });
  const node = h('div', { class: 'loaded', 'aria-busy': 'true', 'data-first': true }, note, waiting);
  let at = 0;
  let isRefused = false;
  let missingAt = 0;
  /** @type {any[]} */ let acts = [];
  const offer = (/** @type {boolean} */ is) => {
    for (const one of acts) {
      toggle(one, 'missing', !is);
      if (one instanceof HTMLButtonElement) attr(one, 'disabled', !is);
    }
  };
  const run = every(signal, ms, async () => {
    if (isRefused) return; // what a key may do does not change while the page is there
    if (Date.now() - missingAt < MISSING_MS) return;
    try {
      const value = await load();
      if (signal.aborted) return;
      at = Date.now();
      missingAt = 0;
      if (!inner.isConnected || node.lastChild !== inner) node.replaceChildren(note, inner);
      set(value);
      offer(true);
      show(note, false);
    } catch (/** @type {any} */ error) {
      if (signal.aborted) return;
      if (error.status === undefined) console.error(error);
      if (at === 0 || error.status === 404 || error.status === 403) {
        at = 0;
        isRefused = error.status === 403;
        if (error.status === 404) missingAt = Date.now();
        offer(false);
        node.replaceChildren(note, failure(error, again));
        show(note, false);
      } else {
        text(note, `Not read again since ${format.time(at)}: ${message(error)}`);
        show(note, true);
      }
    }
    attr(node, 'aria-busy', null);
    attr(node, 'data-first', null);
  });
  const again = () => {
    missingAt = 0;
    return run();
  };
  return {
    node,
    again,
    acts: (nodes) => {
      acts = nodes.filter(Boolean);
      offer(false);
      return nodes;
    },
  };
}

/**
 * A table that keeps its rows. `make` returns the contents of the cells and what sets them; `link` makes a row one that the keyboard opens.
 * @template T
 * @param {{caption: string, columns: (string | {label: string, class?: string, hidden?: boolean})[], key: (item: T) => string,
 *   make: (item: T) => {cells: any[], set?: (item: T) => void}, href?: (item: T) => string}} options
 */
export function grid({ caption, columns, key, make, href }) {
  const heads = columns.map((column) => (typeof column === 'string' ? { label: column, class: '', hidden: false } : column));
  const body = h('tbody', { role: 'rowgroup' });
  const rows = each(body, key, (/** @type {T} */ first) => {
    const { cells, set } = make(first);
    const node = h(
      'tr',
      { role: 'row', 'data-row': key(first), 'data-href': href?.(first), tabindex: '-1' },
      ...cells.map((cell, n) =>
        h(
          'td',
          { role: 'cell', class: heads[n].class || null, 'data-label': heads[n].hidden ? null : heads[n].label || null },
          ...(Array.isArray(cell) ? cell : [cell]),
        ),
      ),
    );
    return { node, set: (/** @type {T} */ item) => set?.(item) };
  });
  // The roles are said, since a narrow page shows the rows as blocks.
  const table = h(
    'table',
    { class: 'flow', role: 'table' },
    h('caption', { class: 'unseen' }, caption),
    h(
      'thead',
      { role: 'rowgroup' },
      h(
        'tr',
        { role: 'row' },
        ...heads.map((head) =>
          h(
            'th',
            { scope: 'col', role: 'columnheader', class: head.class || null },
            head.hidden ? h('span', { class: 'unseen' }, head.label) : head.label,
          ),
        ),
      ),
    ),
    body,
  );
  return { node: h('div', { class: 'scroll' }, table), set: rows };
}

/** A table and what is said instead of it while it has no rows. @param {{node: Element, set: (items: any[]) => void}} table @param {Element} none */
export function orNothing(table, none) {
  const node = h('div', null, table.node, none);
  return {
    node,
    set: (/** @type {any[]} */ items) => {
      show(table.node, items.length > 0);
      show(none, items.length === 0);
      table.set(items);
    },
  };
}

/** Goes through pages by their cursors, which are in the link. @param {import('./router.js').Context} context */
export function pager(context) {
  const first = button('First page', () => context.setParams({ cursor: undefined }));
  const next = button('Next page', () => context.setParams({ cursor: node.dataset.cursor }));
  const node = h('div', { class: 'row pager' }, first, next);
  return {
    node,
    set: (/** @type {string | undefined} */ cursor) => {
      const here = parse(location.hash).params.get('cursor');
      show(first, here !== null);
      show(next, cursor !== undefined);
      show(node, here !== null || cursor !== undefined);
      node.dataset.cursor = cursor ?? '';
    },
  };
}

/** Buttons of which one is chosen; the choice is in the link. @param {import('./router.js').Context} context @param {string} name @param {[string, string][]} choices value and label */
export function choice(context, name, choices) {
  const node = h(
    'div',
    { class: 'tabs', role: 'group' },
    ...choices.map(([value, label]) =>
      button(label, () => context.setParams({ [name]: value, cursor: undefined }), { 'data-value': value }),
    ),
  );
  return {
    node,
    set: (/** @type {URLSearchParams} */ params) => {
      for (const one of node.children) attr(one, 'aria-pressed', String(one.dataset.value === (params.get(name) ?? '')));
    },
  };
}

/** A bar that shows a share, with words beside it. @param {string} label for those who do not see it @param {string} [kind] */
export function bar(label, kind = '') {
  const inner = h('i');
  const node = h(
    'span',
    { class: `gauge ${kind}`, role: 'meter', 'aria-label': label, 'aria-valuemin': '0', 'aria-valuemax': '100' },
    inner,
  );
  return {
    node,
    set: (/** @type {number} */ share) => {
      const part = Math.max(0, Math.min(1, Number.isFinite(share) ? share : 0));
      inner.style.setProperty('--part', String(part));
      attr(node, 'aria-valuenow', Math.round(100 * part));
      toggle(node, 'full', part >= 1);
    },
  };
}

/**
 * Makes bars that run down until a lease ends. Each is full when its lease was last seen to begin or to be extended.
 * @param {AbortSignal} signal
 */
export function leases(signal) {
  /** @type {Set<{node: Element, run: () => void}>} */
  const all = new Set();
  every(signal, 500, () => {
    for (const one of all) {
      if (one.node.isConnected) one.run();
      else all.delete(one);
    }
  });
  /** @param {string} of what holds the lease */
  return (of) => {
    const shown = bar(`Lease of ${of}`, 'lease');
    const left = h('span', { class: 'left' });
    const node = h('span', { class: 'leased' }, shown.node, left);
    let until = 0;
    let whole = 0;
    const run = () => {
      const rest = until - format.now();
      text(left, until === 0 ? '–' : rest > 0 ? format.duration(rest < 10_000 ? Math.ceil(rest / 1000) * 1000 : rest, true) : 'run out');
      shown.set(whole === 0 ? 0 : rest / whole);
      toggle(node, 'warn', rest < whole / 5 && rest > 0);
      toggle(node, 'bad', until > 0 && rest <= 0);
    };
    const one = { node, run };
    all.add(one);
    return {
      node,
      /** @param {string | undefined} at when it ends @param {string} [from] when it began */
      set: (at, from) => {
        all.add(one);
        const next = at ? Date.parse(at) : 0;
        if (next !== until) {
          // Without its beginning a lease shows no share until it is seen to be extended.
          const began = until !== 0 ? format.now() : from ? Math.max(Date.parse(from), next - 86_400_000) : undefined;
          whole = began === undefined ? 0 : Math.max(1, next - began);
          until = next;
          show(shown.node, whole > 0);
          attr(left, 'title', at && `until ${format.exact(at)}`);
        }
        run();
      },
    };
  };
}

/** A screen with its heading and what can be done. @param {any} title @param {any[]} actions @param {...any} content */
export function page(title, actions, ...content) {
  return h(
    'div',
    { class: 'stack' },
    h('div', { class: 'head' }, h('h1', null, title), h('div', { class: 'row' }, ...actions)),
    ...content,
  );
}

/** The way back from one thing to the list of all. @param {string} part @param {string} label @param {string} name */
export function crumb(part, label, name) {
  return h(
    'span',
    null,
    h('a', { href: link([part]), class: 'crumb' }, label),
    h('span', { class: 'muted', 'aria-hidden': 'true' }, ' / '),
    plain(name),
  );
}

/** The call for a shell, to be copied. @param {string} line */
export function shellLine(line) {
  return h('code', { class: 'shell' }, line);
}

/** Goes to the list, after what was shown is deleted. @param {string} part */
export function leave(part) {
  go(link([part]), true);
}
