// The buttons of what can be done to a queue: push, pause, redrive, replay, purge, delete.

import { path, post } from './api.js';
import * as board from './board.js';
import { h, text } from './dom.js';
import { lazy, openWith } from './lazy.js';
import { may } from './session.js';
import { button, toast } from './widgets.js';

const loadAsk = lazy(() => import('./queueask.js'));
const loadPush = lazy(() => import('./push.js'));

/** What is done to many jobs of a queue. */
export const BULK = /** @type {Record<string, {title: string, says: string}>} */ ({
  redrive: {
    title: 'Redrive',
    says: 'Dead jobs become ready again, with all their attempts. Those that were dead-lettered into this queue go back to where they came from.',
  },
  replay: { title: 'Replay', says: 'Copies of finished jobs are pushed and run again. The history stays as it is.' },
  purge: { title: 'Purge', says: 'The jobs are deleted for good. Reserved jobs stay.' },
});

/** Whether a queue is paused as this page has set it, until the stream says the same; others may have set it since. */
export function ownPause() {
  /** @type {boolean | undefined} */ let is;
  return {
    set: (/** @type {boolean} */ paused) => void (is = paused),
    /** Takes what was read after it was set. @param {boolean} paused */
    read: (paused) => void (is = is === undefined ? undefined : paused),
    /** What is to be shown. @param {boolean} seen what the stream says */
    or: (seen) => {
      if (is === seen) is = undefined;
      return is ?? seen;
    },
  };
}

/**
 * The buttons of a queue.
 * @param {() => import('./router.js').Context} context
 * @param {string} queue
 * @param {{pushed: () => void, changed: () => void}} then
 */
export function queueActions(context, queue, { pushed, changed }) {
  const pause = button('Pause', async () => {
    const next = isPaused() ? 'resume' : 'pause';
    await post(path('queues', queue, next));
    toast(next === 'pause' ? `${queue} is paused: nothing is delivered, pushes go on` : `${queue} delivers again`);
    own.set(next === 'pause');
    changed();
    draw();
  });
  const own = ownPause();
  const isPaused = () => own.or(board.row(queue).paused);
  const begin = async (/** @type {string} */ name) => {
    const begun = await openWith(loadAsk, ({ askBulk }) => askBulk(name, queue));
    if (begun) context().setParams({ operation: begun.id });
  };
  const bulk = (/** @type {string} */ name) =>
    button(`${BULK[name].title}…`, () => begin(name), { title: BULK[name].says, class: name === 'purge' ? 'danger' : '' });
  const push = async () => {
    if (await openWith(loadPush, ({ pushDialog }) => pushDialog(queue))) pushed();
  };
  const loadDelete = async () => (await loadAsk()).loadDelete(queue);
  const remove = () => openWith(loadDelete, (askDelete) => askDelete());
  const canMove = may('operate') && may('push');
  const node = h(
    'div',
    { class: 'row acts' },
    may('push') && button('Push a job', push, { class: 'primary' }),
    may('operate') && pause,
    canMove && bulk('redrive'),
    canMove && bulk('replay'),
    may('operate') && bulk('purge'),
    may('operate') && button('Delete…', remove, { class: 'danger', title: 'Deletes the queue, its settings and its jobs' }),
  );
  const draw = () => {
    text(pause, isPaused() ? 'Resume' : 'Pause');
    pause.setAttribute(
      'title',
      isPaused() ? 'Lets the queue deliver its jobs again' : 'Stops delivery; pushes go on, and what is reserved is finished',
    );
  };
  draw();
  return { node, draw, isPaused, settings: own.read, redrive: () => begin('redrive') };
}
