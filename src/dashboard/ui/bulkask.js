// What is asked before something is done to many jobs: to those that are selected, or to all that match.

import { answerOf, attempts, curl } from './api.js';
import { act } from './acts.js';
import { ask, field, queueField } from './dialog.js';
import { h, show, swap, text } from './dom.js';
import * as format from './format.js';
import { plain } from './json.js';
import { ACTIONS } from './operation.js';
import { perform } from './perform.js';
import { filterOf, inWords as conditionInWords } from './search.js';
import { button, copy, jobLink, message, toast } from './widgets.js';

/** @typedef {import('./bulk.js').Meant} Meant */

/** What says where the jobs are and what state they are in, but not which of them. */
const WIDE = ['queue', 'queue_prefix', 'state', 'dead_lettered'];
/** From so many selected jobs on a move must be confirmed. */
const MANY = 10;

/**
 * What must be typed before it is done, or undefined: the name of the queue, the beginning of their names, "everything", or what is done. That is asked
 * where jobs are deleted or moved, and where all jobs of all queues are meant.
 * @param {string} action @param {Meant} meant @returns {string | undefined}
 */
export function wordOf(action, { conditions, fixed }) {
  const { queue, confirm } = filterOf(conditions, fixed);
  const isAll = confirm === 'all queues';
  const isNarrow = [...Object.keys(fixed), ...conditions.map(({ name }) => name)].some((name) => !WIDE.includes(name));
  if (action !== 'delete' && action !== 'move' && (!isAll || isNarrow)) return undefined;
  return queue ?? (isAll ? (isNarrow ? action : 'everything') : confirm);
}

/** The fields that an action needs. @param {string} action */
function wishes(action) {
  const { input: to, nodes: toNodes } = queueField('To the queue');
  const priority = h('input', {
    name: 'priority',
    type: 'number',
    step: '1',
    required: action === 'set_priority',
    placeholder: action === 'move' ? 'as it is' : '0',
  });
  const limit = h('input', { name: 'limit', type: 'number', min: '1', step: '1', placeholder: 'all' });
  return {
    limit: field('At most', limit, 'Leave it empty for all of them.'),
    fields: [action === 'move' && toNodes, (action === 'move' || action === 'set_priority') && field('Priority', priority)]
      .flat()
      .filter(Boolean),
    to,
    ready: () => (action !== 'move' || to.value !== '') && (action !== 'set_priority' || priority.value !== ''),
    read: () => ({
      to: action === 'move' ? to.value : undefined,
      priority: priority.value === '' ? undefined : Number(priority.value),
      limit: limit.value === '' ? undefined : Number(limit.value),
    }),
  };
}

/** The raw text of an operation: values of payloads are in it as they are written. @param {Meant} meant @param {string} action @param {{to?: string, priority?: number, limit?: number}} wanted @param {boolean} dry */
export function requestText(meant, action, wanted, dry) {
  const { filter, confirm } = filterOf(meant.conditions, meant.fixed);
  const rest = JSON.stringify({ action, ...wanted, confirm, dry_run: dry || undefined }, null, 1)
    .replaceAll('\n ', ' ')
    .replace(/^\{ ?/, '')
    .replace(/\n?\}$/, '');
  return `{"filter": ${filter}, ${rest}}`;
}

/**
 * How many jobs a dry run found, in words. `most`: no more than these are affected.
 * @param {any} found @param {string} action @param {number} [most]
 */
export function countInWords({ matched, scanned, complete, estimate }, action, most = Infinity) {
  const { done } = ACTIONS[action];
  const known = complete ? matched : estimate;
  if (most < (known ?? matched)) {
    const of = complete ? '' : known === undefined ? 'at least ' : 'about ';
    return `${format.count(most)} of ${of}${format.plural(known ?? matched, 'job')} would be ${done}.`;
  }
  if (complete) return `${format.plural(matched, 'job')} would be ${done}.`;
  return known !== undefined
    ? `About ${format.plural(known, 'job')} would be ${done}; ${format.count(matched)} of ${format.count(scanned)} looked at match.`
    : `${format.count(matched)} of the ${format.count(scanned)} jobs looked at so far match; how many there are in all is not known.`;
}

/** Whether a dry run has shown that there is nothing to do. @param {any} found */
export function isNothing(found) {
  return found !== null && found.complete && found.matched === 0;
}

/** What a dry run found, in words. @param {any} found @param {string} action @param {number} [most] */
export function inWords(found, action, most) {
  const { samples } = found;
  return [
    h('p', { class: 'strong' }, countInWords(found, action, most)),
    samples.length > 0 &&
      h(
        'p',
        { class: 'muted' },
        'Such as ',
        ...samples
          .slice(0, 3)
          .flatMap((/** @type {any} */ one, /** @type {number} */ n) => [n > 0 && ', ', jobLink(one.id), ` in ${plain(one.queue)}`]),
      ),
    action === 'replay' && h('p', { class: 'muted' }, 'Copies are pushed; these jobs stay.'),
  ];
}

