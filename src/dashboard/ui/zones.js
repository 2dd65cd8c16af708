// Times in two zones: that of the reader, and that of a rule. Where clocks change between two of them, that is said.

import { h } from './dom.js';
import * as format from './format.js';

/** @type {Map<string, Intl.DateTimeFormat | null>} */
const formats = new Map();

/** @param {string} zone @returns {Intl.DateTimeFormat | null} null for a zone that this browser does not know */
function formatOf(zone) {
  if (!formats.has(zone)) {
    try {
      formats.set(
        zone,
        new Intl.DateTimeFormat('en-GB', {
          timeZone: zone,
          weekday: 'short',
          day: '2-digit',
          month: 'short',
          year: 'numeric',
          hour: '2-digit',
          minute: '2-digit',
          second: '2-digit',
          hourCycle: 'h23',
          timeZoneName: 'longOffset',
        }),
      );
    } catch {
      formats.set(zone, null);
    }
  }
  return formats.get(zone) ?? null;
}

/** A time in a zone with its difference from UTC, which alone says which of two equal times of day it is. @param {string} at @param {string} zone */
export function inZone(at, zone) {
  const of = formatOf(zone);
  if (of === null) return { time: `${at.replace('T', ' ').replace(/\.\d+Z$/, '')} (this browser does not know ${zone})`, offset: 'UTC' };
  const part = Object.fromEntries(of.formatToParts(new Date(at)).map(({ type, value }) => [type, value]));
  const seconds = part.second === '00' ? '' : `:${part.second}`;
  return {
    time: `${part.weekday} ${part.day} ${part.month} ${part.year}, ${part.hour}:${part.minute}${seconds}`,
    offset: part.timeZoneName.replace('GMT', 'UTC').replace('-', '−'),
  };
}

/** The zones that this browser knows. */
export function zones() {
  return typeof Intl.supportedValuesOf === 'function' ? ['UTC', ...Intl.supportedValuesOf('timeZone')] : ['UTC'];
}

/**
 * The next times of a rule, in both zones. @param {string[]} times @param {string} zone
 * @returns {Element}
 */
export function nextTimes(times, zone) {
  const isSame = zone === format.zone;
  /** @type {any[]} */ const rows = [];
  let before = times.length > 0 ? inZone(new Date(format.now()).toISOString(), zone).offset : '';
  for (const at of times) {
    const there = inZone(at, zone);
    const here = inZone(at, format.zone);
    if (there.offset !== before) {
      rows.push(
        h(
          'tr',
          { class: 'note', role: 'row' },
          h(
            'td',
            { role: 'cell', colspan: isSame ? '2' : '3' },
            `Before this the clocks change in ${zone}: ${before} becomes ${there.offset}.`,
          ),
        ),
      );
      before = there.offset;
    }
    const cell = (/** @type {string} */ label, { time = '', offset = '' }) =>
      h('td', { role: 'cell', 'data-label': label }, time, ' ', h('small', null, offset));
    rows.push(
      h('tr', { role: 'row' }, cell('there', there), !isSame && cell('here', here), h('td', { class: 'num', role: 'cell' }, whenCell(at))),
    );
  }
  return h(
    'div',
    { class: 'scroll' },
    h(
      'table',
      { class: 'flow', role: 'table' },
      h('caption', { class: 'unseen' }, 'The next times'),
      h(
        'thead',
        { role: 'rowgroup' },
        h(
          'tr',
          { role: 'row' },
          h(
            'th',
            { scope: 'col', role: 'columnheader' },
            isSame ? `${zone}, the zone of the rule and of this machine` : `In the zone of the rule, ${zone}`,
          ),
          !isSame && h('th', { scope: 'col', role: 'columnheader' }, `Here, ${format.zone}`),
          h('th', { scope: 'col', class: 'num', role: 'columnheader' }, 'From now'),
        ),
      ),
      h('tbody', { role: 'rowgroup' }, ...rows),
    ),
  );
}

/** @param {string} at */
function whenCell(at) {
  return h('time', { class: 'when', datetime: at, title: format.exact(at) }, format.ago(at));
}
