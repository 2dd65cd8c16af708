// The settings of a queue: what is in effect, and what of it is set here.

import { getText, path } from './api.js';
import { h, show, swap } from './dom.js';
import * as format from './format.js';
import { lazy, openWith } from './lazy.js';
import { may } from './session.js';
import { button, facts, failure, queueLink } from './widgets.js';

const loadForm = lazy(() => import('./settingsform.js'));

/**
 * A queue with its settings as they were written, since whole numbers may be larger than numbers of this language.
 * @param {string} queue
 * @param {AbortSignal} [signal]
 */
export async function loadSettings(queue, signal) {
  const text = await getText(path('queues', queue), signal);
  const settings = JSON.parse(text);
  for (const name of ['max_jobs', 'max_reserved']) {
    const exact = new RegExp(`"${name}":(\\d+)`).exec(text);
    if (exact !== null) settings[name] = exact[1];
  }
  return settings;
}

/** The card of a queue. @param {string} queue @param {AbortSignal} signal */
export function settingsCard(queue, signal) {
  const body = h('div', { class: 'room' });
  /** @type {any} */ let settings = null;
  /** @type {Set<(settings: any) => void>} */ const followers = new Set();
  let round = 0;
  const load = async () => {
    round += 1;
    const mine = round;
    try {
      const read = await loadSettings(queue, signal);
      if (mine !== round) return; // what was asked for later is newer
      settings = read;
      swap(body, describe(settings));
      show(edit, may('operate'));
      for (const then of followers) then(settings);
    } catch (error) {
      if (!signal.aborted && mine === round) swap(body, failure(error, load));
    }
  };
  const open = async () => {
    if (settings === null) await load();
    if (settings !== null && (await openWith(loadForm, ({ editSettings }) => editSettings(queue, settings)))) await load();
  };
  const edit = button('Edit', open, { hidden: true, 'aria-label': 'Edit the settings' });
  const node = h(
    'section',
    { class: 'card', 'aria-label': 'Settings' },
    h('div', { class: 'head' }, h('h2', null, 'Settings'), edit),
    body,
  );
  load();
  return { node, load, open, follow: (/** @type {(settings: any) => void} */ then) => followers.add(then) };
}

/** What is in effect; what is not set here is said to be a default. @param {any} settings */
function describe(settings) {
  const { effective } = settings;
  const of = (/** @type {string} */ name, /** @type {string} */ words) =>
    h('span', null, words, settings[name] === undefined && h('small', null, ' default'));
  const long = (/** @type {number} */ ms) => format.tight(format.duration(ms));
  const time = (/** @type {string} */ name, /** @type {string} */ zero) => of(name, effective[name] === 0 ? zero : long(effective[name]));
  const none = (/** @type {string} */ words) => h('span', { class: 'muted' }, words);
  const { backoff } = effective;
  const grows = backoff.kind === 'exponential' ? `, ×${backoff.factor} up to ${long(backoff.max_ms)}` : '';
  return h(
    'div',
    { class: 'stack wide-facts' },
    settings.unreadable !== undefined &&
      h('p', { class: 'problem' }, `A part of the settings cannot be read, because another program wrote it: ${settings.unreadable}`),
    facts([
      ['Lease', time('lease_ms', '0')],
      ['Attempts', of('max_attempts', effective.max_attempts === 0 ? 'no limit' : format.count(effective.max_attempts))],
      [
        'Backoff',
        of('backoff', `${backoff.kind}, ${long(backoff.base_ms)}${grows}, jitter ${format.tight(format.percent(backoff.jitter, 1))}`),
      ],
      ['Dead-letter queue', settings.dead_letter ? queueLink(settings.dead_letter) : none('none: dead jobs stay here')],
      ['Most jobs', settings.max_jobs === undefined ? none('no limit') : BigInt(settings.max_jobs).toLocaleString('en')],
      ['Most reserved', settings.max_reserved === undefined ? none('no limit') : BigInt(settings.max_reserved).toLocaleString('en')],
      [
        'Rate',
        settings.rate === undefined ? none('no limit') : `${format.count(settings.rate.limit)} per ${format.per(settings.rate.per_ms)}`,
      ],
      ['Finished jobs are kept', time('retain_done_ms', 'not at all')],
      ['Results are kept', time('retain_result_ms', 'as long as finished jobs')],
      ['Dead jobs are kept', time('retain_dead_ms', 'until they are deleted')],
      ['A dead first job of a group', settings.on_group_dead === 'skip' ? 'is skipped' : of('on_group_dead', 'holds the group')],
      ['A job whose lease ran out', of('lapsed', effective.lapsed === 'first' ? 'goes where it was' : 'goes behind all that waits')],
    ]),
  );
}
