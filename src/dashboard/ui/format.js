// Numbers, durations and times as people read them.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

/** A count: 5,357; from 100,000 on 1.2 M. @param {number | undefined} n */
export function count(n) {
  if (n === undefined || n === null) return '–';
  return n < 100_000 ? whole.format(n) : short(n);
}

/** A number with at most three digits and a unit: 33.9 k. @param {number} n */
export function short(n) {
  for (const [size, unit] of /** @type {[number, string][]} */ ([
    [1e12, ' T'],
    [1e9, ' G'],
    [1e6, ' M'],
    [1e3, ' k'],
  ])) {
    if (Math.abs(n) >= size) return `${digits(n / size)}${unit}`;
  }
  return digits(n);
}

/** @param {number} n */
function digits(n) {
  const size = Math.abs(n);
  if (size === 0) return '0';
  if (size >= 100) return whole.format(n);
  return size >= 10 ? n.toFixed(1).replace(/\.0$/, '') : n.toFixed(size < 0.1 ? 3 : size < 1 ? 2 : 1).replace(/\.?0+$/, '');
}

/** Events per second. @param {number | undefined} n */
export function rate(n) {
  return n === undefined || n === null ? '–' : `${short(n)}/s`;
}

/** @param {number | undefined} part @param {number} all */
export function percent(part, all) {
  if (part === undefined || all <= 0) return '–';
  const share = (100 * part) / all;
  // All of it and nothing of it are said only where that is so.
  if (share > 99 && share < 100) return `${Math.min(99.9, Math.floor(share * 10) / 10).toFixed(1)} %`;
  if (share > 0 && share < 0.1) return '< 0.1 %';
  return `${share < 10 ? share.toFixed(1) : whole.format(share)} %`;
}

/** A duration in milliseconds, in its two largest units: 17 m 22 s. @param {number | undefined} ms @param {boolean} [both] whether a second unit of 0 is written, as in what goes on while one reads @returns {string} */
export function duration(ms, both = false) {
  if (ms === undefined || ms === null || Number.isNaN(ms)) return '–';
  if (ms < 0) return `-${duration(-ms, both)}`;
  if (ms < 1000) return `${ms < 10 && ms > 0 ? digits(ms) : whole.format(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${ms % 1000 === 0 ? seconds : seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const units = /** @type {[number, string][]} */ ([
    [86_400, 'd'],
    [3600, 'h'],
    [60, 'm'],
    [1, 's'],
  ]);
  const first = units.findIndex(([size]) => seconds >= size);
  const [size, unit] = units[first];
  const rest = Math.floor((seconds % size) / units[first + 1][0]);
  return `${whole.format(Math.floor(seconds / size))} ${unit}${rest > 0 || both ? ` ${rest} ${units[first + 1][1]}` : ''}`;
}

/** Words that stay on one line: a number and its unit. @param {string} words */
export function tight(words) {
  return words.replaceAll(' ', '\u00a0');
}

/** The time of a rate: "second" for a thousand milliseconds, else a duration. @param {number} ms */
export function per(ms) {
  return { 1000: 'second', 60_000: 'minute', 3_600_000: 'hour', 86_400_000: 'day' }[ms] ?? duration(ms);
}

/** @param {number | undefined} n */
export function bytes(n) {
  if (n === undefined || n === null) return '–';
  if (n < 1000) return `${whole.format(n)} B`;
  return `${short(n)}B`.replace(' k', ' k');
}

/** How far the clock of the server is ahead of the one of this machine, in milliseconds; live.js keeps it. */
let ahead = 0;

/** @param {number} ms */
export function setAhead(ms) {
  ahead = ms;
}

/** By how much the clock of the server is ahead, in milliseconds; the answer is good to a second or so. */
export function clockAhead() {
  return ahead;
}

/** The time at the server, in milliseconds. */
export function now() {
  return Date.now() + ahead;
}

/** How long ago, or in how long: "in 5 s", "3 m ago". @param {string | undefined} at an RFC 3339 time */
export function ago(at) {
  const ms = now() - Date.parse(at ?? '');
  if (Number.isNaN(ms)) return '–';
  if (Math.abs(ms) < 1000) return 'now';
  return ms < 0 ? `in ${duration(-ms, true)}` : `${duration(ms, true)} ago`;
}

const clockTime = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });
const dayTime = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium', hourCycle: 'h23' });
const shortDay = new Intl.DateTimeFormat(undefined, {
  month: 'short',
  day: 'numeric',
  hour: '2-digit',
  minute: '2-digit',
  hourCycle: 'h23',
});

/** The zone in which the page shows times. */
export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** A time of day, with the day where that is not today. @param {string | number | undefined} at */
export function time(at) {
  if (at === undefined) return '–';
  const date = new Date(at);
  return date.toDateString() === new Date().toDateString() ? clockTime.format(date) : shortDay.format(date);
}

/** A time as exactly as it is known, here and as the server says it: for what is shown on hover. @param {string | number} at */
export function exact(at) {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? String(at) : `${dayTime.format(date)} ${zone}\n${date.toISOString()}`;
}

/** The time of which a rate is the mean. @param {number} [ms] as much of the last minute as was seen */
export function over(ms = 60_000) {
  return `over the last ${ms >= 60_000 ? 'minute' : duration(Math.max(1000, ms - (ms % 1000)))}`;
}

/** "1 job", "3 jobs". @param {number} n @param {string} one @param {string} [many] */
export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}
