// Line charts as SVG. A chart is drawn once; new figures change attributes only. Charts of one screen share a ruler: the time that is
// pointed at in one of them is read in all.

import { attr, each, h, show, svg, text, toggle } from './dom.js';
import * as format from './format.js';
import { hasGap, nearest, timeTicks, valueTicks } from './scale.js';

/**
 * @typedef {[at: number, value: number][]} Points
 * @typedef {{id: string, label: string, kind: string, area?: boolean}} Line `kind` is the colour: a state, or p50, p95, p99
 * @typedef {{from: number, to: number, stepMs: number, lines: Record<string, Points>}} Figures
 * @typedef {{at: number | null, tell: (at: number | null) => void, follow: (then: () => void) => void}} Ruler
 */

/** How figures are written, and which of them are round. */
export const UNITS = {
  count: { write: format.count, axis: format.short, kind: /** @type {const} */ ('count') },
  rate: { write: format.rate, axis: format.short, kind: /** @type {const} */ ('number') },
  duration: {
    write: format.duration,
    axis: (/** @type {number} */ ms) => (ms === 0 ? '0' : format.duration(ms)),
    kind: /** @type {const} */ ('duration'),
  },
};

const HEIGHT = 200;
const EDGE = { left: 58, right: 10, top: 8, bottom: 24 };

/** The time that is pointed at. @returns {Ruler} */
export function ruler() {
  /** @type {Set<() => void>} */ const followers = new Set();
  /** @type {Ruler} */ const made = {
    at: null,
    tell: (at) => {
      if (made.at === at) return;
      made.at = at;
      for (const then of followers) then();
    },
    follow: (then) => followers.add(then),
  };
  return made;
}

/**
 * A chart in a card. `set` takes what was, `now` what is (shown while nothing is pointed at); `fail` says why there is nothing to show.
 * @param {{title: string, unit: keyof typeof UNITS, lines: Line[], ruler: Ruler, signal: AbortSignal}} options
 */
export function chart({ title, unit, lines, ruler: shared, signal }) {
  const parts = frame(title, lines);
  const { node, plot, at: shown, values } = parts;
  /** @type {Figures | null} */ let figures = null;
  /** @type {Record<string, number | undefined>} */ let now = {};
  /** Of which time these are: rates and times are those of the last minute. */
  let latest = unit === 'count' ? 'now' : format.over();
  text(shown, latest);
  let width = 0;
  /** @type {{x: (at: number) => number, y: (value: number) => number} | null} */ let scale = null;
  const draw = () => {
    if (figures === null || width <= 0) return;
    scale = paint(parts, lines, figures, unit, width);
    read();
  };
  /** Shows the figures of the time that is pointed at, or of now. */
  const read = () => {
    const pointed = figures === null ? null : shared.at;
    text(shown, pointed === null ? latest : format.time(pointed));
    toggle(node, 'pointed', pointed !== null);
    if (scale !== null && pointed !== null) setLine(parts.cross, scale.x(pointed), EDGE.top, scale.x(pointed), HEIGHT - EDGE.bottom);
    lines.forEach(({ id }, n) => {
      const of = figures?.lines[id] ?? [];
      const point = pointed === null || figures === null ? undefined : nearest(of, pointed, figures.stepMs);
      const value = pointed === null ? (id in now ? now[id] : of.at(-1)?.[1]) : point?.[1];
      text(values[n], UNITS[unit].write(value));
      show(parts.dots[n], point !== undefined);
      if (point !== undefined && scale !== null) {
        attr(parts.dots[n], 'cx', round(scale.x(point[0])));
        attr(parts.dots[n], 'cy', round(scale.y(point[1])));
      }
    });
    describe(parts, lines, figures, pointed);
  };
  point(plot, shared, () => (figures === null || width <= 0 ? null : { ...figures, width }));
  shared.follow(() => !signal.aborted && read());
  const observer = new ResizeObserver(([entry]) => {
    const next = Math.round(entry.contentRect.width);
    if (next === width) return;
    width = next;
    draw();
  });
  observer.observe(parts.box);
  signal.addEventListener('abort', () => observer.disconnect());
  return {
    node,
    /** @param {Figures} next */
    set: (next) => {
      figures = next;
      const isEmpty = lines.every(({ id }) => (next.lines[id] ?? []).length === 0);
      text(parts.note, isEmpty ? 'No figures of this time.' : '');
      show(parts.note, isEmpty);
      toggle(node, 'nothing', isEmpty);
      draw();
    },
    /** @param {Record<string, number | undefined>} next @param {number} [overMs] as much of the last minute as was seen */
    now: (next, overMs) => {
      now = next;
      if (unit !== 'count') latest = format.over(overMs);
      if (shared.at === null) read();
    },
    /** Says why there are no figures; those that were read before stay. @param {string} why */
    fail: (why) => {
      if (figures !== null) return;
      text(parts.note, why);
      show(parts.note, true);
    },
  };
}

