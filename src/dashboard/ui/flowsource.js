// What recent jobs and the settings of queues show of pipelines, with a bounded number of calls.

import { get, path, query } from './api.js';
import { remember } from './bounded.js';
import * as live from './live.js';
import { Stages } from './stages.js';

/** How many of the newest jobs are looked at, of all queues and of each stage. */
const NEWEST = 1000;
const OF_STAGE = 100;
/** How many queues are looked at each time, and how many until each was looked at once. */
const STAGES = 24;
const STAGES_FIRST = 96;
/** How many pages of queues are read for their `dead_letter`, and how many a page has. */
export const PAGES = 5;
/** Of how many queues the last figures are kept: more than the live picture has. */
const KEPT = 20_000;

/**
 * Which queues are looked at next: those never looked at before the others, and the longest ago first; among equals the stages that are known, then
 * those with rates, then those with jobs that wait. A queue may be quiet beside thousands of busier ones, and yet be a stage.
 * @param {Iterable<string>} names @param {(name: string) => import('./live.js').LiveQueue | undefined} of what the stream says of it
 * @param {Set<string>} stages @param {Map<string, number>} lookedAt in which round each was looked at @param {number} most
 */
export function nextOf(names, of, stages, lookedAt, most) {
  const rank = (/** @type {string} */ name) => {
    if (stages.has(name)) return 0;
    const queue = of(name);
    if (Object.values(queue?.rates_per_s ?? {}).some((rate) => rate > 0)) return 1;
    const { ready = 0, scheduled = 0, blocked = 0, reserved = 0 } = queue?.counts ?? {};
    return ready + scheduled + blocked + reserved > 0 ? 2 : 3;
  };
  return [...names]
    .map((name) => ({ name, at: lookedAt.get(name) ?? 0, rank: rank(name) }))
    .sort((one, other) => one.at - other.at || one.rank - other.rank || (one.name < other.name ? -1 : 1))
    .slice(0, most)
    .map(({ name }) => name);
}

/** What jobs and settings tell at one time; what was found before stays. */
export class Source {
  /** @param {AbortSignal} signal */
  constructor(signal) {
    this.signal = signal;
    this.stages = new Stages();
    // How many jobs were looked at: one may be among the newest of all and of its queue.
    this.looked = 0;
    this.round = 0;
    // In which round each queue was looked at.
    /** @type {Map<string, number>} */ this.lookedAt = new Map();
    // How many queues were not looked at yet.
    this.unlooked = 0;
    this.all = true;
    this.forbidden = false;
    this.settingsAt = 0;
    // The last figures of queues, also of those that the live picture does not have, since they are empty.
    /** @type {Map<string, any>} */ this.kept = new Map();
    live.follow(signal, (changed) => {
      for (const name of changed) {
        const now = live.queues.get(name);
        const last = this.kept.get(name);
        // A stage that is empty for a moment leaves the picture; its rates are still those of the last minute.
        if (now) remember(this.kept, name, now, KEPT);
        else if (last) remember(this.kept, name, { ...last, counts: {} }, KEPT);
      }
    });
  }

  /** What is known of a queue now. @param {string} name @returns {{counts: Record<string, number>, rates_per_s?: Record<string, number>, paused: boolean} | undefined} */
  figures(name) {
    return this.kept.get(name);
  }

  /** @param {Record<string, any>} where @param {number} limit @param {Set<string>} ids takes those of the jobs */
  async jobs(where, limit, ids) {
    try {
      const { jobs } = await get(query('/v1/jobs', { ...where, order: 'newest', payload: 'none', limit }), this.signal);
      for (const job of jobs) {
        this.stages.addJob(job);
        ids.add(job.id);
      }
    } catch (/** @type {any} */ error) {
      if (error.status !== 403) throw error;
      this.forbidden = true;
    }
  }

  /** @param {string} queue which may be another's, or be gone */
  async stats(queue) {
    try {
      remember(this.kept, queue, await get(path('queues', queue, 'stats'), this.signal), KEPT);
    } catch (/** @type {any} */ error) {
      if (error.status !== 403 && error.status !== 404) throw error;
      if (error.status === 403) this.forbidden = true;
    }
  }

  async settings() {
    if (Date.now() - this.settingsAt < 60_000) return;
    this.settingsAt = Date.now();
    let cursor;
    for (let page = 0; page < PAGES; page++) {
      const { queues, cursor: next } = await get(query('/v1/queues', { limit: 1000, cursor }), this.signal);
      for (const { queue, dead_letter: to } of queues) if (to !== undefined) this.stages.add(queue, to, 'dead', 0);
      cursor = next;
      this.all = next === undefined;
      if (this.all) break;
    }
  }

  async look() {
    const ids = new Set();
    await this.jobs({}, NEWEST, ids);
    if (!this.forbidden) await this.settings();
    // The queues in turn, a few at a time: what they hold is not among the newest of all where others are busier.
    this.round += 1;
    const stages = this.stages.queues();
    const names = new Set([...stages, ...live.queues.keys()]);
    const isFirst = [...names].some((name) => !this.lookedAt.has(name));
    const some = nextOf(names, (name) => live.queues.get(name), stages, this.lookedAt, isFirst ? STAGES_FIRST : STAGES);
    for (const queue of some) {
      await this.jobs({ queue }, OF_STAGE, ids);
      remember(this.lookedAt, queue, this.round, KEPT);
      if (!live.queues.has(queue)) await this.stats(queue);
    }
    this.looked = ids.size;
    // Those that were found just now are looked at the next time.
    this.unlooked = [...names].filter((name) => !this.lookedAt.has(name)).length;
  }
}
