// One reason why a queue needs attention: in words, and with the next step as a button.

import { path, post } from './api.js';
import { MILD, row } from './board.js';
import { attr, h, show, swap, text } from './dom.js';
import { link } from './router.js';
import { may } from './session.js';
import { badge, button, setWhen, toast } from './widgets.js';

/** @typedef {{reason: string, detail: string, next_step: string, since?: string, jobs: number, job?: string, group?: string, semaphore?: string}} Need */

/**
 * A line of a list.
 * @param {{name?: Element, words: (need: Need) => string, step: (need: Need) => Element | null}} options `name`: of what it is about
 */
export function needLine({ name, words, step }) {
  const dot = h('i', { class: 'dot' });
  const reason = badge('');
  const detail = h('p', { class: 'detail' });
  const since = h('time', { class: 'when' });
  const act = h('div', { class: 'act' });
  let said = '';
  return {
    node: h('li', null, dot, h('div', { class: 'what' }, name, name && ' ', reason), detail, since, act),
    set: (/** @type {Need} */ need) => {
      const kind = MILD.has(need.reason) ? 'warn' : 'bad';
      attr(dot, 'class', `dot ${kind}`);
      attr(reason, 'class', `badge ${kind}`);
      text(reason, need.reason);
      text(detail, words(need));
      attr(detail, 'title', adviceOf(need));
      show(since, need.since !== undefined);
      if (need.since !== undefined) setWhen(since, need.since);
      const next = JSON.stringify([need.reason, need.job, need.semaphore]);
      if (next === said) return;
      said = next;
      swap(act, step(need));
    },
  };
}

/** What to do, for somebody who has this page: `next_step` may name calls of the API. @param {Need} need */
export function adviceOf(need) {
  const { reason, job, semaphore } = need;
  if (reason === 'failing' || reason === 'dead') return 'See the errors, mend the cause, and redrive what is dead; or purge it.';
  if (reason === 'paused') return 'Resume it when the reason is gone.';
  if (reason === 'blocked' && job === undefined && semaphore !== undefined)
    return `See who holds the semaphore ${semaphore}, and raise its capacity if there is room; create it, if it does not exist.`;
  if (reason === 'stuck')
    return 'The page of its first ready job says what holds it: a semaphore, a limit of the queue, or jobs that take long.';
  return need.next_step;
}

/**
 * The next step: what can be done at once is done, the rest is a link to where it is done.
 * @param {string | undefined} queue @param {Need} need @param {() => void} changed
 */
export function nextStep(queue, need, changed) {
  const to = (/** @type {string} */ label, /** @type {string[]} */ parts, /** @type {Record<string, string>} */ params = {}) =>
    h('a', { class: 'button', href: link(parts, params), title: adviceOf(need), 'aria-label': `${label}: ${queue ?? need.detail}` }, label);
  if (queue === undefined) return to('See the system', ['system']);
  if (need.reason === 'paused' && may('operate')) return resumeButton(queue, changed);
  if (need.job !== undefined) return to('See the dead job', ['jobs', need.job]);
  if (need.semaphore !== undefined) return to('See the semaphore', ['limits', need.semaphore]);
  switch (need.reason) {
    case 'starved':
      return to('See who works', ['workers']);
    case 'stuck':
      return row(queue).counts.reserved > 0
        ? to('See what is held', ['queues', queue], { state: 'reserved' })
        : to('See what is ready', ['queues', queue], { state: 'ready', order: 'oldest' });
    case 'failing':
    case 'dead':
    case 'dead letters':
      return to('See the errors', ['dead'], { queue });
    default:
      return to('See the queue', ['queues', queue]);
  }
}

/** @param {string} queue @param {() => void} changed */
function resumeButton(queue, changed) {
  return button(
    'Resume',
    async () => {
      await post(path('queues', queue, 'resume'));
      toast(`${queue} delivers again`);
      changed();
    },
    { title: 'Lets the queue deliver its jobs again', 'aria-label': `Resume ${queue}` },
  );
}
