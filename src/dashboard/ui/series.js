// What was (`/v1/series`), as the charts take it.

import { get, path, query } from './api.js';
import { attr, h } from './dom.js';
import { now } from './format.js';
import { RANGES, rangeOf } from './scale.js';

/** @typedef {import('./chart.js').Points} Points */

/** What the API counts under these words: jobs that a queue is done with, also those that a worker moved to another one; and attempts that failed. */
export const FINISHED = ['committed', 'moved'];
export const FAILED = ['rolled_back', 'lapsed'];

/** In a shorter part of a step than this too little has happened to tell a rate. */
const PART_MIN_MS = 60_000;

/**
 * The figures of a range.
 * @param {string} range @param {string[]} metrics @param {string | undefined} queue all together where it is absent @param {AbortSignal} signal
 */
export async function loadSeries(range, metrics, queue, signal) {
  const { ms, step } = RANGES[range];
  const all = await Promise.all(
    metrics.map((metric) => get(query(path('series'), { metric, queue, from: `-${ms / 1000}s`, step }), signal)),
  );
  const to = now();
  /** @type {Map<string, Points>} */ const points = new Map();
  all.forEach((one, n) =>
    points.set(
      metrics[n],
      one.points.map((/** @type {any} */ point) => [Date.parse(point.at), point.value]),
    ),
  );
  return new Series(to - ms, to, Math.max(...all.map((one) => one.step_ms)), points);
}

/** Figures of a range, of one or several metrics. */
export class Series {
  /** @param {number} from @param {number} to @param {number} stepMs @param {Map<string, Points>} points */
  constructor(from, to, stepMs, points) {
    this.from = from;
    this.to = to;
    this.stepMs = stepMs;
    this.points = points;
  }

  /** As they are. @param {string} metric */
  of(metric) {
    return this.points.get(metric) ?? [];
  }

  /** How often any of these happened per second, step by step; a step under way counts for as long as it is. @param {string[]} metrics */
  rate(metrics) {
    /** @type {Map<number, number>} */ const sums = new Map();
    for (const metric of metrics) for (const [at, value] of this.of(metric)) sums.set(at, (sums.get(at) ?? 0) + value);
    /** @type {Points} */ const rates = [];
    for (const [at, sum] of [...sums].sort(([a], [b]) => a - b)) {
      const passed = Math.min(this.to - at, this.stepMs);
      if (passed >= Math.min(this.stepMs, PART_MIN_MS)) rates.push([at, (1000 * sum) / passed]);
    }
    return rates;
  }

  /** How often any of these happened in all. @param {string[]} metrics */
  sum(metrics) {
    return metrics.reduce((sum, metric) => this.of(metric).reduce((all, [, value]) => all + value, sum), 0);
  }

  /** The values of points, with null where a step is missing: for a spark line. @param {Points} points */
  values(points) {
    /** @type {(number | null)[]} */ const values = new Array(Math.ceil((this.to - this.from) / this.stepMs)).fill(null);
    for (const [at, value] of points) {
      const n = Math.floor((at - this.from) / this.stepMs);
      if (n >= 0 && n < values.length) values[n] = value;
    }
    return values;
  }

  /** What a chart takes. @param {Record<string, Points>} lines */
  figures(lines) {
    return { from: this.from, to: this.to, stepMs: this.stepMs, lines };
  }
}

/**
 * The choice of a range, which is in the link. @param {() => import('./router.js').Context} context the latest one
 * @returns {{node: any, update: () => void}}
 */
export function rangeTabs(context) {
  const names = Object.keys(RANGES);
  const buttons = names.map((name) =>
    h(
      'button',
      { type: 'button', on: { click: () => context().setParams({ range: name === '15m' ? undefined : name }) } },
      RANGES[name].label,
    ),
  );
  const node = h('div', { class: 'tabs', role: 'group', 'aria-label': 'Time that the charts show' }, ...buttons);
  const update = () => names.forEach((name, n) => attr(buttons[n], 'aria-pressed', String(name === rangeOf(context().params))));
  update();
  return { node, update };
}
