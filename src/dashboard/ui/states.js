// How many jobs are in each state: a bar, and a figure of each that leads to the jobs.

import { attr, h, text, toggle } from './dom.js';
import * as format from './format.js';
import { STATES } from './widgets.js';

/** What the states mean. */
const MEANING = /** @type {Record<string, string>} */ ({
  ready: 'Ready for delivery',
  scheduled: 'Waiting for their time, or for the next attempt',
  reserved: 'Held by workers',
  blocked: 'Waiting for the job before them in their group, or for a semaphore',
  dead: 'Out of attempts, or given up',
  done: 'Finished, and kept as history',
});

/**
 * @param {(state: string) => string} to the link to the jobs in this state
 * @returns {{node: any, set: (counts: Record<string, number>) => void, links: () => void}}
 */
export function states(to) {
  const parts = STATES.map((state) => h('i', { class: `of-${state} none` }));
  const values = STATES.map(() => h('b', null, '–'));
  const links = STATES.map((state, n) =>
    h('a', { href: to(state), title: MEANING[state] }, h('i', { class: `key of-${state}` }), h('span', null, state), ' ', values[n]),
  );
  const node = h(
    'div',
    { class: 'states' },
    h('div', { class: 'bar', 'aria-hidden': 'true' }, parts),
    h(
      'ul',
      null,
      links.map((one) => h('li', null, one)),
    ),
  );
  return {
    node,
    set: (counts) =>
      STATES.forEach((state, n) => {
        const of = counts[state] ?? 0;
        text(values[n], format.count(of));
        attr(values[n], 'title', of >= 100_000 ? of.toLocaleString('en') : null);
        toggle(links[n], 'none', of === 0);
        parts[n].style.setProperty('flex-grow', String(of));
        toggle(parts[n], 'none', of === 0);
      }),
    links: () => STATES.forEach((state, n) => attr(links[n], 'href', to(state))),
  };
}
