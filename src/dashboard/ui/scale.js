// Which numbers and times stand at the axes of a chart: round ones.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Steps that read well, above a second. */
const LONG = [
  SECOND,
  2 * SECOND,
  5 * SECOND,
  10 * SECOND,
  15 * SECOND,
  30 * SECOND,
  MINUTE,
  2 * MINUTE,
  5 * MINUTE,
  10 * MINUTE,
  15 * MINUTE,
  30 * MINUTE,
  HOUR,
  2 * HOUR,
  3 * HOUR,
  6 * HOUR,
  12 * HOUR,
  DAY,
  2 * DAY,
  7 * DAY,
];

/** How many lines there are at most, the one at 0 left out. */
const LINES = 4;

/**
 * The values of the lines, from 0 to one that is not below `most`.
 * @param {number} most @param {'count' | 'number' | 'duration'} kind
 */
export function valueTicks(most, kind) {
  if (most <= 0) return [0, 1];
  const step = valueStep(most / LINES, kind);
  const lines = Math.max(1, Math.ceil(most / step - 1e-9));
  return Array.from({ length: lines + 1 }, (_, n) => Number((n * step).toPrecision(12)));
}

/** @param {number} least @param {'count' | 'number' | 'duration'} kind */
function valueStep(least, kind) {
  if (kind === 'duration' && least > 500) {
    return LONG.find((step) => step >= least) ?? Math.ceil(least / DAY) * DAY;
  }
  const floor = kind === 'number' ? 0.05 : 1;
  const size = Math.max(least, floor);
  const power = 10 ** Math.floor(Math.log10(size) + 1e-9);
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= size * (1 - 1e-9)) ?? 10 * power;
}

const dayLabel = new Intl.DateTimeFormat(undefined, { weekday: 'short', day: 'numeric' });
const timeLabel = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });

/**
 * Round times within a range, `most` of them: full hours and days are those of this machine's zone.
 * @param {number} from @param {number} to @param {number} most
 */
export function timeTicks(from, to, most) {
  const least = (to - from) / most;
  const step = LONG.find((one) => one >= least && one >= MINUTE) ?? 7 * DAY;
  const ticks = [];
  const offset = (/** @type {number} */ at) => new Date(at).getTimezoneOffset() * MINUTE;
  const ahead = offset(from);
  for (let at = Math.ceil((from - ahead) / step) * step; at + ahead <= to; at += step) {
    const exact = at + offset(at + ahead); // the clocks may have been changed in between
    if (exact >= from && exact <= to) ticks.push({ at: exact, label: step >= DAY ? dayLabel.format(exact) : timeLabel.format(exact) });
  }
  return ticks;
}

/** Whether steps are missing between two points. @param {number} before @param {number} at @param {number} stepMs */
export function hasGap(before, at, stepMs) {
  return at - before > 1.5 * stepMs;
}

/**
 * The point next to a time, if there is one within a step of it. @template {[number, number]} P
 * @param {P[]} points in their order @param {number} at @param {number} stepMs @returns {P | undefined}
 */
export function nearest(points, at, stepMs) {
  let low = 0;
  let high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < at) low = middle + 1;
    else high = middle;
  }
  const [before, after] = [points[low - 1], points[low]];
  const found = before === undefined || (after !== undefined && after[0] - at < at - before[0]) ? after : before;
  return found !== undefined && Math.abs(found[0] - at) <= stepMs ? found : undefined;
}

/** The ranges that charts show, by their word in the link. */
export const RANGES = /** @type {Record<string, {label: string, ms: number, step: string, every: number}>} */ ({
  '15m': { label: '15 min', ms: 15 * MINUTE, step: '10s', every: 10 * SECOND },
  '1h': { label: '1 h', ms: HOUR, step: '10s', every: 10 * SECOND },
  '1d': { label: '1 day', ms: DAY, step: '5m', every: 60 * SECOND },
  '7d': { label: '7 days', ms: 7 * DAY, step: '30m', every: 60 * SECOND },
});

/** The range of a link. @param {URLSearchParams} params */
export function rangeOf(params) {
  const range = params.get('range') ?? '';
  return Object.hasOwn(RANGES, range) ? range : '15m';
}