/** The elements of a chart. @param {string} title @param {Line[]} lines */
function frame(title, lines) {
  const values = lines.map(() => h('b', null, '–'));
  const legend = h(
    'ul',
    { class: 'legend' },
    lines.map(({ label, kind }, n) => h('li', null, h('i', { class: `key of-${kind}` }), label, ' ', values[n])),
  );
  const at = h('span', { class: 'muted at' });
  const grid = svg('g', { class: 'grid' });
  const ticks = svg('g', { class: 'ticks' });
  const areas = lines.map(({ kind, area }) => svg('path', { class: `area of-${kind}`, hidden: !area }));
  const paths = lines.map(({ kind }) => svg('path', { class: `line of-${kind}` }));
  const dots = lines.map(({ kind }) => svg('circle', { class: `point of-${kind}`, r: 3.5, hidden: true }));
  const cross = svg('line', { class: 'cross' });
  const plot = svg(
    'svg',
    { class: 'plot', height: HEIGHT, tabindex: 0, role: 'slider', 'aria-label': `${title}: the time that is read`, 'aria-valuenow': 0 },
    grid,
    ticks,
    ...areas,
    ...paths.toReversed(),
    cross,
    ...dots,
  );
  const note = h('p', { class: 'note' }, 'Loading');
  const box = h('div', { class: 'plotbox' }, plot, note);
  const node = h(
    'section',
    { class: 'card chart', 'aria-label': title },
    h('div', { class: 'head' }, h('h2', null, title, ' ', at), legend),
    box,
  );
  return {
    node,
    box,
    plot,
    note,
    at,
    values,
    grid,
    ticks,
    areas,
    paths,
    dots,
    cross,
    setGrid: each(
      grid,
      (/** @type {Tick} */ tick) => tick.key,
      () => tickLine('value'),
    ),
    setTicks: each(
      ticks,
      (/** @type {Tick} */ tick) => tick.key,
      () => tickLine('time'),
    ),
  };
}

/** @typedef {{key: string, at: number, label: string, width: number, last: boolean}} Tick */

/** A line of the grid with its label, or a label below. @param {'value' | 'time'} axis */
function tickLine(axis) {
  const label = svg('text', { class: axis });
  const line = svg('line');
  const node = svg('g', null, axis === 'value' && line, label);
  return {
    node,
    set: (/** @type {Tick} */ tick) => {
      text(label, tick.label);
      if (axis === 'value') {
        setLine(line, EDGE.left, tick.at, tick.width - EDGE.right, tick.at);
        attr(label, 'x', EDGE.left - 8);
        attr(label, 'y', tick.at + 4);
      } else {
        attr(label, 'x', tick.at);
        attr(label, 'y', HEIGHT - 6);
      }
    },
  };
}

/**
 * Draws all that depends on the figures. @param {ReturnType<typeof frame>} parts @param {Line[]} lines @param {Figures} figures
 * @param {keyof typeof UNITS} unit @param {number} width
 */
function paint(parts, lines, { from, to, stepMs, lines: points }, unit, width) {
  let most = 0;
  for (const { id } of lines) for (const [, value] of points[id] ?? []) most = Math.max(most, value);
  const values = valueTicks(most, UNITS[unit].kind);
  const top = values[values.length - 1];
  const bottom = HEIGHT - EDGE.bottom;
  const x = (/** @type {number} */ at) => EDGE.left + ((at - from) / (to - from)) * (width - EDGE.left - EDGE.right);
  const y = (/** @type {number} */ value) => bottom - (value / top) * (bottom - EDGE.top);
  attr(parts.plot, 'width', width);
  attr(parts.plot, 'viewBox', `0 0 ${width} ${HEIGHT}`);
  parts.setGrid(values.map((value) => ({ key: String(value), at: round(y(value)), label: UNITS[unit].axis(value), width, last: false })));
  const times = timeTicks(from, to, Math.max(2, Math.floor((width - EDGE.left) / 90)));
  parts.setTicks(times.map(({ at, label }) => ({ key: String(at), at: Math.min(round(x(at)), width - 20), label, width, last: false })));
  lines.forEach(({ id, area }, n) => {
    const [line, filled] = shape(points[id] ?? [], from, stepMs, x, y, bottom, 2);
    attr(parts.paths[n], 'd', line);
    if (area) attr(parts.areas[n], 'd', filled);
  });
  return { x, y };
}

