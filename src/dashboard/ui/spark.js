// A small line in a tile or a row.

import { shape } from './chart.js';
import { attr, svg } from './dom.js';

/**
 * A small line without axes, as wide and high as its class says. Missing values are gaps.
 * @param {string} label @returns {{node: any, set: (values: (number | null | undefined)[]) => void}}
 */
export function spark(label) {
  const area = svg('path', { class: 'area' });
  const line = svg('path', { class: 'line', 'vector-effect': 'non-scaling-stroke' });
  const node = svg(
    'svg',
    { class: 'spark', viewBox: '0 0 100 20', preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    area,
    line,
  );
  return {
    node,
    set: (values) => {
      const most = values.reduce((/** @type {number} */ a, b) => Math.max(a, b ?? 0), 0) || 1;
      /** @type {import('./chart.js').Points} */ const points = [];
      values.forEach((value, n) => value !== null && value !== undefined && points.push([n, value]));
      const [d, filled] = shape(
        points,
        0,
        1,
        (n) => (100 * n) / Math.max(values.length - 1, 1),
        (value) => 18.5 - (17 * value) / most,
        20,
      );
      attr(line, 'd', d);
      attr(area, 'd', filled);
    },
  };
}
