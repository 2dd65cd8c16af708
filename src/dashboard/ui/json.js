// Texts of JSON as they are written: numbers with all their digits, keys in their order and as often as they are there. Nothing here
// makes values of them, as JSON.parse does; there are only places in the text.

/** @typedef {'{' | '}' | '[' | ']' | ',' | ':' | 'string' | 'number' | 'word' | 'bad' | 'end'} Kind */
/** A job as the API returns it, and the texts of what belongs to people.
 * @typedef {import('./api.js').Api<'Job'> & {raw: Record<string, string | undefined>, gone?: boolean, selected?: boolean}} Job */
/** @typedef {{kind: Kind, start: number, end: number}} Token */
/** A value: an object, an array, or what is neither. @typedef {{kind: '{' | '[' | 'string' | 'number' | 'word', start: number, end: number}} Value */
/** A member of an object, or an element of an array, which has no key. @typedef {{key: Token | null, value: Value}} Member */

const SPACE = /[ \t\r\n]*/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?/y;
const WORD = /true|false|null/y;
const AFTER_WORD = /[0-9A-Za-z_.+-]/;
/** What ends a string, or may not stand in one. */
const IN_STRING = /["\\\u0000-\u001f]/g;
const ESCAPE = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;

/** @param {RegExp} pattern a sticky one @param {string} text @param {number} at */
function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.test(text) ? pattern.lastIndex : -1;
}

/** Returns the next token at or after a place: of kind `bad` where there is none, with all that is left. @param {string} text @param {number} at @returns {Token} */
export function token(text, at) {
  const start = match(SPACE, text, at);
  if (start >= text.length) return { kind: 'end', start, end: start };
  const first = text[start];
  if ('{}[],:'.includes(first)) return { kind: /** @type {Kind} */ (first), start, end: start + 1 };
  /** @type {[Kind, number]} */
  const [kind, end] =
    first === '"'
      ? ['string', endOfString(text, start)]
      : first === '-' || (first >= '0' && first <= '9')
        ? ['number', match(NUMBER, text, start)]
        : ['word', match(WORD, text, start)];
  if (end < 0 || (kind !== 'string' && AFTER_WORD.test(text[end] ?? ''))) return { kind: 'bad', start, end: text.length };
  return { kind, start, end };
}

/** @param {string} text @param {number} start where its quote is @returns {number} -1 where it is none */
function endOfString(text, start) {
  let at = start + 1;
  for (;;) {
    IN_STRING.lastIndex = at;
    const found = IN_STRING.exec(text);
    if (found === null || found[0] < ' ') return -1;
    if (found[0] === '"') return found.index + 1;
    at = match(ESCAPE, text, found.index);
    if (at < 0) return -1;
  }
}

/** Thrown where a text is no JSON: `at` is the place. */
export class NotJson extends Error {
  /** @param {string} text @param {number} at */
  constructor(text, at) {
    const before = text.slice(0, at).split('\n');
    const where =
      at >= text.length
        ? 'it ends too early.'
        : `line ${before.length}, column ${before[before.length - 1].length + 1}: ${JSON.stringify(text.slice(at, at + 20))}`;
    super(`This is no JSON: ${where}`);
    this.at = at;
    /** The place in words. */
    this.where = where;
  }
}

/**
 * Returns the value that begins at or after a place, whatever is in it. No depth is too much: nothing calls itself here.
 * @param {string} text @param {number} [at] @returns {Value}
 */
export function value(text, at = 0) {
  const first = token(text, at);
  if (first.kind !== '{' && first.kind !== '[') return scalar(text, first);
  /** What must come next, and which brackets are open. @type {('value' | 'key' | ':' | 'next')} */
  let wanted = first.kind === '{' ? 'key' : 'value';
  let isFirst = true;
  let open = [first.kind];
  let place = first.end;
  while (open.length > 0) {
    const { kind, start, end } = token(text, place);
    const isObject = open[open.length - 1] === '{';
    place = end;
    const closes = kind === (isObject ? '}' : ']') && (isFirst ? wanted !== ':' : wanted === 'next');
    isFirst = false;
    if (closes) {
      open.pop();
      wanted = 'next';
    } else if (wanted === 'next' && kind === ',') wanted = isObject ? 'key' : 'value';
    else if (wanted === 'key' && kind === 'string') wanted = ':';
    else if (wanted === ':' && kind === ':') wanted = 'value';
    else if (wanted === 'value' && (kind === '{' || kind === '[')) {
      open.push(kind);
      wanted = kind === '{' ? 'key' : 'value';
      isFirst = true;
    } else if (wanted === 'value' && (kind === 'string' || kind === 'number' || kind === 'word')) wanted = 'next';
    else throw new NotJson(text, start);
  }
  return { kind: first.kind, start: first.start, end: place };
}

/** @param {string} text @param {Token} one @returns {Value} */
function scalar(text, { kind, start, end }) {
  if (kind !== 'string' && kind !== 'number' && kind !== 'word') throw new NotJson(text, start);
  return { kind, start, end };
}

