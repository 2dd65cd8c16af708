// What is asked before something is done to a queue. What concerns many jobs is an operation of the server: a dry run says how many there are, and
// the list of jobs shows how far it is.

import { answerOf, attempts, curl, del, get, path, post, query } from './api.js';
import * as board from './board.js';
import { counter, FRESH_MS } from './bulkask.js';
import { ask, confirm, field } from './dialog.js';
import { h, text } from './dom.js';
import { parseDuration, READ } from './fields.js';
import * as format from './format.js';
import { ACTIONS } from './operation.js';
import { BULK } from './queueacts.js';
import { go, link } from './router.js';
import { button, copy, toast } from './widgets.js';

/**
 * What the operation is, and which jobs may be chosen. With `types` the name of the queue must be typed.
 * @type {Record<string, {action: string, states?: string[], time: 'from' | 'died_from' | 'before', timeLabel: string, types: boolean}>}
 */
const CALLS = {
  redrive: { action: 'redrive', time: 'died_from', timeLabel: 'Only those that died within the last', types: false },
  replay: { action: 'replay', states: ['done'], time: 'from', timeLabel: 'Only those that finished within the last', types: false },
  purge: {
    action: 'delete',
    states: ['dead', 'ready', 'scheduled', 'blocked', 'done'],
    time: 'before',
    timeLabel: 'Only those older than',
    types: true,
  },
};

/** How many jobs a queue has, also where the stream leaves it out. @param {string} queue @returns {Promise<Record<string, number>>} */
async function countsOf(queue) {
  const { counts } = await get(path('queues', queue, 'stats'));
  return counts;
}

/** Asks which jobs are meant, says how many there are, and begins. Resolves to the operation. @param {string} name of `BULK` @param {string} queue */
export function askBulk(name, queue) {
  const { title, says } = BULK[name];
  const bulk = CALLS[name];
  const state = h(
    'select',
    { name: 'state' },
    (bulk.states ?? []).map((one) => h('option', { value: one }, one)),
  );
  const time = h('input', { type: 'text', name: 'time', placeholder: 'any time', autocomplete: 'off', spellcheck: 'false' });
  const limit = h('input', { type: 'text', name: 'limit', inputmode: 'numeric', placeholder: 'all', autocomplete: 'off' });
  const word = h('input', { type: 'text', name: 'word', autocomplete: 'off', spellcheck: 'false' });
  const keys = attempts();
  /** When the time was typed: what is counted is what is acted on. */
  let typedAt = format.now();
  /** The most jobs, where so many are wanted. */
  const most = () => (limit.value.trim() === '' ? undefined : Number(READ.whole(limit.value, 'At most')));
  /** The body of the call. @param {boolean} isDry */
  const make = (isDry) => {
    const ms = time.value.trim() === '' ? undefined : parseDuration(time.value);
    if (ms === undefined && time.value.trim() !== '') throw new Error(`${bulk.timeLabel}: write a duration such as 90s, 6h or 7d.`);
    const at = ms === undefined ? undefined : new Date(typedAt - ms).toISOString();
    const filter = { queue, state: bulk.states === undefined ? undefined : state.value, [bulk.time]: at };
    return { filter, action: bulk.action, limit: isDry ? undefined : most(), dry_run: isDry || undefined };
  };
  /** Says how many jobs are in each state, and chooses the first that has any. */
  const offer = async () => {
    const counts = await countsOf(queue);
    for (const option of state.options) text(option, `${option.value} (${format.count(counts[option.value])})`);
    isOffered = true;
    if (!isChosen) state.value = bulk.states?.find((one) => counts[one] > 0) ?? state.value;
  };
  const isNumber = () => /^\s*\d+\s*$/.test(limit.value); // what is wrong with another one is said where it is sent
  let isOffered = bulk.states === undefined || bulk.states.length === 1;
  let isChosen = false;
  const look = async () => {
    if (!isOffered) await offer();
    return answerOf('POST', path('operations'), { body: make(true), changes: false });
  };
  const dry = counter(bulk.action, look, () => (isNumber() ? most() : undefined));
  state.addEventListener('input', () => {
    isChosen = true;
    dry.later();
  });
  time.addEventListener('input', () => {
    typedAt = format.now();
    dry.later();
  });
  limit.addEventListener('input', dry.tell);
  dry.count();
  const body = [
    h('p', null, says),
    bulk.states !== undefined && bulk.states.length > 1 && field('Jobs that are', state),
    h('div', { class: 'fields' }, field(bulk.timeLabel, time, 'Such as 6h or 7d'), field('At most', limit, 'So many jobs')),
    dry.node,
    bulk.types && h('label', { class: 'field' }, h('span', null, 'Type ', h('strong', { class: 'mono' }, queue), ' to confirm'), word),
    h(
      'p',
      null,
      button('Copy as curl', () => copy(curl('POST', path('operations'), JSON.stringify(make(false)))), { class: 'quiet' }),
    ),
  ].filter(Boolean);
  return ask({
    title: `${title} ${queue}`,
    body,
    action: ACTIONS[bulk.action].verb,
    danger: bulk.types,
    ready: () => dry.isAny() && (!bulk.types || word.value === queue),
    submit: async () => {
      await dry.verify();
      const body = make(false);
      const begun = await post(path('operations'), body, keys(JSON.stringify(body)));
      toast('The operation is begun: the list of jobs shows how far it is.');
      return begun;
    },
  });
}

/** Reads what is said before a queue is deleted; what it returns asks, and deletes it. @param {string} queue */
export async function loadDelete(queue) {
  const counts = await countsOf(queue);
  return () => deleteQueue(queue, counts);
}

/** @param {string} queue @param {Record<string, number>} counts of its jobs */
async function deleteQueue(queue, counts) {
  const sum = (/** @type {Record<string, number>} */ of) => Object.values(of).reduce((all, n) => all + n, 0);
  let jobs = sum(counts);
  let countedAt = Date.now();
  const what =
    jobs > 0
      ? `The settings of ${queue} and its ${format.plural(jobs, 'job')} are deleted for good${counts.reserved > 0 ? `, ${format.plural(counts.reserved, 'reserved one', 'reserved ones')} included: their workers cannot commit them any more` : ''}.`
      : `The settings of ${queue} are deleted: it has the defaults, should a job be pushed to it again.`;
  const done = await confirm({
    title: `Delete ${queue}`,
    text: what,
    action: 'Delete',
    word: queue,
    submit: async () => {
      if (Date.now() - countedAt > FRESH_MS) {
        const shown = jobs;
        jobs = sum(await countsOf(queue));
        countedAt = Date.now();
        if (jobs > shown) throw new Error(`It has ${format.plural(jobs, 'job')} by now: confirm it again to delete them all.`);
      }
      await del(query(path('queues', queue), { force: jobs > 0 ? true : undefined }));
      return true;
    },
  });
  if (!done) return;
  board.setDeleted(queue);
  toast(`${queue} is deleted`);
  go(link(['queues']));
}
