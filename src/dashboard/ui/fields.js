// Fields of forms: durations as people write them, whole numbers of any size, and the JSON of what they say, made without JSON.stringify
// where that would change a number.

import { field } from './dialog.js';
import { h } from './dom.js';
import { whole } from './json.js';

const UNITS = /** @type {Record<string, number>} */ ({ ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000 });

/** Milliseconds of "90s", "1h 30m", "250 ms" or "1500" (which is milliseconds); undefined if it is none. @param {string} written */
export function parseDuration(written) {
  const text = written.trim().toLowerCase();
  if (/^\d+$/.test(text)) return Number(text);
  if (!/^(\d+(\.\d+)?\s*(ms|s|min|m|h|d)\s*)+$/.test(text)) return undefined;
  let sum = 0;
  for (const [, n, unit] of text.matchAll(/(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)/g)) sum += Number(n) * UNITS[unit];
  return Math.round(sum);
}

/** The same duration as `parseDuration` takes it, exactly. @param {number | undefined} ms */
export function writeDuration(ms) {
  if (ms === undefined) return '';
  if (ms === 0) return '0';
  /** @type {string[]} */ const parts = [];
  let rest = ms;
  for (const [unit, size] of /** @type {[string, number][]} */ ([
    ['d', UNITS.d],
    ['h', UNITS.h],
    ['m', UNITS.m],
    ['s', UNITS.s],
    ['ms', 1],
  ])) {
    const n = Math.floor(rest / size);
    rest -= n * size;
    if (n > 0) parts.push(`${n} ${unit}`);
  }
  return parts.join(' ');
}

/**
 * What a field takes, and how what is written in it becomes JSON. An error says what would be right.
 * @type {Record<string, (written: string, label: string) => string>}
 */
export const READ = {
  duration: (written, label) => {
    const ms = parseDuration(written);
    if (ms === undefined) throw new Error(`${label}: write a duration such as 90s, 1h 30m or 250ms.`);
    return String(ms);
  },
  whole: (written, label) => {
    const text = written.trim().replace(/[ ,_](?=\d{3}(\D|$))/g, '');
    if (!/^-?\d+$/.test(text)) throw new Error(`${label}: write a whole number.`);
    return text.replace(/^(-?)0+(?=\d)/, '$1');
  },
  number: (written, label) => {
    if (!/^-?\d+(\.\d+)?$/.test(written.trim())) throw new Error(`${label}: write a number.`);
    return written.trim();
  },
  text: (written) => JSON.stringify(written.trim()),
  words: (written) => JSON.stringify(written.split(/[\s,]+/).filter((word) => word !== '')),
  json: (written, label) => {
    checkJson(written, label);
    return written.trim();
  },
};

/** Says where a text is no JSON; nothing of it is used but that. @param {string} written @param {string} label */
export function checkJson(written, label) {
  try {
    whole(written);
  } catch (/** @type {any} */ error) {
    throw new Error(`${label} is no JSON: ${error.where}`);
  }
}

/** An object of members whose values are JSON already. @param {[string, string][]} members */
export function object(members) {
  return `{${members.map(([name, value]) => `${JSON.stringify(name)}: ${value}`).join(', ')}}`;
}

/** @typedef {{name: string, label: string, type: string, hint?: string, options?: [string, string][], group?: string}} FieldSpec */

/**
 * The inputs of fields. `values` are what is written in them at first, `defaults` what is in effect where nothing is.
 * @param {FieldSpec[]} specs @param {Record<string, string>} [values] @param {Record<string, string>} [defaults]
 */
export function form(specs, values = {}, defaults = {}) {
  const inputs = specs.map((spec) => input(spec, values[spec.name] ?? '', defaults[spec.name]));
  return {
    nodes: specs.map(({ label, hint }, n) => field(label, inputs[n], hint)),
    inputs,
    /** What is written in a field. @param {string} name @returns {string} */
    value: (name) => inputs[specs.findIndex((spec) => spec.name === name)].value,
    /** The members that have been changed; null where nothing is written any more. @returns {[string, string][]} */
    changed: () =>
      specs.flatMap((spec, n) => {
        const written = inputs[n].value;
        if (written === (values[spec.name] ?? '')) return [];
        return [/** @type {[string, string]} */ ([spec.name, written.trim() === '' ? 'null' : READ[spec.type](written, spec.label)])];
      }),
  };
}

/** @param {FieldSpec} spec @param {string} value @param {string} [fallback] */
function input({ name, type, options }, value, fallback) {
  if (options !== undefined) {
    const select = h(
      'select',
      { name },
      options.map(([of, label]) =>
        h(
          'option',
          { value: of },
          of === '' && fallback ? `${label}: ${options.find(([other]) => other === fallback)?.[1] ?? fallback}` : label,
        ),
      ),
    );
    select.value = value;
    return select;
  }
  const numeric = type === 'whole' || type === 'number';
  return h('input', {
    type: 'text',
    name,
    value,
    placeholder: fallback ?? '',
    autocomplete: 'off',
    spellcheck: 'false',
    inputmode: numeric ? 'decimal' : null,
  });
}