/** How long after the last letter that was typed is counted, in milliseconds. */
const TYPED_AFTER_MS = 300;
/** For how long what was counted is confirmed without counting again, in milliseconds. */
export const FRESH_MS = 10_000;

/**
 * What a dry run finds, in words. `count` makes one now, `later` a moment after something was typed, which ends what was found before; `isAny` says
 * whether one has found anything to do. `verify` counts again what was counted a while ago, and refuses where there are more by now than were shown.
 * @param {string} action @param {() => Promise<any>} look makes the dry run @param {() => number | undefined} most so many are wanted at most
 */
export function counter(action, look, most) {
  const node = h('div', { class: 'dry', role: 'status' });
  /** @type {any} */ let found = null;
  let timer = 0;
  let round = 0;
  let countedAt = 0;
  const tell = () => found !== null && swap(node, ...inWords(found, action, most()));
  /** Forgets what was found, and says this. @param {string} words */
  const forget = (words) => {
    clearTimeout(timer);
    round += 1; // what is being counted is of other conditions
    found = null;
    swap(node, h('p', { class: 'muted' }, words));
  };
  const count = async () => {
    forget('Counting …');
    const mine = round;
    try {
      const counted = await look();
      if (mine !== round) return;
      found = counted;
      countedAt = Date.now();
      tell();
      node.dispatchEvent(new Event('input', { bubbles: true })); // the form judges its button again
    } catch (error) {
      if (mine === round) swap(node, h('p', { class: 'problem' }, message(error)), button('Count again', count, { class: 'quiet' }));
    }
  };
  const later = () => {
    forget('Counting …');
    timer = window.setTimeout(count, TYPED_AFTER_MS);
  };
  const verify = async () => {
    if (Date.now() - countedAt < FRESH_MS) return;
    const shown = found;
    await count();
    if (found === null) throw new Error('They could not be counted again: nothing was done.');
    // What is only estimated differs each time.
    if (shown?.complete && (!found.complete || found.matched > shown.matched))
      throw new Error('There are more by now than were shown: look at the count, and confirm it again.');
  };
  return { node, tell, forget, count, later, verify, isAny: () => found !== null && !isNothing(found) };
}

/**
 * What a dry run asks for: that of the action itself, since which jobs it is for depends on where they go. Undefined until that is known; a priority does
 * not matter, but the request needs one. @param {string} action @param {{to?: string}} wanted
 */
export function wantedDry(action, { to }) {
  if (action === 'move') return to === '' ? undefined : { to };
  return action === 'set_priority' ? { priority: 0 } : {};
}

/**
 * Asks about an operation over all jobs that match, with a dry run, and begins it. Resolves to the operation, if it was begun.
 * @param {string} action @param {Meant} meant @returns {Promise<any>}
 */
export async function askOperation(action, meant) {
  const wish = wishes(action);
  const keys = attempts();
  const word = wordOf(action, meant);
  const typed = h('input', { type: 'text', name: 'word', autocomplete: 'off', spellcheck: 'false' });
  const dry = counter(
    action,
    () => {
      const raw = requestText(meant, action, wantedDry(action, wish.read()) ?? {}, true);
      return answerOf('POST', '/v1/operations', { raw, changes: false });
    },
    () => wish.read().limit,
  );
  const line = h('code', { class: 'curl' });
  const shown = h(
    'details',
    null,
    h('summary', null, 'The same as curl'),
    line,
    button('Copy', () => copy(line.textContent ?? ''), { class: 'quiet' }),
  );
  const say = () => text(line, curl('POST', '/v1/operations', requestText(meant, action, wish.read(), false)));
  const words = [...Object.entries(meant.fixed).map(([name, value]) => ({ name, value })), ...meant.conditions]
    .map(conditionInWords)
    .map(({ label, value }) => h('li', { class: 'chip still' }, h('span', null, label), h('b', null, value)));
  const body = [
    h('p', null, act(action).saysMany),
    h(
      'ul',
      { class: 'row chips' },
      ...(words.length > 0 ? words : [h('li', { class: 'chip still' }, h('b', null, 'all jobs of all queues'))]),
    ),
    dry.node,
    ...wish.fields,
    wish.limit,
    word !== undefined &&
      h('label', { class: 'field' }, h('span', null, 'Type ', h('strong', { class: 'mono' }, word), ' to confirm'), typed),
    shown,
  ].filter(Boolean);
  const isReady = () => wantedDry(action, wish.read()) !== undefined;
  const judge = (/** @type {() => void} */ count) => (isReady() ? count() : dry.forget('Say where they go, and they are counted.'));
  judge(dry.count);
  wish.to.addEventListener('input', () => judge(dry.later));
  say();
  wish.limit.addEventListener('input', dry.tell);
  const result = await ask({
    title: `${ACTIONS[action].verb} all jobs that match`,
    body,
    action: ACTIONS[action].verb.replace(' of', ''),
    danger: action === 'delete',
    wide: true,
    ready: () => {
      say();
      return wish.ready() && dry.isAny() && (word === undefined || typed.value === word);
    },
    submit: async () => {
      await dry.verify();
      const raw = requestText(meant, action, wish.read(), false);
      return answerOf('POST', '/v1/operations', { raw, headers: keys(raw) });
    },
  });
  return result;
}

