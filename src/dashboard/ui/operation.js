// An operation over many jobs: what it does, how far it is, how to stop it.

import { del, getText, path } from './api.js';
import { attr, h, show, svg, swap, text } from './dom.js';
import * as format from './format.js';
import { cut, member, plain, value } from './json.js';
import { lazy, openWith } from './lazy.js';
import { every, link } from './router.js';
import { may } from './session.js';
import { button, message, when } from './widgets.js';

/** @typedef {{id: string, state: string, action: string, filter: Record<string, any>, to?: string, priority?: number, limit?: number, by: string, created_at: string,
 *   started_at?: string, finished_at?: string, matched?: number, scanned: number, affected: number, skipped: number, rate_per_s?: number, remaining_ms?: number,
 *   errors?: string[], error?: string, raw?: Record<string, Record<string, string>>}} Operation */

const loadDialog = lazy(() => import('./dialog.js'));

/** What an action is called, and what was done. @type {Record<string, {verb: string, done: string}>} */
export const ACTIONS = {
  retry: { verb: 'Retry', done: 'retried' },
  redrive: { verb: 'Redrive', done: 'redriven' },
  move: { verb: 'Move', done: 'moved' },
  replay: { verb: 'Replay', done: 'replayed' },
  set_priority: { verb: 'Set priority of', done: 'changed' },
  delete: { verb: 'Delete', done: 'deleted' },
};

/** Whether an operation is over. @param {string} state */
export function isOver(state) {
  return state !== 'queued' && state !== 'running';
}

/** Reads an operation: `raw` has the values of its conditions as they are written. @param {string} text @returns {Operation} */
export function readOperation(text) {
  const operation = JSON.parse(text);
  operation.raw = {};
  const filter = member(text, value(text), 'filter');
  for (const name of ['payload', 'headers']) {
    const of = filter && member(text, filter, name);
    if (of) operation.raw[name] = cut(text, of);
  }
  return operation;
}

/** The conditions on fields of payloads and on headers: names and raw values. @param {Operation} operation @returns {[string, string][]} */
function fieldsOf({ filter, raw = {} }) {
  return ['payload', 'headers'].flatMap((of) =>
    Object.entries(raw[of] ?? {})
      .concat(raw[of] ? [] : Object.entries(filter[of] ?? {}).map(([name, is]) => [name, JSON.stringify(is)]))
      .map(([name, is]) => /** @type {[string, string]} */ ([`${of}.${name}`, is])),
  );
}

/** What an operation does, in words. @param {Operation} operation */
export function summary(operation) {
  const { action, filter, to, priority, limit } = operation;
  const { verb } = ACTIONS[action] ?? { verb: plain(action) };
  const { queue, state, states, payload: _payload, headers: _headers, ...rest } = filter;
  const where = queue === undefined ? 'in all queues' : `in ${plain(queue)}`;
  const more = [
    ...Object.entries(rest).map(([name, is]) => `${name.replaceAll('_', ' ')} ${plain(String(is) || 'none')}`),
    ...fieldsOf(operation).map(([name, is]) => `${plain(name)} = ${plain(is)}`),
  ].join(', ');
  return [
    `${verb} ${limit ? `up to ${format.count(limit)} ` : ''}${state ?? states?.join(' or ') ?? ''} jobs ${where}`.replace('  ', ' '),
    more && `with ${more}`,
    to !== undefined && `to ${plain(to)}`,
    priority !== undefined && (action === 'set_priority' ? `to ${priority}` : `with priority ${priority}`),
  ]
    .filter(Boolean)
    .join(' ');
}

/** The jobs that an operation is about. @param {Operation} operation */
function jobsLink(operation) {
  const { queue, state, states, from, before, payload: _payload, headers: _headers, error_group: group, ...rest } = operation.filter;
  const isDead = state === 'dead' || state === 'done';
  /** @type {Record<string, any>} */ const older = {
    [isDead ? 'finished_from' : 'created_from']: from,
    [isDead ? 'finished_before' : 'created_before']: before,
  };
  return link(['jobs'], {
    ...older,
    ...rest,
    state: state ?? states?.join(','),
    ...Object.fromEntries(fieldsOf(operation)),
    [queue?.endsWith('*') ? 'queue_prefix' : 'queue']: queue?.replace(/\*$/, ''),
    error_group: group,
    no_error: group === '' ? '1' : undefined,
  });
}

