// Cron rules in words, as a help; which times they mean the server says.

const MONTHS = [
  '',
  'January',
  'February',
  'March',
  'April',
  'May',
  'June',
  'July',
  'August',
  'September',
  'October',
  'November',
  'December',
];
const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday', 'Sunday'];
/** @type {Record<string, string>} */
const WORDS = {
  '@hourly': '0 * * * *',
  '@daily': '0 0 * * *',
  '@midnight': '0 0 * * *',
  '@weekly': '0 0 * * 0',
  '@monthly': '0 0 1 * *',
  '@yearly': '0 0 1 1 *',
  '@annually': '0 0 1 1 *',
};

/** @param {string} text @param {string[]} names such as JAN, by their first three letters */
function named(text, names) {
  const n = /^\d+$/.test(text) ? Number(text) : names.findIndex((name) => name.slice(0, 3).toUpperCase() === text.toUpperCase());
  return names[n] ?? text;
}

/** @param {string[]} parts */
function list(parts) {
  return parts.length < 2 ? parts.join('') : `${parts.slice(0, -1).join(', ')} and ${parts.at(-1)}`;
}

/** @param {string} n */
function nth(n) {
  const of = Number(n);
  return `${n}${of % 100 >= 11 && of % 100 <= 13 ? 'th' : (['th', 'st', 'nd', 'rd'][of % 10] ?? 'th')}`;
}

/** One field that is a list of numbers, ranges and steps. @param {string} field @param {string} unit @param {(text: string) => string} of */
function field(field, unit, of) {
  return list(
    field.split(',').map((part) => {
      const [range, step] = part.split('/');
      const [from, to] = range.split('-');
      const span =
        range === '*' ? '' : to === undefined ? (step === undefined ? of(from) : `from ${of(from)} on`) : `${of(from)} to ${of(to)}`;
      if (step === undefined) return span;
      return `every ${step === '1' ? unit : `${nth(step)} ${unit}`}${span === '' ? '' : ` ${/^from/.test(span) ? span : `from ${span}`}`}`;
    }),
  );
}

/** @param {string} text */
const isNumbers = (text) => /^\d+(,\d+)*$/.test(text);
/** @param {string} text */
const two = (text) => text.padStart(2, '0');

/** The minutes of a step that does not fill the hour: it begins again with each one. @param {number} step */
function steps(step) {
  const all = Array.from({ length: Math.ceil(60 / Math.max(1, step)) }, (_, n) => String(n * step));
  return all.length <= 6 ? all : [...all.slice(0, 3), '…', all[all.length - 1]];
}

/** @param {string} second @param {string} minute @param {string} hour */
function timeOfDay(second, minute, hour) {
  const seconds = second === '0' ? '' : isNumbers(second) && !second.includes(',') ? `:${two(second)}` : undefined;
  if (seconds !== undefined && isNumbers(hour) && isNumbers(minute) && hour.split(',').length * minute.split(',').length <= 6) {
    return `at ${list(hour.split(',').flatMap((h) => minute.split(',').map((m) => `${two(h)}:${two(m)}${seconds}`)))}`;
  }
  const parts = [];
  if (second === '*') parts.push('every second');
  else if (second.includes('/')) parts.push(field(second, 'second', (n) => n));
  else if (second !== '0') parts.push(`at second ${field(second, 'second', (n) => n)}`);
  if (minute === '*') parts.push(parts.length > 0 ? 'of every minute' : 'every minute');
  else if (/^\*\/\d+$/.test(minute) && 60 % Number(minute.slice(2)) === 0) parts.push(`every ${minute.slice(2)} minutes`);
  else if (/^\*\/\d+$/.test(minute)) parts.push(`at minute ${list(steps(Number(minute.slice(2))))}`);
  else if (minute.includes('/')) parts.push(field(minute, 'minute', (n) => n));
  else if (minute === '0' && hour === '*') return [...parts, 'every hour, on the hour'].join(' ');
  else parts.push(`at minute ${field(minute, 'minute', (n) => n)}`);
  const isMinutes = parts[parts.length - 1].startsWith('at minute');
  if (hour === '*') parts.push(isMinutes ? 'of every hour' : '');
  else if (/^\*\/\d+$/.test(hour)) parts.push(`of every ${nth(hour.slice(2))} hour`);
  else
    parts.push(
      /^\d+-\d+$/.test(hour)
        ? `from ${two(hour.split('-')[0])}:00 to ${two(hour.split('-')[1])}:59`
        : `in hour ${field(hour, 'hour', (n) => n)}`,
    );
  return parts.filter((part) => part !== '').join(' ');
}

/** @param {string} text */
function dayOfMonth(text) {
  return list(
    text
      .split(',')
      .map((part) =>
        part === 'L'
          ? 'the last day'
          : part === 'LW'
            ? 'the last weekday'
            : /^\d+W$/.test(part)
              ? `the weekday nearest to the ${nth(part.slice(0, -1))}`
              : part.includes('/')
                ? field(part, 'day', nth)
                : `the ${field(part, 'day', nth)}`,
      ),
  );
}

/** @param {string} text */
function dayOfWeek(text) {
  return list(
    text.split(',').map((part) => {
      if (/^\w+L$/.test(part)) return `the last ${named(part.slice(0, -1), DAYS)} of the month`;
      const [day, n] = part.split('#');
      return n === undefined ? field(part, 'day', (one) => named(one, DAYS)) : `the ${nth(n)} ${named(day, DAYS)} of the month`;
    }),
  );
}

/** What a rule means, in words; undefined where it has not five or six fields. @param {string} rule @returns {string | undefined} */
export function inWords(rule) {
  const fields = (WORDS[rule.trim().toLowerCase()] ?? rule.trim()).split(/\s+/);
  if (fields.length === 5) fields.unshift('0');
  if (fields.length !== 6 || fields.some((one) => !/^[\w*,/#?-]+$/.test(one))) return undefined;
  const [second, minute, hour, day, month, week] = fields.map((one) => (one === '?' ? '*' : one));
  const days = [];
  if (day !== '*') days.push(`on ${dayOfMonth(day)}`);
  if (week !== '*') days.push(`on ${dayOfWeek(week)}`);
  const time = timeOfDay(second, minute, hour);
  const when =
    days.length === 0 ? (time.startsWith('at ') && month === '*' && !/hour$/.test(time) ? ', every day' : '') : `, ${days.join(', or ')}`;
  return `${time}${when}${month === '*' ? '' : `, in ${field(month, 'month', (one) => named(one, MONTHS))}`}`;
}
