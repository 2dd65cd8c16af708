// The parts of the screen of a job: why it does not run, its way through the queues, its attempts, its facts.

import { attr, h, show, svg, swap, text } from './dom.js';
import * as format from './format.js';
import { plain } from './json.js';
import { shown } from './excerpt.js';
import { link } from './router.js';
import { badge, facts, jobLink, queueLink, setWhen, when } from './widgets.js';

/** Rebuilds a part only where what it shows is another: focus and selection stay. @param {Element} node @param {(job: import('./json.js').Job) => any} of what it depends on @param {(job: import('./json.js').Job) => any[]} make */
export function part(node, of, make) {
  let before = '';
  return {
    node,
    set: (/** @type {import('./json.js').Job} */ job) => {
      const now = JSON.stringify(of(job));
      if (now === before) return;
      before = now;
      swap(node, ...make(job).filter(Boolean));
    },
  };
}

/** What ends or comes at the time of a reason. @type {Record<string, string>} */
const UNTIL = { reserved: 'Its lease ends', rate: 'The next may go' };

/** A link to what a job waits for. @param {any} why @param {import('./json.js').Job} job */
function whyLinks(why, job) {
  return [
    why.job && h('a', { href: link(['jobs', why.job]) }, 'See that job'),
    why.group !== undefined && h('a', { href: link(['jobs'], { queue: job.queue, group: why.group, order: 'oldest' }) }, 'See its group'),
    why.semaphore !== undefined && h('a', { href: link(['limits', why.semaphore]) }, `Semaphore ${plain(why.semaphore)}`),
    why.worker !== undefined && h('a', { href: link(['workers', why.worker]) }, `Worker ${plain(why.worker)}`),
    ['paused', 'max_reserved', 'rate', 'worker', 'turn'].includes(why.reason) &&
      h('a', { href: link(['queues', job.queue]) }, 'See the queue'),
    why.until && beforeTime(why) === undefined && h('span', { class: 'muted' }, `${UNTIL[why.reason] ?? 'Until'} `, when(why.until)),
  ].filter(Boolean);
}

/** Whether a job lies in a dead-letter queue, and waits there. @param {import('./json.js').Job} job */
function isLetter(job) {
  return job.dead_lettered_from !== undefined && ['ready', 'scheduled', 'blocked'].includes(job.state);
}

/** What a reason says before the time that it ends with, if it does: any other time is part of a name. @param {any} why @returns {string | undefined} */
export function beforeTime({ detail, until }) {
  const end = ` at ${until}`;
  return until && detail.endsWith(end) ? detail.slice(0, -end.length) : undefined;
}

/** A reason as a sentence: "due at <time>" is "Due in 5 m." @param {any} why @returns {any[]} */
function inWords(why) {
  const before = beforeTime(why);
  const words = plain(before ?? why.detail);
  return [words[0]?.toUpperCase(), words.slice(1), ...(before === undefined ? [] : [' ', when(why.until)]), '.'];
}

/** The title of why a job is where it is. @param {import('./json.js').Job} job */
function headline(job) {
  const took =
    job.started_at && job.finished_at
      ? `, after running for ${format.duration(Date.parse(job.finished_at) - Date.parse(job.started_at))}`
      : '';
  if (job.unreadable) return 'It cannot be read: another program wrote it';
  if (job.state === 'done') return `It is done${took}`;
  if (job.state === 'dead') return 'It is dead: it is delivered to nobody until somebody retries it';
  if (job.state === 'reserved') return job.cancel_requested ? 'A worker has it, and is asked to stop' : 'A worker has it';
  if (isLetter(job)) return `It died in ${plain(job.dead_lettered_from?.queue ?? '')}: it waits here for somebody`;
  return 'Why is it not running?';
}

export function whyPart() {
  const node = h('section', { class: 'card why', 'aria-label': 'Why it is where it is' });
  return part(
    node,
    (job) => [
      job.state,
      job.waiting_for,
      job.unreadable,
      job.errors?.length,
      job.cancel_requested,
      job.finished_at,
      job.queue,
      job.purge_at,
      job.dead_lettered_from,
    ],
    (job) => {
      const last = job.errors?.[job.errors.length - 1];
      // A dead letter waits for a person: that no worker waits for its queue is as it should be.
      const waits = (job.waiting_for ?? []).filter((/** @type {any} */ why) => !(isLetter(job) && ['worker', 'turn'].includes(why.reason)));
      const reasons = waits.map((/** @type {any} */ why) =>
        h(
          'li',
          { class: 'row' },
          badge(why.reason.replaceAll('_', ' '), why.reason === 'reserved' ? 'reserved' : 'warn'),
          h('span', null, ...inWords(why)),
          ...whyLinks(why, job),
        ),
      );
      return [
        h('h2', null, headline(job)),
        job.unreadable && h('p', { class: 'bad' }, ...shown(job.unreadable), ' ', 'Edit mends it, delete removes it.'),
        isLetter(job) &&
          h(
            'p',
            { class: 'bad pre' },
            ...(job.dead_lettered_from?.error ? shown(job.dead_lettered_from.error, true) : ['It died without an error.']),
          ),
        isLetter(job) &&
          h('p', null, 'Redrive returns it to ', queueLink(job.dead_lettered_from?.queue ?? ''), ', with all of its attempts.'),
        reasons.length > 0 && h('ul', { class: 'stack small' }, ...reasons),
        reasons.length === 0 &&
          !isLetter(job) &&
          job.state !== 'done' &&
          job.state !== 'dead' &&
          h('p', { class: 'muted' }, 'Nothing is in its way: the next worker that asks gets it.'),
        job.state === 'dead' && h('p', { class: 'bad pre' }, last ? [...shown(last.message, true)] : 'It has no error.'),
        job.purge_at && h('p', { class: 'muted' }, 'It will be deleted ', when(job.purge_at), '.'),
      ];
    },
  );
}

