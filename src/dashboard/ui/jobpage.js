// What a list of jobs shows at once: a page of a search, and the buttons of the states.

import { getText } from './api.js';
import { attr, h, text } from './dom.js';
import * as format from './format.js';
import { readJobs } from './json.js';
import { STATES } from './widgets.js';

/** How many jobs a page has. */
export const PAGE = 50;
/** How often a search goes on by itself where it has not found a page yet: each round looks at 50,000 jobs, or for 0.6 s. */
export const ROUNDS = 5;

/** @typedef {{jobs: import('./json.js').Job[], unreadable: any[], scanned: number, complete: boolean, cursor?: string}} Found */

/**
 * Looks for a page of jobs. @param {(cursor: string | undefined, limit: number) => string} at @param {string | undefined} cursor
 * @param {number} rounds @param {AbortSignal} signal @param {number} [have] @returns {Promise<Found>}
 */
export async function look(at, cursor, rounds, signal, have = 0) {
  /** @type {Found} */ const found = { jobs: [], unreadable: [], scanned: 0, complete: false, cursor };
  for (let n = 0; n < rounds; n++) {
    const page = readJobs(await getText(at(found.cursor, PAGE - have - found.jobs.length), signal), 'jobs');
    found.jobs.push(...page.jobs);
    found.unreadable.push(...(page.unreadable ?? []));
    found.scanned += page.scanned;
    found.complete = page.complete;
    found.cursor = page.cursor;
    if (page.cursor === undefined || have + found.jobs.length >= PAGE) break;
  }
  return found;
}

/** The buttons of the states: one is chosen by a click, one more by a click with Ctrl. @param {(state: string) => void} choose */
export function stateTabs(choose) {
  /** @type {string[]} */ let now = [];
  const make = (/** @type {string} */ state) => {
    const count = h('span', { class: 'muted num' });
    const node = h(
      'button',
      {
        type: 'button',
        'aria-pressed': 'false',
        title: state === '' ? null : `Only jobs that are ${state}. With Ctrl: these as well.`,
        on: {
          click: (/** @type {MouseEvent} */ event) => {
            const more = (event.ctrlKey || event.metaKey) && state !== '';
            choose((more ? (now.includes(state) ? now.filter((one) => one !== state) : [...now, state]) : [state]).join(','));
          },
        },
      },
      state === '' ? 'all' : state,
      ' ',
      count,
    );
    return { node, count, state };
  };
  const tabs = ['', ...STATES].map(make);
  return {
    node: h('div', { class: 'tabs', role: 'group', 'aria-label': 'State' }, ...tabs.map(({ node }) => node)),
    /** @param {string} states @param {Record<string, number> | null} counts */
    set(states, counts) {
      now = states.split(',').filter(Boolean);
      for (const { node, count, state } of tabs) {
        attr(node, 'aria-pressed', (state === '' ? now.length === 0 : now.includes(state)) ? 'true' : 'false');
        text(count, counts && state !== '' ? format.count(counts[state] ?? 0) : '');
      }
    },
  };
}

/** What of a page is new, gone or changed since it was shown. Nothing that is shown moves. @param {any[]} shown @param {Found} fresh @param {boolean} newest */
export function compare(shown, fresh, newest) {
  const byId = new Map(fresh.jobs.map((job) => [job.id, job]));
  const last = fresh.jobs[fresh.jobs.length - 1]?.id;
  const wasLooked = (/** @type {string} */ id) =>
    (fresh.cursor === undefined && fresh.complete) || (last !== undefined && (newest ? id >= last : id <= last));
  const known = new Set(shown.map(({ id }) => id));
  return {
    jobs: shown.map((job) => byId.get(job.id) ?? (wasLooked(job.id) ? { ...job, gone: true } : job)),
    added: fresh.jobs.filter(({ id }) => !known.has(id)).length,
  };
}

/**
 * The selected jobs, and how many of them are left out: those that were found to be gone or changed are shown as they were.
 * @param {any[]} shown @param {Set<string>} selected
 */
export function selectedOf(shown, selected) {
  const all = shown.filter(({ id }) => selected.has(id));
  const jobs = all.filter(({ gone }) => !gone);
  return { jobs, gone: all.length - jobs.length };
}
