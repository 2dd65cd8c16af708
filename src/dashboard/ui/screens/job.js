// One job: why it is where it is, what is in it, what happened to it, and what can be done about it.

import { ACTS, mayDo } from '../acts.js';
import { curl, getText, path } from '../api.js';
import { binaryCard } from '../binary.js';
import { registerButtons } from '../commands.js';
import { ask, confirm, field, queueField } from '../dialog.js';
import { attr, h, show, swap, text } from '../dom.js';
import * as format from '../format.js';
import { chainPart, factsPart, leasePart, part, timelinePart, whyPart } from '../jobparts.js';
import { plain, readJobs } from '../json.js';
import { jsonCard } from '../jsonview.js';
import { lazy, openWith } from '../lazy.js';
import { outcome, perform } from '../perform.js';
import { every, link } from '../router.js';
import { may } from '../session.js';
import { badge, button, copy, empty, failure, jobLink, message, queueLink, toast } from '../widgets.js';

const loadEdit = lazy(() => import('../jobedit.js'));

/** How often a job is asked for that this key may not see: it may be moved to a queue of the key again. */
const REFUSED_MS = 10_000;

/** How long to wait before a job is looked at again: a large one is not fetched every second. @param {import('../json.js').Job} job @param {number} length of its text */
function pace(job, length) {
  const isOver = job.state === 'done' || job.state === 'dead';
  return (length > 1_000_000 ? 20_000 : length > 64_000 ? 5000 : 1000) * (isOver ? 5 : 1);
}

/** Whether a job can be changed. @param {import('../json.js').Job} job */
function canEdit(job) {
  return Boolean(job.unreadable) || ['ready', 'scheduled', 'blocked'].includes(job.state);
}

/** Asks where an action needs it, and does it. @param {import('../acts.js').Act} one @param {import('../json.js').Job} job @returns {Promise<any>} what the API returned */
async function run(one, job) {
  const says = h('p', null, one.says);
  if (one.name === 'delete')
    return confirm({ title: 'Delete this job?', text: one.says, word: 'delete', action: 'Delete', submit: () => perform(one, job) });
  if (one.name === 'release')
    return ask({ title: 'Take it from its worker?', body: [says], action: 'Release', submit: () => perform(one, job) });
  if (one.name === 'cancel') {
    const force = h('input', { type: 'checkbox', name: 'force' });
    return ask({
      title: 'Cancel this job?',
      body: [says, h('label', { class: 'row' }, force, 'Remove it at once: what its worker commits is refused')],
      action: 'Cancel it',
      danger: true,
      submit: () => perform(one, job, { force: force.checked }),
    });
  }
  if (one.name === 'move') {
    const { input: to, nodes } = queueField('To the queue');
    return ask({
      title: 'Move this job',
      body: [says, ...nodes],
      action: 'Move',
      ready: () => to.value !== '',
      submit: () => perform(one, job, { to: to.value }),
    });
  }
  if (one.name === 'set_priority') {
    const input = h('input', { name: 'priority', type: 'number', step: '1', value: String(job.priority) });
    return ask({
      title: 'Priority of this job',
      body: [says, field('Priority', input)],
      action: 'Set',
      ready: () => input.value !== '',
      submit: () => perform(one, job, { priority: Number(input.value) }),
    });
  }
  return perform(one, job);
}

/** The buttons of what can be done now, and the same for a shell. @param {(one: import('../acts.js').Act, result: any) => void} did @param {() => void} edited */
function actions(did, edited) {
  const buttons = h('div', { class: 'row' });
  const lines = h('div', { class: 'stack small' });
  const node = h('details', { class: 'card' }, h('summary', null, 'The same as curl'), lines);
  /** @type {any} */ let now = null;
  const inner = part(
    buttons,
    (job) => [job.state, job.gone, job.dead_lettered_from?.queue, canEdit(job), job.run_at],
    (job) => {
      if (job.gone) return [];
      const some = ACTS.filter((one) => mayDo(one) && one.can(job));
      return [
        ...some
          .filter(({ danger }) => !danger)
          .map((one) =>
            button(
              one.label,
              async () => {
                const result = await run(one, now);
                if (result !== undefined) did(one, result);
              },
              { title: one.says },
            ),
          ),
        canEdit(job) &&
          may('operate') &&
          button('Edit …', async () => (await openWith(loadEdit, ({ editJob }) => editJob(now))) && edited()),
        ...some
          .filter(({ danger }) => danger)
          .map((one) =>
            button(
              one.label,
              async () => {
                const result = await run(one, now);
                if (result !== undefined) did(one, result);
              },
              { title: one.says, class: 'danger' },
            ),
          ),
      ];
    },
  );
  const shell = part(
    lines,
    (job) => [job.state, job.dead_lettered_from?.queue],
    (job) => {
      const call = (/** @type {string} */ label, /** @type {string} */ line) =>
        h(
          'div',
          null,
          h(
            'div',
            { class: 'head' },
            h('span', { class: 'strong' }, label),
            button('Copy', () => copy(line), { class: 'quiet' }),
          ),
          h('code', { class: 'curl' }, line),
        );
      return [
        call('Get it', curl('GET', path('jobs', job.id))),
        call('Its payload', curl('GET', path('jobs', job.id, 'payload'))),
        ...ACTS.filter((one) => one.can(job)).map((one) => {
          const { method, at, body } = one.call(
            job.id,
            one.name === 'move' ? { to: 'another.queue' } : one.name === 'set_priority' ? { priority: 10 } : {},
          );
          return call(one.label.replace(' …', ''), curl(method, at, body === undefined ? undefined : JSON.stringify(body)));
        }),
        canEdit(job) && call('Edit', curl('PATCH', path('jobs', job.id), '{"payload": {"n": 1}}')),
      ];
    },
  );
  return {
    buttons,
    node,
    set: (/** @type {import('../json.js').Job} */ job) => {
      now = job;
      inner.set(job);
      shell.set(job);
    },
  };
}