/**
 * The line through points, interrupted where some are missing, and the area below it.
 * @param {Points} points @param {number} from @param {number} stepMs @param {(at: number) => number} x @param {(value: number) => number} y @param {number} bottom
 * @param {number} [half] how far a point alone reaches to both sides
 */
export function shape(points, from, stepMs, x, y, bottom, half = 0) {
  let line = '';
  let area = '';
  let last = 0;
  let before = -Infinity;
  points.forEach(([at, value], n) => {
    if (at < from) return;
    const px = round(x(at));
    const py = round(y(value));
    if (hasGap(before, at, stepMs)) {
      if (area !== '') area += `V${bottom}Z`;
      // A point alone is seen since the ends of lines are round, and in a chart as a short line: a dot is too small.
      const by = hasGap(at, points[n + 1]?.[0] ?? Infinity, stepMs) ? half : 0;
      line += `M${round(px - by)} ${py}h${2 * by}`;
      area += `M${px} ${bottom}V${py}`;
    } else {
      line += `L${px} ${py}`;
      area += `L${px} ${py}`;
    }
    before = at;
    last = px;
  });
  return [line, area === '' ? '' : `${area}L${last} ${bottom}Z`];
}

/**
 * Reads the time under the pointer, or with the arrow keys. @param {any} plot @param {Ruler} shared
 * @param {() => {from: number, to: number, stepMs: number, width: number} | null} known
 */
function point(plot, shared, known) {
  const move = (/** @type {PointerEvent} */ event) => {
    const range = known();
    if (range === null) return;
    const inner = range.width - EDGE.left - EDGE.right;
    const share = (event.clientX - plot.getBoundingClientRect().left - EDGE.left) / inner;
    shared.tell(range.from + Math.min(Math.max(share, 0), 1) * (range.to - range.from));
  };
  plot.addEventListener('pointermove', move);
  plot.addEventListener('pointerdown', move);
  plot.addEventListener('pointerleave', () => shared.tell(null));
  plot.addEventListener('blur', () => shared.tell(null));
  plot.addEventListener('keydown', (/** @type {KeyboardEvent} */ event) => {
    const range = known();
    if (range === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const { from, to } = range;
    const step = Math.max(range.stepMs, (to - from) / 120);
    const at = shared.at ?? to;
    const next = { ArrowLeft: at - step, ArrowRight: at + step, PageUp: at - 10 * step, PageDown: at + 10 * step, Home: from, End: to }[
      event.key
    ];
    if (event.key === 'Escape') shared.tell(null);
    if (next === undefined) return;
    event.preventDefault();
    shared.tell(Math.min(Math.max(next, from), to));
  });
}

/**
 * Says in words what is seen. @param {ReturnType<typeof frame>} parts @param {Line[]} lines @param {Figures | null} figures
 * @param {number | null} pointed
 */
function describe(parts, lines, figures, pointed) {
  if (figures === null) return;
  const words = lines.map(({ label }, n) => `${label} ${parts.values[n].textContent}`).join(', ');
  attr(parts.plot, 'aria-valuemin', 0);
  attr(parts.plot, 'aria-valuemax', Math.round((figures.to - figures.from) / 1000));
  attr(parts.plot, 'aria-valuenow', Math.round(((pointed ?? figures.to) - figures.from) / 1000));
  if (pointed !== null || document.activeElement === parts.plot) {
    attr(parts.plot, 'aria-valuetext', `${pointed === null ? 'now' : format.time(pointed)}: ${words}`);
  } else {
    attr(parts.plot, 'aria-valuetext', 'now');
  }
}

/** @param {Element} line @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 */
function setLine(line, x1, y1, x2, y2) {
  attr(line, 'x1', round(x1));
  attr(line, 'y1', round(y1));
  attr(line, 'x2', round(x2));
  attr(line, 'y2', round(y2));
}

/** @param {number} n */
function round(n) {
  return Math.round(n * 10) / 10;
}
