// The card of the dead-letter queues: how many jobs lie in each, of what they died, and what is done about them.

import { get, query } from './api.js';
import { act, mayDo } from './acts.js';
import { attr, each, h, show, swap, text } from './dom.js';
import * as format from './format.js';
import { shown } from './excerpt.js';
import { lazy, openWith } from './lazy.js';
import { lettersOf, WAITS } from './letters.js';
import * as live from './live.js';
import { every, link } from './router.js';
import { button, queueLink, when } from './widgets.js';

const READ_MS = 5000;
/** How often the queues themselves are looked for. */
const QUEUES_MS = 60_000;
/** How many pages of queues are read for their `dead_letter`. */
const PAGES = 5;
/** How many dead-letter queues are shown, and how many errors of each. */
const [QUEUES, ERRORS] = [20, 3];
const ACTIONS = ['redrive', 'move', 'delete'];
const loadAsk = lazy(() => import('./bulkask.js'));

/** @typedef {{queue: string, letters: import('./letters.js').Letters}} Row */

/**
 * @param {AbortSignal} signal
 * @param {{where: () => Record<string, string>, begun: (operation: any) => any}} options `where`: which queues are meant, by the place or where they died
 */
export function letterCard(signal, { where, begun }) {
  const rows = h('tbody');
  const note = h('p', { class: 'muted' });
  const node = h(
    'section',
    { class: 'card', 'aria-label': 'In dead-letter queues', hidden: true, 'data-first': true },
    h('h2', null, 'In dead-letter queues'),
    note,
    h('table', { class: 'dead' }, h('caption', { class: 'unseen' }, 'Dead-letter queues'), rows),
  );
  const keep = each(
    rows,
    (/** @type {Row} */ { queue }) => queue,
    (row) => makeRow(row.queue, begun),
  );
  // The dead-letter queues, each with the queues that send their dead there.
  /** @type {Map<string, Set<string>>} */ let queues = new Map();
  let foundAt = 0;
  let dirty = true;
  const isMeant = (/** @type {string} */ queue) => {
    const { queue: one, queue_prefix: prefix } = where();
    return one !== '' ? queue === one : queue.startsWith(prefix);
  };
  const read = async () => {
    if (Date.now() - foundAt > QUEUES_MS) {
      queues = await deadLetterQueues(signal);
      foundAt = Date.now();
      dirty = true;
    }
    if (!dirty) return;
    dirty = false;
    const meant = [...queues].filter(([queue, from]) => isMeant(queue) || [...from].some(isMeant)).slice(0, QUEUES);
    /** @type {Row[]} */ const found = [];
    for (const [queue] of meant) found.push({ queue, letters: await lettersOf(queue, signal) });
    const some = found.filter(({ letters }) => letters.count > 0);
    const sum = some.reduce((all, { letters }) => all + letters.count, 0);
    const isAll = some.every(({ letters }) => letters.isAll) && meant.length < QUEUES;
    text(note, `${format.plural(sum, 'job')}${isAll ? '' : ' or more'} that died elsewhere, in ${format.plural(some.length, 'queue')}.`);
    keep(some);
    show(node, some.length > 0);
  };
  const again = every(signal, READ_MS, () => read().finally(() => attr(node, 'data-first', null)));
  live.follow(signal, (changed, _, isNew) => {
    if (isNew || [...queues.keys()].some((queue) => changed.has(queue))) dirty = true;
  });
  return {
    node,
    again: () => {
      dirty = true;
      again();
    },
  };
}

/** The queues that settings name as dead-letter queues, and those in which recent jobs lie that died elsewhere. @param {AbortSignal} signal */
async function deadLetterQueues(signal) {
  /** @type {Map<string, Set<string>>} */ const found = new Map();
  const add = (/** @type {string} */ to, /** @type {string} */ from) => {
    const known = found.get(to) ?? new Set();
    found.set(to, known.add(from));
  };
  let cursor;
  for (let page = 0; page < PAGES; page += 1) {
    const { queues, cursor: next } = await get(query('/v1/queues', { limit: 1000, cursor }), signal);
    for (const { queue, dead_letter: to } of queues) if (to !== undefined) add(to, queue);
    cursor = next;
    if (next === undefined) break;
  }
  try {
    const search = { dead_lettered: true, state: WAITS, order: 'newest', payload: 'none', limit: 100 };
    const { jobs } = await get(query('/v1/jobs', search), signal);
    for (const { queue, dead_lettered_from: from } of jobs) if (from !== undefined) add(queue, from.queue);
  } catch (/** @type {any} */ error) {
    if (error.status !== 403) throw error; // a key of some queues: those that settings name are found
  }
  return found;
}

/** @param {string} queue @param {(operation: any) => any} begun */
function makeRow(queue, begun) {
  const count = h('span', { class: 'strong num dead-count' });
  const from = h('span', { class: 'row' });
  const errors = h('div', { class: 'stack small' });
  const to = link(['jobs'], { queue, dead_lettered: 'true' });
  const buttons = ACTIONS.filter((name) => mayDo(act(name))).map((name) =>
    button(
      act(name).label,
      async () => {
        const meant = { conditions: [{ name: 'dead_lettered', value: 'true' }], fixed: { queue } };
        const operation = await openWith(loadAsk, ({ askOperation }) => askOperation(name, meant));
        if (operation) await begun(operation);
      },
      { class: name === 'delete' ? 'danger' : '', title: act(name).saysMany },
    ),
  );
  const jobs = h('a', { class: 'button', href: to });
  let said = '';
  return {
    node: h(
      'tr',
      { 'data-row': true, 'data-href': to, tabindex: '-1' },
      h('td', { class: 'num' }, count),
      h('td', null, h('div', { class: 'row' }, queueLink(queue), from), errors, h('div', { class: 'row dead-acts' }, jobs, ...buttons)),
    ),
    set: (/** @type {Row} */ { letters }) => {
      text(jobs, letters.isAll && letters.count === 1 ? 'Show it' : 'Show them');
      text(count, `${format.count(letters.count)}${letters.isAll ? '' : '+'}`);
      const next = JSON.stringify([letters.errors, letters.from]);
      if (next === said) return;
      said = next;
      swap(from, h('span', { class: 'muted' }, 'from'), ...letters.from.slice(0, 10).map((name) => queueLink(name)));
      swap(
        errors,
        ...letters.errors
          .slice(0, ERRORS)
          .map(({ error, at }) =>
            h(
              'p',
              null,
              h('span', { class: 'pre bad' }, ...(error === '' ? ['Without an error'] : shown(error, true))),
              ' ',
              h('span', { class: 'muted' }, when(at)),
            ),
          ),
      );
    },
  };
}
