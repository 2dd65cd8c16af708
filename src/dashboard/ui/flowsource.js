// What recent jobs and the settings of queues tell of pipelines, with a bounded number of calls.

import { get, path, query } from './api.js';
import { remember } from './bounded.js';
import * as live from './live.js';
import { Stages } from './stages.js';

/** How many of the newest jobs are looked at, of all queues and of each stage. */
const NEWEST = 1000;
const OF_STAGE = 100;
/** How many stages are looked at each time. */
const STAGES = 24;
/** How many pages of queues are read for their `dead_letter`, and how many a page has. */
export const PAGES = 5;
/** Of how many queues the last figures are kept: more than the live picture has. */
const KEPT = 20_000;

/** What jobs and settings tell at one time; what was found before stays. */
export class Source {
  /** @param {AbortSignal} signal */
  constructor(signal) {
    this.signal = signal;
    this.stages = new Stages();
    this.looked = 0;
    this.turn = 0;
    this.all = true;
    this.forbidden = false;
    this.settingsAt = 0;
    /** The last figures of queues, also of those that the live picture does not have, since they are empty. @type {Map<string, any>} */ this.kept =
      new Map();
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

  /** @param {Record<string, any>} where @param {number} limit */
  async jobs(where, limit) {
    try {
      const { jobs } = await get(query('/v1/jobs', { ...where, order: 'newest', payload: 'none', limit }), this.signal);
      for (const job of jobs) this.stages.addJob(job);
      return jobs.length;
    } catch (/** @type {any} */ error) {
      if (error.status !== 403) throw error;
      this.forbidden = true;
      return 0;
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
    this.looked = await this.jobs({}, NEWEST);
    if (!this.forbidden) await this.settings();
    // The stages in turn, a few at a time: what they hold is not among the newest of all queues where others are busier.
    const rates = (/** @type {string} */ name) => live.queues.get(name)?.rates_per_s?.moved ?? 0;
    const known = [...new Set([...this.stages.queues(), ...[...live.queues.keys()].filter((name) => rates(name) > 0)])];
    const some = known.length <= STAGES ? known : Array.from({ length: STAGES }, (_, n) => known[(this.turn + n) % known.length]);
    this.turn += STAGES;
    for (const queue of some) {
      this.looked += await this.jobs({ queue }, OF_STAGE);
      if (!live.queues.has(queue)) remember(this.kept, queue, await get(path('queues', queue, 'stats'), this.signal), KEPT);
    }
  }
}
