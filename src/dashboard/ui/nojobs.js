// What a list of jobs says where it has none.

import { curl, path } from './api.js';
import { h } from './dom.js';
import { asSeen, may } from './session.js';
import { empty } from './widgets.js';

/**
 * @param {{isWhole: boolean, conditions: any[], fixed: Record<string, string>, first?: string}} of `isWhole`: whether all jobs were looked at; `first`: the link of the
 *   first page, on another one
 */
export function nothing({ isWhole, conditions, fixed, first }) {
  if (!isWhole) return empty('Nothing found so far.', 'The search has not looked at all jobs yet.');
  if (first) return empty('There are no further jobs.', h('a', { href: first }, 'To the first page'));
  if (conditions.length > 0) {
    const [these, one] = conditions.length === 1 ? ['this condition', 'it'] : ['these conditions', 'one of them'];
    return empty(`No job meets ${these}.`, `Take ${one} away, or wait: new ones are shown as they come.`);
  }
  if (fixed.batch)
    return empty(
      'None of its jobs is kept.',
      'Jobs that are done are deleted, unless their queue keeps them (retain_done_ms). What they returned is among the results.',
    );
  const push = may('push') && !fixed.worker;
  return empty(
    asSeen('There are no jobs here.').replace('here that', 'that'),
    push && 'Push one: ',
    push && h('code', { class: 'shell' }, curl('POST', path('queues', fixed.queue ?? 'hello', 'jobs'), '{"payload": {"n": 1}}')),
  );
}