/** The way of a job: queues that it was in, the one that it is in, those to come. */
export function chainPart() {
  const list = h('ol', { class: 'chain' });
  const node = h('section', { class: 'card', 'aria-label': 'Way' }, h('h2', null, 'Way through the queues'), list);
  const inner = part(
    list,
    (job) => [job.queue, job.trail, job.then, job.state, job.attempt, job.dead_lettered_from],
    (job) => {
      const trail = job.trail ?? [];
      const stage = (/** @type {any} */ queue, /** @type {string} */ kind, /** @type {any[]} */ about) =>
        h('li', { class: `stage ${kind}`, 'aria-current': kind === 'now' ? 'step' : null }, queueLink(queue), h('small', null, ...about));
      const attempts = (/** @type {number} */ n) => format.plural(n, 'attempt');
      return [
        ...trail.map((/** @type {any} */ step) =>
          stage(step.queue, `past ${step.reason === 'dead' ? 'bad' : ''}`, [`${attempts(step.attempts)} · ${step.reason} `, when(step.at)]),
        ),
        stage(job.queue, 'now', [`${job.attempt > 0 ? `${attempts(job.attempt)} · ` : ''}${job.state}`]),
        ...(job.then ?? []).map((/** @type {any} */ step) =>
          stage(step.queue, 'next', [
            [
              step.delay_ms && `after ${format.duration(step.delay_ms)}`,
              step.priority !== undefined && `priority ${step.priority}`,
              step.max_attempts !== undefined && `up to ${step.max_attempts} attempts`,
            ]
              .filter(Boolean)
              .join(' · ') || 'next',
          ]),
        ),
      ];
    },
  );
  return {
    node,
    set: (/** @type {import('./json.js').Job} */ job) => {
      show(node, (job.trail?.length ?? 0) + (job.then?.length ?? 0) > 0);
      inner.set(job);
    },
  };
}

/** What happened to a job, in its order. */
export function timelinePart() {
  const list = h('ol', { class: 'timeline' });
  const node = h('section', { class: 'card', 'aria-label': 'Attempts' }, h('h2', null, 'Attempts'), list);
  const entry = (/** @type {string} */ kind, /** @type {any} */ what, /** @type {string | undefined} */ at, /** @type {any[]} */ ...more) =>
    h(
      'li',
      { class: kind },
      h(
        'div',
        { class: 'row' },
        h('span', { class: 'strong' }, what),
        ...more.filter((one) => one && one.tagName !== 'P'),
        h('span', { class: 'muted' }, when(at)),
      ),
      ...more.filter((one) => one?.tagName === 'P'),
    );
  const worker = (/** @type {string | undefined} */ name) =>
    name !== undefined && h('a', { href: link(['workers', name]), class: 'name' }, plain(name));
  const inner = part(
    list,
    (job) => [job.created_at, job.errors, job.started_at, job.finished_at, job.state, job.worker, job.attempt, job.run_at],
    (job) => {
      const errors = job.errors ?? [];
      const last = errors[errors.length - 1];
      const left = errors.length >= 10 && errors[0].attempt > 1;
      const isAfter = job.started_at && (!last || Date.parse(job.started_at) > Date.parse(last.at) || job.state === 'reserved');
      return [
        entry('', 'Pushed', job.created_at, job.replay_of && h('span', { class: 'muted' }, 'as a copy of ', jobLink(job.replay_of))),
        left && h('li', { class: 'muted' }, 'Earlier failures are not kept: these are the last ten.'),
        ...errors.map((/** @type {any} */ one) =>
          entry(
            'bad',
            `Attempt ${format.count(one.attempt)} failed`,
            one.at,
            worker(one.worker),
            h('p', { class: 'pre bad' }, ...shown(one.message, true)),
          ),
        ),
        isAfter &&
          job.state !== 'dead' &&
          entry(
            job.state === 'reserved' ? 'good' : '',
            `Attempt ${format.count(job.attempt)} ${job.state === 'reserved' ? 'runs' : 'began'}`,
            job.started_at,
            worker(job.worker),
          ),
        job.state === 'done' && entry('good', 'Done', job.finished_at),
        job.state === 'dead' && entry('bad', 'Dead', job.finished_at),
        job.state === 'scheduled' && entry('', job.attempt > 0 ? 'Next attempt' : 'Due', job.run_at),
      ];
    },
  );
  return { node, set: inner.set };
}