/** Does something to each of these, a few at a time. @param {string} action @param {any[]} jobs @param {any} wanted @param {(done: number) => boolean} goesOn told how many are done */
async function each(action, jobs, wanted, goesOn) {
  const one = act(action);
  /** @type {string[]} */ const problems = [];
  let next = 0;
  let done = 0;
  const work = async () => {
    while (next < jobs.length && goesOn(done)) {
      const job = jobs[next++];
      try {
        await perform(one, job, wanted);
      } catch (error) {
        problems.push(`${job.id}: ${message(error)}`);
      }
      goesOn(++done);
    }
  };
  await Promise.all([work(), work(), work(), work()]);
  return { problems, done };
}

/**
 * Asks about an action on the selected jobs, and does it. `gone`: how many are not among them, since they are not what was selected any more.
 * @param {string} action @param {any[]} jobs @param {number} gone @returns {Promise<boolean>}
 */
export async function askSelected(action, jobs, gone) {
  const one = act(action);
  const some = jobs.filter((job) => one.can(job) || (action === 'delete' && job.state !== 'reserved'));
  const wish = wishes(action);
  const queues = [...new Set(some.map(({ queue }) => queue))];
  const mustType = one.danger || (action === 'move' && some.length > MANY);
  const word = queues.length === 1 ? queues[0] : `${some.length} jobs`;
  const typed = h('input', { type: 'text', name: 'word', autocomplete: 'off', spellcheck: 'false' });
  const progress = h('p', { class: 'muted', role: 'status' });
  let isStopped = false;
  const stop = h('button', { type: 'button', hidden: true, on: { click: () => (isStopped = true) } }, 'Stop');
  const left = jobs.length - some.length;
  const many = format.plural(some.length, 'job');
  const body = [
    h(
      'p',
      null,
      `${many} ${queues.length === 1 ? `of ${plain(queues[0])}` : `of ${queues.length} queues`}. ${some.length === 1 ? one.says : one.saysMany}`,
    ),
    left > 0 &&
      h(
        'p',
        { class: 'warn' },
        `${format.count(left)} of those selected ${left === 1 ? 'is' : 'are'} left as ${left === 1 ? 'it is' : 'they are'}: the state does not allow it.`,
      ),
    gone > 0 &&
      h(
        'p',
        { class: 'warn' },
        `${format.count(gone)} of those selected ${gone === 1 ? 'has' : 'have'} changed since, and ${gone === 1 ? 'is' : 'are'} left out.`,
      ),
    ...wish.fields,
    mustType && h('label', { class: 'field' }, h('span', null, 'Type ', h('strong', { class: 'mono' }, word), ' to confirm'), typed),
    progress,
    stop,
  ].filter(Boolean);
  if (some.length === 0) {
    toast('None of the selected jobs is in a state that allows this.', 'bad');
    return false;
  }
  /** @type {string[]} */ let problems = [];
  let ended = 0;
  const done = await ask({
    title: `${ACTIONS[action].verb} ${many}`,
    body,
    action: ACTIONS[action].verb.replace(' of', ''),
    danger: one.danger,
    ready: () => wish.ready() && (!mustType || typed.value === word),
    submit: async () => {
      show(stop, true);
      ({ problems, done: ended } = await each(action, some, wish.read(), (n) => {
        text(progress, `${format.count(n)} of ${many}${isStopped ? ': stopping' : ''} …`);
        return !isStopped;
      }));
      return true;
    },
  });
  if (!done) return false;
  toast(
    `${ended < some.length ? `Stopped after ${format.count(ended)} of ${many}: ` : ''}${format.plural(ended - problems.length, 'job')} ${ACTIONS[action].done}.${problems.length > 0 ? ` ${problems.length} not: ${problems[0]}` : ''}`,
    problems.length > 0 ? 'bad' : '',
  );
  return true;
}
