// What needs somebody: why in words, and the next step as a button.

import { get, path, query } from './api.js';
import { REASONS } from './board.js';
import { attr, each, h, show, swap, text } from './dom.js';
import * as format from './format.js';
import { judged } from './letters.js';
import * as live from './live.js';
import { needLine, nextStep } from './need.js';
import { every, link } from './router.js';
import { failure, queueLink } from './widgets.js';

/** @typedef {import('./need.js').Need} Need */
/** @typedef {{id: string, queue?: string, name: string, need: Need}} Item */

const READ_MS = 5000;
/** Something has happened that may change the list: it is read again soon. */
const SOON_MS = 700;
/** So many are shown; a link leads to the others. */
const SHOWN = 8;

/** The card of the overview. @param {AbortSignal} signal */
export function attention(signal) {
  const list = h('ul', { class: 'needs' });
  const calm = h('p', { class: 'calm', hidden: true }, h('i', { class: 'dot good' }), h('span'));
  const more = h('a', { href: link(['queues'], { attention: 'true' }), hidden: true });
  const problem = h('div');
  const node = h(
    'section',
    { class: 'card attention', 'aria-label': 'Needs attention', 'data-first': true },
    h('div', { class: 'head' }, h('h2', null, 'Needs attention'), more),
    problem,
    list,
    calm,
  );
  /** @type {Item[]} */ let queues = [];
  /** @type {Item[]} */ let tasks = [];
  let read = false;
  /** How many queues there are in all where not all were read. */
  let others = 0;
  /** Of how many queues something is not known yet. */
  let unjudged = 0;
  const set = each(
    list,
    (/** @type {Item} */ item) => item.id,
    (item) => makeNeed(item, () => load()),
  );
  const draw = () => {
    const all = [...tasks, ...queues];
    set(all.slice(0, SHOWN));
    show(more, all.length > SHOWN && queues.length > 0);
    // The list that it leads to counts queues, of which one may have several reasons.
    const many = others > 0 ? others : new Set(queues.map(({ name }) => name)).size;
    text(more, `All ${format.plural(many, 'queue')}`);
    show(calm, read && all.length === 0 && problem.firstChild === null);
  };
  const load = every(signal, READ_MS, async () => {
    let isLost = false;
    try {
      const page = await get(query(path('queues'), { attention: 'true', sort: '-attention', limit: 100 }), signal);
      queues = page.queues
        .flatMap(needsOf)
        .sort((/** @type {Item} */ a, /** @type {Item} */ b) => urgency(a) - urgency(b) || b.need.jobs - a.need.jobs);
      await Promise.all(queues.slice(0, SHOWN).map(async (item) => (item.need = await judged(item.name, item.need, signal))));
      others = page.cursor === undefined ? 0 : (page.figures?.matched ?? 0);
      unjudged = page.figures?.unjudged ?? 0;
      read = true;
      swap(problem);
    } catch (error) {
      if (signal.aborted) return;
      isLost = /** @type {any} */ (error).status === 0;
      if (!read || !isLost)
        swap(
          problem,
          failure(error, () => load()),
        ); // that the connection is lost is said above
    }
    draw();
    attr(node, 'data-first', null);
    text(calm.lastElementChild, isLost ? 'Nothing needed you when the connection was lost.' : calmly(unjudged));
  });
  let soon = 0;
  live.follow(signal, (_, happened) => {
    if (soon === 0 && happened.some(({ kind }) => kind === 'paused' || kind === 'resumed' || kind === 'dead')) {
      soon = window.setTimeout(() => {
        soon = 0;
        if (!signal.aborted && !document.hidden) load();
      }, SOON_MS);
    }
  });
  return {
    node,
    /** @param {any[]} all the tasks of this server */
    tasks: (all) => {
      tasks = all.filter(isFailing).map(({ name, last_error: error }) => ({
        id: `task ${name}`,
        name,
        need: {
          reason: 'task',
          jobs: 0,
          detail: `the background task ${name} of this server fails: ${error}`,
          next_step: 'See the log of the server, and whether its store is well.',
        },
      }));
      draw();
    },
  };
}

/** What is said where no queue is listed. @param {number} unjudged of how many queues something is not known yet */
export function calmly(unjudged) {
  if (unjudged === 0) return 'Nothing needs you.';
  return `Nothing is known to need you; ${unjudged === 1 ? 'one queue is' : `${unjudged} queues are`} not judged yet.`;
}

/** Whether the last run of a task failed. @param {any} task */
export function isFailing({ last_error_ms_ago: failed, last_run_ms_ago: ended }) {
  return failed !== undefined && failed <= (ended ?? 0) + 5;
}

/** @param {any} queue of the list @returns {Item[]} */
function needsOf({ queue, figures }) {
  return (figures?.attention ?? []).map((/** @type {Need} */ need) => ({ id: `${queue} ${need.reason}`, queue, name: queue, need }));
}

/** @param {Item} item */
function urgency({ need }) {
  return REASONS.indexOf(need.reason);
}

/** @param {Item} item @param {() => void} changed */
function makeNeed({ queue, name }, changed) {
  const line = needLine({
    name: queue === undefined ? h('span', { class: 'name strong' }, name) : queueLink(queue),
    words: ({ detail }) => detail,
    step: (need) => nextStep(queue, need, changed),
  });
  return { node: line.node, set: (/** @type {Item} */ { need }) => line.set(need) };
}
