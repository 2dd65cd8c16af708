// A table that may have 10,000 rows: sorted by its heads, and with elements only for those rows that are seen. The page scrolls, not the
// table.

import { attr, h, show } from './dom.js';

/**
 * @typedef {{id: string, label: any, class?: string, sort?: 'asc' | 'desc', title?: string}} Column `sort`: the order of the first click
 * @typedef {{by: string, desc: boolean}} Order
 */

/**
 * A list, or what makes the items of a part of one.
 * @template T @typedef {{length: number, slice: (first: number, last: number) => T[]}} Items
 */

/** A table of fewer rows than this has them all. */
const WINDOWED_FROM = 80;
/** So many rows beyond the edges are there already when one scrolls. */
const BEYOND = 12;

/**
 * @template T
 * @param {{caption: string, columns: Column[], row: (item: T) => {node: Element, set: (item: T) => void},
 *   signal: AbortSignal, order?: () => Order, onOrder?: (order: Order) => void, class?: string}} options
 */
export function table({ caption, columns, row, signal, order, onOrder, class: kind = '' }) {
  const heads = columns.map((column) => head(column, order, onOrder));
  const above = spacer();
  const below = spacer();
  const body = h('tbody');
  const headRow = h('tr', null, ...heads.map((one) => one.node));
  const cols = h('colgroup', null, ...columns.map((column) => h('col', { class: column.class ?? '' })));
  const name = h('caption', { class: 'unseen' }, caption);
  const node = h('table', { class: `rows ${kind}` }, name, cols, h('thead', null, headRow), above.node, body, below.node);
  /** @type {Items<T>} */ let items = [];
  let first = 0;
  let last = 0;
  let height = 0;
  const setRows = slots(body, row);
  /** Puts the rows in that are seen; measures only where something may have moved. @param {boolean} measured */
  const draw = (measured) => {
    if (items.length < WINDOWED_FROM) {
      first = 0;
      last = items.length;
    } else if (measured) {
      if (height === 0) height = body.firstElementChild?.getBoundingClientRect().height || 37;
      const top = headRow.getBoundingClientRect().bottom;
      first = Math.max(0, Math.floor(-top / height) - BEYOND);
      last = Math.min(items.length, Math.ceil((window.innerHeight - top) / height) + BEYOND);
      first = Math.min(first, Math.max(0, last - 1));
    }
    const shown = items.slice(first, last);
    setRows(shown, first);
    above.set(first * height);
    below.set((items.length - last) * height);
    if (items.length >= WINDOWED_FROM) shown.forEach((_, n) => attr(body.children[n], 'aria-rowindex', first + n + 2));
    attr(node, 'aria-rowcount', items.length >= WINDOWED_FROM ? items.length + 1 : null);
  };
  let asked = 0;
  const later = () => {
    if (asked === 0 && items.length >= WINDOWED_FROM) {
      asked = requestAnimationFrame(() => {
        asked = 0;
        if (!signal.aborted && node.isConnected) draw(true);
      });
    }
  };
  window.addEventListener('scroll', later, { signal, passive: true });
  const resized = () => {
    height = 0;
    later();
  };
  window.addEventListener('resize', resized, { signal, passive: true });
  // Who goes by keyboard is at the last row that has elements.
  node.addEventListener('edge', () => items.length >= WINDOWED_FROM && draw(true));
  return {
    node,
    /** Takes the rows in their order. @param {Items<T>} next */
    set: (next) => {
      const isMeasured = next.length !== items.length || height === 0;
      items = next;
      if (isMeasured && items.length >= WINDOWED_FROM && height === 0) {
        first = 0;
        last = Math.min(items.length, 40);
        draw(false);
      }
      draw(isMeasured);
      if (isMeasured) later();
    },
    /** The rows that have elements now. */
    seen: () => items.slice(first, last),
    order: () => heads.forEach(({ set }) => set()),
  };
}

/**
 * Rows of elements by their places: when the order changes nothing is moved, each place is told what stands there now. (A table whose
 * rows must keep their elements does not change its order while one of them is in use.)
 * @template T @param {Element} body @param {(item: T) => {node: Element, set: (item: T) => void}} row @returns {(items: T[], first: number) => void}
 */
function slots(body, row) {
  /** @type {Map<number, {node: Element, set: (item: T) => void}>} */ let places = new Map();
  return (items, first) => {
    const next = new Map();
    const free = [...places].filter(([n]) => n < first || n >= first + items.length).map(([, one]) => one);
    // Those that stay are not moved: the one that has the focus would lose it.
    for (const one of free) one.node.remove();
    let before = body.firstElementChild;
    items.forEach((item, n) => {
      const one = places.get(first + n) ?? free.pop() ?? row(item);
      next.set(first + n, one);
      if (one.node === before) before = before.nextElementSibling;
      else body.insertBefore(one.node, before);
      one.set(item);
    });
    places = next;
  };
}

/** @param {Column} column @param {(() => Order) | undefined} order @param {((next: Order) => void) | undefined} change */
function head(column, order, change) {
  const th = h('th', { scope: 'col', class: column.class ?? '', title: column.title });
  const arrow = h('span', { class: 'arrow', 'aria-hidden': 'true' });
  if (column.sort === undefined) {
    th.append(column.label);
    return { node: th, set: () => {} };
  }
  th.append(
    h(
      'button',
      {
        type: 'button',
        class: 'sort',
        on: {
          click: () => {
            const now = order?.();
            change?.({ by: column.id, desc: now?.by === column.id ? !now.desc : column.sort === 'desc' });
          },
        },
      },
      column.label,
      arrow,
    ),
  );
  const set = () => {
    const now = order?.();
    const isSorted = now?.by === column.id;
    attr(th, 'aria-sort', isSorted ? (now?.desc ? 'descending' : 'ascending') : 'none');
    arrow.textContent = isSorted ? (now?.desc ? '↓' : '↑') : '';
  };
  set();
  return { node: th, set };
}

/**
 * Stands for the rows that have no elements. Its one cell is in the first column, which is always shown: a wider one would make columns of
 * its own.
 */
function spacer() {
  const cell = h('td');
  const node = h('tbody', { class: 'spacer', 'aria-hidden': 'true' }, h('tr', null, cell));
  let height = -1;
  return {
    node,
    set: (/** @type {number} */ next) => {
      if (next === height) return;
      height = next;
      cell.style.setProperty('height', `${next}px`);
      show(node, next > 0);
    },
  };
}
