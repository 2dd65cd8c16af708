// A job as one row of a list.

import { attr, h, show, swap, text, toggle } from './dom.js';
import * as format from './format.js';
import { plain } from './json.js';
import { excerpt } from './excerpt.js';
import { link } from './router.js';
import { badge, queueLink, when } from './widgets.js';

/** The payload in a few words. @param {import('./json.js').Job} job one with `raw` */
export function payloadOf(job) {
  if (job.payload_base64 !== undefined || job.payload_type !== undefined) {
    const length = job.payload_bytes ?? Math.floor((job.payload_base64?.replaceAll('=', '').length ?? 0) * 0.75);
    return `${plain(job.payload_type ?? 'application/octet-stream')}, ${format.bytes(length)}`;
  }
  if (job.payload_head !== undefined) return `${excerpt(job.payload_head)} (${format.bytes(job.payload_bytes)})`;
  if (job.payload_omitted) return `${format.bytes(job.payload_bytes)}`;
  return excerpt(job.raw?.payload ?? 'null');
}

/** What is to be said of a job beside its payload, and how bad that is. @param {import('./json.js').Job} job @returns {[string, '' | 'bad' | 'warn' | 'muted']} */
export function noteOf(job) {
  const error = job.errors?.[job.errors.length - 1]?.message ?? job.dead_lettered_from?.error;
  if (job.unreadable) return [`cannot be read: ${plain(job.unreadable)}`, 'bad'];
  if (job.state === 'dead' || (error !== undefined && job.state !== 'done'))
    return [error === undefined ? 'without an error' : excerpt(error), 'bad'];
  if (job.cancel_requested) return ['cancellation is requested', 'warn'];
  if (job.state === 'blocked')
    return [job.waits_for ? `waits for the semaphore ${plain(job.waits_for)}` : `waits for its group ${plain(job.group ?? '')}`, 'warn'];
  if (job.raw?.result !== undefined && job.raw.result !== 'null') return [excerpt(job.raw.result), 'muted'];
  if (job.raw?.progress !== undefined) return [excerpt(job.raw.progress), 'muted'];
  return ['', ''];
}

/** The time that matters in a state. @param {import('./json.js').Job} job @returns {[string, string | undefined]} */
function timeOf(job) {
  if (job.state === 'dead') return ['died', job.finished_at];
  if (job.state === 'done') return ['done', job.finished_at];
  if (job.state === 'reserved') return ['lease ends', job.reserved_until];
  if (job.state === 'scheduled') return ['due', job.run_at];
  return ['due', job.run_at];
}

/** A payload that may go on in the next line between its parts, and not within a number. @param {string} words */
function breakable(words) {
  return words.split(/(?<=[,:{[])/).flatMap((part) => [part, h('wbr')]);
}

/**
 * @param {{withQueue: boolean, select: ((id: string, event: MouseEvent) => void) | null}} options
 */
export function jobRow({ withQueue, select }) {
  return (/** @type {any} */ first) => {
    const { id } = first;
    const box =
      select &&
      h('input', {
        type: 'checkbox',
        'aria-label': `Select ${id}`,
        on: { click: (/** @type {MouseEvent} */ event) => select(id, event) },
      });
    const state = badge('');
    const about = h('span');
    const gone = h(
      'span',
      {
        class: 'badge warn',
        hidden: true,
        title: 'It was removed, or does not meet the conditions any more. What is shown is how it was.',
      },
      'changed',
    );
    const said = h('span');
    const time = when(undefined);
    const queue = h('span');
    const payload = h('td', { class: 'mono cell-payload' });
    const note = h('td', { class: 'cell-note' });
    const node = h(
      'tr',
      { 'data-row': id, tabindex: '-1' },
      box && h('td', { class: 'cell-box' }, h('label', { class: 'hit' }, box)),
      h(
        'td',
        { class: 'cell-job' },
        h('a', { href: link(['jobs', id]), class: 'mono name' }, id),
        h('div', { class: 'row sub' }, state, gone, withQueue && queue, h('span', { class: 'muted' }, said, ' ', time, about)),
      ),
      payload,
      note,
    );
    let inQueue = '';
    let shownPayload = '';
    return {
      node,
      set: (/** @type {import('./json.js').Job} */ job) => {
        text(state, job.state);
        attr(state, 'class', `badge ${job.state}`);
        const [word, at] = timeOf(job);
        text(said, word);
        attr(time, 'datetime', at);
        attr(time, 'title', at && format.exact(at));
        text(time, format.ago(at));
        const parts = [
          job.attempt > 0 && `attempt ${format.count(job.attempt)}${job.max_attempts > 0 ? ` of ${format.count(job.max_attempts)}` : ''}`,
          job.priority !== 0 && `priority ${format.count(job.priority)}`,
          job.worker && plain(job.worker),
        ]
          .filter(Boolean)
          .join(' · ');
        text(about, parts === '' ? '' : `\u00a0· ${parts}`);
        if (withQueue && inQueue !== job.queue) {
          inQueue = job.queue;
          swap(queue, queueLink(job.queue));
        }
        const words = payloadOf(job);
        if (words !== shownPayload) swap(payload, ...breakable(words));
        shownPayload = words;
        const [what, kind] = noteOf(job);
        text(note, what);
        attr(note, 'class', `cell-note ${kind}`);
        show(gone, Boolean(job.gone));
        toggle(node, 'gone', Boolean(job.gone));
        attr(node, 'aria-selected', job.selected ? 'true' : null);
        if (box) box.checked = Boolean(job.selected);
      },
    };
  };
}