/** What a backoff is, in words. @param {any} backoff */
function backoffOf({ kind, base_ms: base, max_ms: max, factor, jitter }) {
  const time = (/** @type {number} */ ms) => format.tight(format.duration(ms));
  if (kind === 'none') return 'none';
  if (kind === 'exponential')
    return `from ${time(base)}, times ${factor}, up to ${time(max)}${jitter > 0 ? `, ±\u00a0${Math.round(jitter * 100)}\u00a0%` : ''}`;
  return [plain(String(kind)), base !== undefined && time(base), max !== undefined && kind !== 'fixed' && `up to ${time(max)}`]
    .filter(Boolean)
    .join(' ');
}

export function factsPart() {
  const place = h('div');
  const node = h('section', { class: 'card', 'aria-label': 'Facts' }, h('h2', null, 'Facts'), place);
  const inner = part(
    place,
    (job) => ({
      ...job,
      raw: null,
      payload: null,
      payload_base64: null,
      result: null,
      progress: null,
      errors: null,
      waiting_for: null,
    }),
    (job) => [
      facts(
        [
          ['Queue', queueLink(job.queue)],
          ['State', badge(job.state, job.state)],
          ['Attempts', `${format.count(job.attempt)} of ${job.max_attempts > 0 ? format.count(job.max_attempts) : 'any number'}`],
          ['Priority', format.count(job.priority)],
          ['Pushed', when(job.created_at)],
          ['Due', when(job.run_at)],
          ['Started', job.attempt > 0 && job.started_at && when(job.started_at)],
          ['Finished', job.finished_at && when(job.finished_at)],
          ['Expires', job.expires_at && when(job.expires_at)],
          ['Will be deleted', job.purge_at && when(job.purge_at)],
          ['Worker', job.worker && h('a', { href: link(['workers', job.worker]), class: 'name' }, plain(job.worker))],
          ['Lease', job.lease_ms !== undefined && job.lease_ms !== null && format.duration(job.lease_ms)],
          ['Runs at most', job.max_run_ms && format.duration(job.max_run_ms)],
          ['Backoff', job.backoff && backoffOf(job.backoff)],
          [
            'Key',
            job.key !== undefined && h('a', { href: link(['jobs'], { queue: job.queue, key: job.key }), class: 'mono' }, plain(job.key)),
          ],
          [
            'Group',
            job.group !== undefined &&
              h(
                'span',
                { class: 'row' },
                h('a', { href: link(['jobs'], { queue: job.queue, group: job.group, order: 'oldest' }), class: 'mono' }, plain(job.group)),
                h('a', { href: link(['groups'], { queue: job.queue }), class: 'muted' }, 'groups'),
              ),
          ],
          ['Batch', job.batch && h('a', { href: link(['batches', job.batch]), class: 'mono' }, job.batch)],
          [
            'Semaphores',
            (job.semaphores ?? []).length > 0 &&
              h(
                'span',
                { class: 'row' },
                ...(job.semaphores ?? []).map((/** @type {string} */ name) => h('a', { href: link(['limits', name]) }, plain(name))),
              ),
          ],
          [
            'Died in',
            job.dead_lettered_from &&
              h(
                'span',
                null,
                queueLink(job.dead_lettered_from.queue),
                ` after ${format.plural(job.dead_lettered_from.attempts, 'attempt')}, `,
                when(job.dead_lettered_from.at),
              ),
          ],
          ['Copy of', job.replay_of && jobLink(job.replay_of)],
          ['Result kept', job.retain_result_ms && format.duration(job.retain_result_ms)],
        ].map(([name, value]) => /** @type {[string, any]} */ ([name, value === false ? undefined : value])),
      ),
    ],
  );
  return { node, set: inner.set };
}

/** How long the lease of a reserved job still lasts. @param {AbortSignal} signal */
export function leasePart(signal) {
  const left = svg('rect', { height: '6', width: '0', class: 'bar-done' });
  const bar = svg(
    'svg',
    { class: 'bar', viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    svg('rect', { width: '100', height: '6', class: 'bar-all' }),
    left,
  );
  const end = when(undefined);
  const word = h('span');
  const node = h('section', { class: 'card lease', 'aria-label': 'Lease', hidden: true }, h('p', { class: 'row' }, word, end), bar);
  /** @type {any} */ let now = null;
  const draw = () => {
    if (now?.state !== 'reserved' || !now.reserved_until) return;
    const until = Date.parse(now.reserved_until);
    const from = Date.parse(now.started_at ?? now.reserved_until);
    attr(left, 'width', Math.max(0, Math.min(100, (100 * (until - format.now())) / Math.max(1, until - from))).toFixed(1));
    text(word, until > format.now() ? 'The lease ends' : 'The lease has ended: the job comes back soon.');
    show(end, until > format.now());
  };
  const timer = setInterval(() => !document.hidden && draw(), 500);
  signal.addEventListener('abort', () => clearInterval(timer));
  return {
    node,
    set: (/** @type {import('./json.js').Job} */ job) => {
      now = job;
      show(node, job.state === 'reserved');
      setWhen(end, job.reserved_until);
      draw();
    },
  };
}