/** @param {import('../router.js').Context} context @returns {import('../router.js').Screen} */
export function job(context) {
  const { signal } = context;
  const id = context.parts[1];
  const state = badge('');
  const queue = part(
    h('span'),
    (one) => one.queue,
    (one) => [queueLink(one.queue)],
  );
  const old = h('p', { class: 'remark bad', role: 'status', hidden: true });
  const notice = h('div', { class: 'notice', role: 'status', hidden: true });
  const place = h('div', { class: 'job-wait' }, h('p', { class: 'empty' }, 'Looking …'));
  const payload = jsonCard('Payload', { file: id });
  const headers = jsonCard('Headers', { file: `${id}-headers`, none: 'It has no headers.' });
  const result = jsonCard('Result', { file: `${id}-result` });
  const progress = jsonCard('Progress', { file: `${id}-progress` });
  const binary = binaryCard();
  const parts = [whyPart(), leasePart(signal), chainPart(), timelinePart(), factsPart(), binary];
  const [why, lease, chain, timeline, about] = parts;
  /** @type {() => void} */ let again = () => {};
  const can = actions(
    (one, what) => {
      const says = outcome(one, what);
      toast(says);
      if (one.name === 'replay') swap(notice, 'The copy is ', jobLink(what.id), '.');
      show(notice, one.name === 'replay');
      again();
    },
    () => {
      toast('The job is changed.');
      again();
    },
  );
  const body = h(
    'div',
    { class: 'stack', hidden: true },
    why.node,
    lease.node,
    chain.node,
    h(
      'div',
      { class: 'job-grid' },
      h('div', { class: 'stack' }, payload.node, binary.node, result.node, progress.node, headers.node),
      h('div', { class: 'stack' }, timeline.node, about.node, can.node),
    ),
  );
  const node = h(
    'div',
    { class: 'stack' },
    h(
      'div',
      { class: 'head' },
      h(
        'div',
        { class: 'row' },
        h('h1', { class: 'mono job-id' }, plain(id)),
        state,
        queue.node,
        button('Copy the id', () => copy(id), { class: 'quiet' }),
      ),
      can.buttons,
    ),
    notice,
    old,
    place,
    body,
  );

  registerButtons(signal, can.buttons, 'this job');

  const set = (/** @type {import('../json.js').Job} */ one) => {
    text(state, one.gone ? 'gone' : one.state);
    attr(state, 'class', `badge ${one.gone ? 'warn' : one.state}`);
    for (const { set: tell } of [queue, ...parts, can]) tell(one);
    show(why.node, !one.gone);
    if (one.gone) show(lease.node, false);
    show(payload.node, one.payload_base64 === undefined);
    payload.set(one.raw.payload ?? 'null');
    headers.set(one.raw.headers === undefined || one.raw.headers === '{}' ? undefined : one.raw.headers);
    show(result.node, one.raw.result !== undefined);
    result.set(one.raw.result);
    show(progress.node, one.raw.progress !== undefined);
    progress.set(one.raw.progress);
    show(old, false);
    show(place, false);
    show(body, true);
  };
  keep(
    id,
    signal,
    set,
    (/** @type {any} */ error, /** @type {any} */ last, /** @type {number} */ readAt) => {
      if (last && (error.status === 404 || error.status === 410)) {
        set({ ...last, gone: true });
        swap(notice, 'This job is gone: it was removed, or it is done and its queue keeps no history. What is shown is how it was.');
        return show(notice, true);
      }
      if (last) {
        text(old, `Not read again since ${format.time(readAt)}: ${message(error)}`);
        return show(old, true);
      }
      swap(
        place,
        error.status === 404
          ? empty(
              'There is no such job.',
              'It was removed, or it is done and its queue keeps no history (',
              h('code', null, 'retain_done_ms'),
              '). ',
              h('a', { href: link(['jobs']) }, 'Search jobs'),
            )
          : error.status === 403
            ? empty('This key may not see this job.', 'It is for other queues.')
            : failure(error, again),
      );
      return undefined;
    },
    (run_) => {
      again = run_;
    },
  );
  return { title: id, node, update: () => {} };
}

/**
 * Fetches a job again and again, as often as it is worth, until it is gone.
 * @param {string} id @param {AbortSignal} signal @param {(job: any) => void} set @param {(error: any, last: any, readAt: number) => void} failed @param {(run: () => void) => void} begun
 */
function keep(id, signal, set, failed, begun) {
  /** @type {any} */ let last = null;
  let dueAt = 0;
  let isGone = false;
  let readAt = 0;
  let asked = 0;
  const look = every(signal, 1000, async () => {
    if (isGone || Date.now() < dueAt) return;
    const mine = asked;
    try {
      const read = await getText(path('jobs', id), signal);
      last = readJobs(read);
      readAt = Date.now();
      // What was begun before an act may not show what the act did.
      if (mine === asked) dueAt = readAt + pace(last, read.length) - 100;
      set(last);
    } catch (/** @type {any} */ error) {
      if (signal.aborted) return;
      isGone = error.status === 404 || error.status === 410;
      if (error.status === 403 && mine === asked) dueAt = Date.now() + REFUSED_MS;
      if (error.status === undefined) throw error;
      failed(error, last, readAt);
    }
  });
  begun(() => {
    asked += 1;
    dueAt = 0;
    look();
  });
}
