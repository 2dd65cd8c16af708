// Parts of a response as they are written, cut out and never parsed: see json.js.

import { cut, members as each, token, value, whole } from './json.js';

/** The members of an object by their names, each as it is written. @param {string} text @returns {[string, string][]} */
export function members(text) {
  return Object.entries(cut(text, value(text)));
}

/** The elements of a list, each as it is written. @param {string} text */
export function items(text) {
  return [...each(text, value(text))].map(({ value: { start, end } }) => text.slice(start, end));
}

/** What is at these names, as it is written. @param {string} text @param {...string} names @returns {string | undefined} */
export function member(text, ...names) {
  /** @type {string | undefined} */ let at = text;
  for (const name of names) at = at === undefined ? undefined : cut(at, value(at), [name])[name];
  return at;
}

/** The same tokens, in lines. @param {string} text */
export function pretty(text) {
  whole(text);
  const parts = [];
  let depth = 0;
  const line = () => `\n${'  '.repeat(depth)}`;
  for (let at = 0, before = ''; ;) {
    const { kind, start, end } = token(text, at);
    if (kind === 'end') return parts.join('');
    const isEnd = kind === '}' || kind === ']';
    if (isEnd) depth -= 1;
    if (isEnd ? before !== '{' && before !== '[' : before === '{' || before === '[' || before === ',') parts.push(line());
    parts.push(text.slice(start, end));
    if (kind === ':') parts.push(' ');
    if (kind === '{' || kind === '[') depth += 1;
    before = kind;
    at = end;
  }
}

/** Says where a text is no JSON, or returns undefined. @param {string} text */
export function wrong(text) {
  try {
    whole(text);
    return undefined;
  } catch (/** @type {any} */ error) {
    return /** @type {string} */ (error.message);
  }
}