/** Returns the one value that a text is. @param {string} text @returns {Value} */
export function whole(text) {
  const found = value(text);
  const after = token(text, found.end);
  if (after.kind !== 'end') throw new NotJson(text, after.start);
  return found;
}

/**
 * The members of an object, or the elements of an array, one by one: what is not asked for is not looked at.
 * @param {string} text @param {Value} of @returns {Generator<Member, void>}
 */
export function* members(text, of) {
  if (of.kind !== '{' && of.kind !== '[') return;
  let at = of.start + 1;
  for (;;) {
    const first = token(text, at);
    if (first.kind === '}' || first.kind === ']') return;
    const key = of.kind === '{' ? first : null;
    const found = value(text, key ? token(text, key.end).end : first.start);
    yield { key, value: found };
    const after = token(text, found.end);
    if (after.kind !== ',') return;
    at = after.end;
  }
}

/** The name that a key is, without its quotes. Keys are the one thing that is read as JavaScript reads it. @param {string} text @param {Token} key */
export function nameOf(text, key) {
  return /** @type {string} */ (JSON.parse(text.slice(key.start, key.end)));
}

/**
 * Cuts the raw texts of the members of an object out: of those keys that are asked for, or of all. Of a key that is there twice, the last.
 * @param {string} text @param {Value} of @param {string[]} [names] @returns {Record<string, string>}
 */
export function cut(text, of, names) {
  /** @type {Record<string, string>} */ const found = Object.create(null);
  for (const {
    key,
    value: { start, end },
  } of members(text, of)) {
    if (key === null) continue;
    const name = nameOf(text, key);
    if (names === undefined || names.includes(name)) found[name] = text.slice(start, end);
  }
  return found;
}

/** The value of a member of an object, or undefined. @param {string} text @param {Value} of @param {string} name @returns {Value | undefined} */
export function member(text, of, name) {
  for (const { key, value: found } of members(text, of)) if (key !== null && nameOf(text, key) === name) return found;
  return undefined;
}

/** What the raw texts of a job are called in the API. */
export const RAW = ['payload', 'payload_head', 'headers', 'result', 'progress'];

/**
 * Reads a response that is a job, or has a list of jobs: the fields as JSON.parse does, and `raw` with the texts of what belongs to people.
 * @param {string} text @param {string} [list] the name of the list @returns {any}
 */
export function readJobs(text, list) {
  const read = JSON.parse(text);
  const top = value(text);
  if (list === undefined) {
    read.raw = cut(text, top, RAW);
    return read;
  }
  const jobs = member(text, top, list);
  let n = 0;
  if (jobs) for (const one of members(text, jobs)) read[list][n++].raw = cut(text, one.value, RAW);
  return read;
}

// Characters that one does not see, or that change the order of those beside them: controls, spaces other than the usual one, marks of
// direction, zero-width ones, halves of surrogate pairs, and those for private use.
// eslint-disable-next-line no-control-regex
const UNSEEN =
  /[\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0e\ufeff\uffa0\ufff0-\uffff]|[\u{e0000}-\u{e0fff}]/gu;

/**
 * Cuts a text into what can be shown as it is and what must be shown as an escape. Line breaks and tabs are shown as they are if `lines`.
 * @param {string} text @param {boolean} [lines] @returns {{text: string, escape: boolean}[]}
 */
export function visible(text, lines = false) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(UNSEEN)) {
    const [one] = found;
    if (lines && (one === '\n' || one === '\t')) continue;
    if (found.index > at) parts.push({ text: text.slice(at, found.index), escape: false });
    parts.push({ text: escape(one), escape: true });
    at = found.index + one.length;
  }
  if (at < text.length) parts.push({ text: text.slice(at), escape: false });
  return parts;
}

/** @param {string} one */
function escape(one) {
  const code = /** @type {number} */ (one.codePointAt(0));
  return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, '0')}`;
}

/** JSON with what cannot be seen in its strings written as escapes: it means the same. @param {string} text */
export function unseenEscaped(text) {
  return visible(text, true)
    .map((part) => (part.escape ? part.text.replace(/^\\u\{(.*)\}$/, (_, code) => surrogates(Number.parseInt(code, 16))) : part.text))
    .join('');
}

/** @param {number} code */
function surrogates(code) {
  return [...String.fromCodePoint(code)]
    .flatMap((one) => one.split(''))
    .map((half) => `\\u${half.charCodeAt(0).toString(16)}`)
    .join('');
}

/** A text on one line with nothing in it that cannot be seen: for names and errors. @param {string} text */
export function plain(text) {
  return visible(text)
    .map((part) => part.text)
    .join('');
}

/** Whether a text has such characters. @param {string} text */
export function hasUnseen(text) {
  UNSEEN.lastIndex = 0;
  return UNSEEN.test(text);
}
