// What can be done to many jobs: to those that are selected one by one, to all that match by an operation of the server.

import { act, mayDo } from './acts.js';
import { attr, h, show, swap, text } from './dom.js';
import * as format from './format.js';
import { lazy, openWith } from './lazy.js';
import { button, failure, toast } from './widgets.js';

const loadAsk = lazy(() => import('./bulkask.js'));
const loadOperation = lazy(() => import('./operation.js'));

/** @typedef {{name: string, value: string}} Condition */
/** Which jobs are meant. @typedef {{conditions: Condition[], fixed: Record<string, string>}} Meant */
/**
 * `gone`: how many that were selected are not among `jobs`, since they have changed.
 * @typedef {Meant & {jobs: any[], gone: number, all: number | null, shown: number, isAll: boolean}} Selection
 */

/** The actions of an operation, and the states of the jobs that they are for. @type {Record<string, string[]>} */
const FOR = {
  retry: ['scheduled', 'dead'],
  redrive: ['dead', 'ready', 'scheduled', 'blocked'],
  move: ['ready', 'scheduled', 'blocked', 'dead'],
  set_priority: ['ready', 'scheduled', 'blocked'],
  replay: ['done', 'dead'],
  delete: ['ready', 'scheduled', 'blocked', 'dead', 'done'],
};

/**
 * The line above a list that acts on what is selected, or on all that match, and shows how far the operation is.
 * @param {{signal: AbortSignal, state: () => Selection, clear: () => void, changed: () => void, operation: (id: string | undefined) => void}} options
 */
export function bulkBar({ signal, state, clear, changed, operation }) {
  let isAll = false;
  const what = h('span', { role: 'status' });
  const toAll = h('button', {
    type: 'button',
    class: 'quiet',
    on: {
      click: () => {
        isAll = !isAll;
        draw();
      },
    },
  });
  const none = button(
    'Clear',
    () => {
      isAll = false;
      clear();
      draw();
    },
    { class: 'quiet' },
  );
  const run = async (/** @type {string} */ action) => {
    const selection = state();
    if (!isAll) {
      if (await openWith(loadAsk, ({ askSelected }) => askSelected(action, selection.jobs, selection.gone))) {
        clear();
        changed();
      }
      return;
    }
    const begun = await openWith(loadAsk, ({ askOperation }) => askOperation(action, selection));
    if (!begun) return;
    isAll = false;
    clear();
    toast('The operation is begun.');
    operation(begun.id);
  };
  const buttons = Object.keys(FOR)
    .filter((name) => mayDo(act(name)))
    .map((name) => ({
      name,
      node: button(act(name).label.replace(' …', ''), () => run(name), {
        class: name === 'delete' ? 'danger' : '',
        title: act(name).saysMany,
      }),
    }));
  const line = h('div', { class: 'row bulk' }, what, toAll, none, h('span', { class: 'grow' }), ...buttons.map(({ node }) => node));
  const place = h('div');
  const node = h('div', { class: 'stack small' }, line, place);
  let shownId = '';
  let ended = new AbortController();

  const draw = () => {
    const { jobs, gone, all, conditions, shown, isAll: pageIsAll } = state();
    const states = conditions.find(({ name }) => name === 'state')?.value.split(',');
    // With no job there is nothing to select; an operation stays.
    const any = !pageIsAll || shown > 0;
    for (const one of [line, toAll]) show(one, any);
    const known = pageIsAll ? shown : all;
    const many = known === null ? 'all that match' : known === 0 ? 'all that match' : `all ${format.count(known)} matching`;
    const isAny = jobs.length + gone > 0;
    const left = gone > 0 ? `, ${format.count(gone)} changed and left out` : '';
    const selected = isAny ? `${format.count(jobs.length)} selected${left}` : 'Select jobs, or';
    text(what, isAll ? `${many[0].toUpperCase()}${many.slice(1)}` : selected);
    text(toAll, isAll ? 'Only those selected' : `Select ${many}`);
    show(none, isAll || isAny);
    for (const { name, node: one } of buttons) {
      const fits = isAll ? states === undefined || states.every((is) => FOR[name].includes(is)) : jobs.some((job) => act(name).can(job));
      show(one, fits && (isAll || jobs.length > 0));
      attr(one, 'title', act(name).saysMany);
    }
  };
  /** Shows an operation. @param {string} id the empty text shows none */
  const showOperation = async (id) => {
    ended.abort();
    ended = new AbortController();
    const mine = AbortSignal.any([signal, ended.signal]);
    swap(place);
    if (id === '') return;
    try {
      const { operationCard } = await loadOperation();
      if (!mine.aborted) swap(place, operationCard(id, mine, { over: changed, close: () => operation(undefined) }));
    } catch (error) {
      if (!mine.aborted)
        swap(
          place,
          failure(error, () => showOperation(id)),
        );
    }
  };
  return {
    node,
    draw,
    /** Shows an operation, or none. @param {string | null} id */
    show(id) {
      if ((id ?? '') === shownId) return;
      shownId = id ?? '';
      showOperation(shownId);
    },
  };
}
