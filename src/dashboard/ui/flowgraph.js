// Queues and the ways between them, drawn as a graph.

import { attr, svg, text } from './dom.js';
import * as format from './format.js';
import { plain } from './json.js';
import { link } from './router.js';
import { layout } from './stages.js';

/** @typedef {import('./stages.js').Edge} Edge */
/** Where the figures of a queue come from. @typedef {{figures: (name: string) => {counts: Record<string, number>, rates_per_s?: Record<string, number>, paused: boolean} | undefined}} Source */

/** Why jobs go from one queue to another, in words. */
export const WHY = { route: 'goes on by its route', moved: 'moved', dead: 'dead letters', redriven: 'redriven' };

const [WIDE, HIGH, GAP_X, GAP_Y] = [210, 66, 80, 34];
const x = (/** @type {number} */ layer) => 12 + layer * (WIDE + GAP_X);
const y = (/** @type {number} */ row) => 30 + row * (HIGH + GAP_Y);

/** How many jobs wait. @param {Record<string, number> | undefined} counts */
export function waiting(counts) {
  return (counts?.ready ?? 0) + (counts?.scheduled ?? 0) + (counts?.blocked ?? 0);
}

/** A name that fits. @param {string} name @param {number} most */
function short(name, most) {
  const is = plain(name);
  return is.length > most ? `${is.slice(0, most - 9)}…${is.slice(-8)}` : is;
}

/** A queue of the graph. @param {{name: string, layer: number, row: number}} place @param {Source} source */
function stage({ name, layer, row }, source) {
  const depth = svg('text', { x: 12, y: 42, class: 'g-depth' });
  const rate = svg('text', { x: 12, y: 57, class: 'g-small' });
  const bar = svg('rect', { x: 12, y: HIGH - 5, height: 3, width: 0, class: 'g-bar' });
  const title = svg('title', null);
  const node = svg(
    'a',
    { href: link(['queues', name]), class: 'g-node', transform: `translate(${x(layer)} ${y(row)})` },
    title,
    svg('rect', { width: WIDE, height: HIGH, rx: 9, class: 'g-box' }),
    svg('text', { x: 12, y: 22, class: 'g-name' }, short(name, 25)),
    depth,
    rate,
    bar,
  );
  return {
    name,
    node,
    set: (/** @type {number} */ most) => {
      const { counts, rates_per_s: rates = {}, paused } = source.figures(name) ?? { counts: null, paused: false };
      const n = { ready: 0, scheduled: 0, reserved: 0, blocked: 0, dead: 0, done: 0, ...counts };
      const waits = waiting(n);
      text(
        depth,
        [
          `${format.count(waits)} waiting`,
          n.reserved > 0 && `${format.count(n.reserved)} running`,
          n.dead > 0 && `${format.count(n.dead)} dead`,
        ]
          .filter(Boolean)
          .join(' · '),
      );
      const out = (rates.committed ?? 0) + (rates.moved ?? 0);
      text(rate, paused ? 'paused' : `${format.rate(out)} finished here`);
      attr(node, 'class', `g-node${paused ? ' g-paused' : ''}${n.dead > 0 ? ' g-dead' : ''}`);
      attr(bar, 'width', ((WIDE - 24) * Math.min(1, most > 0 ? waits / most : 0)).toFixed(1));
      text(
        title,
        `${plain(name)}: ${Object.entries(n)
          .map(([of, k]) => `${k} ${of}`)
          .join(', ')}`,
      );
    },
  };
}

/** The path of a line: it passes above the stages that it leaves out, and leads back below. @param {{layer: number, row: number}} from @param {{layer: number, row: number}} to @param {boolean} isDead */
function way(from, to, isDead) {
  const [x1, y1] = [x(from.layer) + WIDE, y(from.row) + HIGH / 2];
  const [x2, y2] = [x(to.layer) - 3, y(to.row) + HIGH / 2];
  if (isDead && to.row > from.row && to.layer >= from.layer) {
    const [down, top] = [x1 - WIDE / 2, y1 + HIGH / 2];
    if (to.layer === from.layer) return `M${down} ${top}V${y(to.row) - 3}`;
    return `M${down} ${top}C${down} ${y2} ${down + 40} ${y2} ${x2} ${y2}`;
  }
  if (to.layer > from.layer) {
    const bend = Math.min(120, (x2 - x1) / 2);
    const lift = to.layer - from.layer > 1 ? 64 : 0;
    return `M${x1} ${y1}C${x1 + bend} ${y1 - lift} ${x2 - bend} ${y2 - lift} ${x2} ${y2}`;
  }
  const low = Math.max(y1, y2) + HIGH / 2 + 34;
  return `M${x1 - WIDE / 2} ${y1 + HIGH / 2}C${x1 - WIDE / 2} ${low} ${x2 + WIDE / 2} ${low} ${x2 + WIDE / 2} ${y2 + HIGH / 2 + 3}`;
}