/** A bar of how far something is. The length is an attribute of SVG. */
function bar() {
  const done = svg('rect', { height: '6', width: '0', class: 'bar-done' });
  const node = svg(
    'svg',
    { class: 'bar', viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    svg('rect', { width: '100', height: '6', class: 'bar-all' }),
    done,
  );
  return { node, set: (/** @type {number} */ share) => attr(done, 'width', Math.max(0, Math.min(100, 100 * share)).toFixed(1)) };
}

/** @param {Operation} operation */
function figures(operation) {
  const { affected, matched, skipped, scanned, rate_per_s: rate, remaining_ms: rest, state, action } = operation;
  const { done } = ACTIONS[action] ?? { done: 'affected' };
  return [
    `${format.count(affected)}${matched !== undefined && !isOver(state) ? ` of about ${format.count(matched)}` : ''} ${done}`,
    skipped > 0 && `${format.count(skipped)} skipped`,
    `${format.count(scanned)} looked at`,
    rate !== undefined && rate > 0 && format.rate(rate),
    !isOver(state) && rest !== undefined && `about ${format.duration(rest)} to go`,
    isOver(state) &&
      operation.started_at &&
      operation.finished_at &&
      `took ${format.duration(Date.parse(operation.finished_at) - Date.parse(operation.started_at))}`,
  ]
    .filter(Boolean)
    .join(' · ');
}

/**
 * Shows one operation, and keeps it true until it is over. `over` is called once it is, also where the first look finds it so, but not
 * where the operation that is given was over.
 * @param {string | Operation} from its id, or the operation itself
 * @param {AbortSignal} signal
 * @param {{over?: (operation: Operation) => void, close?: () => void}} [options] `close` adds a button that takes the card away
 * @returns {Element}
 */
export function operationCard(from, signal, { over, close } = {}) {
  const id = typeof from === 'string' ? from : from.id;
  const title = h('p', { class: 'strong op-title' });
  const state = h('span', { class: 'badge' });
  const line = h('p', { class: 'muted', role: 'status' });
  const problem = h('div', { class: 'problem' });
  const progress = bar();
  const askStop = (/** @type {typeof import('./dialog.js')} */ { ask }) =>
    ask({
      title: 'Stop this operation?',
      body: [h('p', null, 'No further job is affected. What was done by then stays.')],
      action: 'Stop it',
      danger: true,
      submit: async () => set(await del(path('operations', id))),
    });
  const stop = button('Stop', () => openWith(loadDialog, askStop), { hidden: true });
  const jobs = h('a', { class: 'button', hidden: true }, 'Jobs that match');
  const end = close && button('Close', close, { class: 'quiet', hidden: true });
  const began = h('span', { class: 'muted' });
  const node = h(
    'article',
    { class: 'op', 'aria-label': 'Operation' },
    h('div', { class: 'head' }, h('div', { class: 'row grow' }, state, title), h('div', { class: 'row' }, began, jobs, stop, end)),
    progress.node,
    line,
    problem,
  );
  /** @type {Operation | null} */ let now = null;
  const set = (/** @type {Operation} */ operation) => {
    const wasOpen = now === null ? typeof from === 'string' : !isOver(now.state);
    now = operation;
    text(title, summary(operation));
    text(state, operation.state);
    attr(state, 'class', `badge ${{ done: 'good', failed: 'bad', cancelled: 'warn' }[operation.state] ?? ''}`);
    progress.set(operation.state === 'done' ? 1 : operation.matched ? operation.affected / operation.matched : 0);
    text(line, figures(operation));
    if (!began.firstChild) began.append(when(operation.created_at));
    swap(
      problem,
      ...[operation.error, ...(operation.errors ?? [])]
        .filter((one) => one !== undefined)
        .slice(0, 5)
        .map((one) => h('p', null, plain(String(one)))),
    );
    show(stop, !isOver(operation.state) && may('operate'));
    attr(jobs, 'href', jobsLink(operation));
    show(jobs, true);
    if (end) show(end, isOver(operation.state));
    if (wasOpen && isOver(operation.state)) over?.(operation);
  };
  if (typeof from !== 'string') set(from);
  if (now !== null && isOver(/** @type {Operation} */ (now).state)) return node;
  const ended = new AbortController();
  every(AbortSignal.any([signal, ended.signal]), 1000, async () => {
    try {
      set(readOperation(await getText(path('operations', id), signal)));
      if (now && isOver(now.state)) ended.abort();
    } catch (/** @type {any} */ error) {
      if (signal.aborted) return;
      swap(
        problem,
        h('p', null, error.status === 404 ? 'This operation is not known any more: they are kept for a week.' : message(error)),
      );
      if (end) show(end, true);
      if (error.status === 404 || error.status === 403) ended.abort();
    }
  });
  return node;
}