/** Where the figure of a line stands, beside its middle. @param {{layer: number, row: number}} from @param {{layer: number, row: number}} to @param {boolean} isDead @returns {Record<string, number | string>} */
function beside(from, to, isDead) {
  const [x1, y1] = [x(from.layer) + WIDE, y(from.row) + HIGH / 2];
  const [x2, y2] = [x(to.layer) - 3, y(to.row) + HIGH / 2];
  if (isDead && to.row > from.row && to.layer >= from.layer) {
    if (to.layer === from.layer) return { x: x1 - WIDE / 2 + 7, y: (y1 + y2) / 2 + 4 };
    return { x: x2 - 12, y: y2 - 7, 'text-anchor': 'end' };
  }
  if (to.layer > from.layer) {
    const lift = to.layer - from.layer > 1 ? 48 : 0;
    return { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - lift - 6, 'text-anchor': 'middle' };
  }
  const low = Math.max(y1, y2) + HIGH / 2 + 34;
  return { x: (x1 + x2) / 2, y: (y1 + y2 + HIGH) / 8 + 0.75 * low - 5, 'text-anchor': 'middle' };
}

/** A line of the graph, with how many jobs were seen on it. @param {Edge} edge @param {Map<string, {layer: number, row: number}>} places @param {Edge[]} others all that leave the queue */
function line(edge, places, others) {
  const [from, to] = [places.get(edge.from), places.get(edge.to)];
  if (!from || !to) return null;
  const share = () => edge.seen / Math.max(1, sumOf(others));
  const isDead = edge.why === 'dead';
  const title = svg('title', null);
  const figure = svg('text', { ...beside(from, to, isDead), class: 'g-small g-figure' });
  const path = svg('path', {
    d: way(from, to, isDead),
    'stroke-width': (1.5 + 4 * share()).toFixed(1),
    'marker-end': `url(#to-${edge.why})`,
  });
  return {
    node: svg('g', { class: `g-edge g-${edge.why}${edge.seen === 0 ? ' g-unseen' : ''}` }, title, path, figure),
    set: () => {
      const seen =
        edge.seen > 0 ? `${format.plural(edge.seen, 'job')} seen, the last ${format.ago(edge.lastAt)}` : 'no job seen on this way yet';
      text(title, `${plain(edge.from)} → ${plain(edge.to)}: ${WHY[edge.why]}, ${seen}`);
      text(figure, `${format.short(edge.seen)}${others.length > 1 && edge.seen > 0 ? ` · ${Math.round(100 * share())} %` : ''}`);
    },
  };
}

/** How many jobs were seen on these ways. @param {Edge[]} edges */
function sumOf(edges) {
  return edges.reduce((n, { seen }) => n + seen, 0);
}

/** The graph. @param {Edge[]} edges @param {Set<string>} drawn @param {Source} source */
export function graph(edges, drawn, source) {
  const { places, columns, rows } = layout(edges);
  const byName = new Map(places.map((place) => [place.name, place]));
  const left = (/** @type {Edge} */ edge) => edges.filter(({ from }) => from === edge.from);
  const markers = ['route', 'moved', 'dead', 'redriven'].map((why) =>
    svg(
      'marker',
      {
        id: `to-${why}`,
        viewBox: '0 0 8 8',
        refX: '7',
        refY: '4',
        markerWidth: '11',
        markerHeight: '11',
        orient: 'auto',
        markerUnits: 'userSpaceOnUse',
        class: `g-${why}`,
      },
      svg('path', { d: 'M0 0L8 4L0 8z' }),
    ),
  );
  const nodes = places.map((place) => stage(place, source));
  const [width, height] = [x(columns) - GAP_X + 12, y(rows) + 8];
  const lines = edges.map((edge) => line(edge, byName, left(edge))).filter((one) => one !== null);
  const node = svg(
    'svg',
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      class: 'graph',
      role: 'group',
      'aria-label': 'Queues and the ways between them; the same is in the list',
    },
    svg('defs', null, ...markers),
    ...lines.map((one) => one.node),
    ...nodes.map((one) => one.node),
  );
  return {
    node,
    set: () => {
      const most = Math.max(1, ...[...drawn].map((name) => source.figures(name)?.counts).map((n) => waiting(n)));
      for (const one of nodes) one.set(most);
      for (const one of lines) one.set();
    },
  };
}
