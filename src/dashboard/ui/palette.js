// The command palette: a queue, a job or a command by a few letters.

import { get, path, query } from './api.js';
import { commandsHere } from './commands.js';
import { attr, h, swap, text } from './dom.js';
import * as format from './format.js';
import { help } from './help.js';
import * as live from './live.js';
import { go, link } from './router.js';
import { may } from './session.js';
import { SECTIONS, setTheme, THEMES } from './shell.js';
import { copy } from './widgets.js';

/** @typedef {import('./commands.js').Command} Command */

/** How many results are shown at most. */
const SHOWN = 40;
/** For how long the names of schedules, semaphores and workers are taken as they were read, in milliseconds. */
const NAMES_MS = 30_000;

/**
 * How well a text has these letters in this order: higher is better, -1 if it has not. Letters that begin a word and letters that follow one another
 * count more; a short text before a long one.
 * @param {string} letters in lower case @param {string} of
 */
export function score(letters, of) {
  if (letters === '') return 0;
  const low = of.toLowerCase();
  const whole = low.indexOf(letters);
  if (whole >= 0) return 1000 - Math.min(whole, 200) - Math.min(of.length, 200) / 10 + (whole === 0 ? 200 : 0);
  let at = -1;
  let points = 400 - Math.min(of.length, 200) / 10;
  for (const letter of letters) {
    if (letter === ' ') continue;
    const next = low.indexOf(letter, at + 1);
    if (next < 0) return -1;
    const isStart = next === 0 || /[\s._:-]/.test(low[next - 1]);
    points += (next === at + 1 ? 8 : 0) + (isStart ? 12 : 0) - Math.min(next - at, 20);
    at = next;
  }
  return points;
}

/** The names that lead to things beside queues. @type {{at: number, list: {kind: string, name: string, to: string}[]}} */
let names = { at: 0, list: [] };

async function readNames() {
  if (Date.now() - names.at < NAMES_MS) return;
  const of = async (/** @type {string} */ kind, /** @type {string} */ part, /** @type {string} */ screen) => {
    try {
      const page = await get(query(path(part), { limit: 1000 }));
      return page[part].map((/** @type {any} */ { name }) => ({ kind, name, to: link([screen, name]) }));
    } catch {
      return []; // the key may not allow it
    }
  };
  const lists = await Promise.all([
    of('Schedule', 'schedules', 'schedules'),
    of('Semaphore', 'semaphores', 'limits'),
    of('Worker', 'workers', 'workers'),
  ]);
  names = { at: Date.now(), list: lists.flat() };
}

/** What is there without a letter typed. @returns {(Command & {kind: string})[]} */
function fixed() {
  const goTo = (/** @type {string} */ kind, /** @type {string} */ label, /** @type {string} */ to, hint = '') => ({
    kind,
    label,
    hint,
    run: () => go(to),
  });
  return [
    ...commandsHere().map((one) => ({ ...one, kind: 'Here' })),
    ...SECTIONS.map(({ part, label, key }) => goTo('Go to', label, link(part === '' ? [] : [part]), `g ${key}`)),
    ...(may('admin') ? [goTo('Go to', 'Keys', link(['keys']))] : []),
    ...Object.entries(THEMES).map(([theme, label]) => ({ kind: 'Page', label, run: () => setTheme(theme) })),
    { kind: 'Help', label: 'Keyboard', hint: '?', run: help },
    { kind: 'Help', label: 'Copy the link of this page', run: () => copy(location.href) },
    { kind: 'Help', label: 'API documentation', hint: '/docs', run: () => window.open('/docs/', '_blank', 'noopener') },
  ];
}

/** What the letters mean. @param {string} typed @param {string[]} stored queues that the server knows, and that may have no jobs */
function find(typed, stored) {
  const letters = typed.trim().toLowerCase();
  const id = typed.trim().toUpperCase();
  /** @type {(Command & {kind: string})[]} */ const first = [];
  if (/^[0-9A-HJKMNP-TV-Z]{26}$/.test(id)) {
    for (const [kind, part] of [
      ['Job', 'jobs'],
      ['Batch', 'batches'],
    ])
      first.push({ kind, label: id, run: () => go(link([part, id])) });
  }
  if (letters === '') return fixed().slice(0, SHOWN);
  /** @type {{points: number, one: Command & {kind: string}}[]} */ const found = [];
  const offer = (/** @type {number} */ points, /** @type {Command & {kind: string}} */ one) => points > 0 && found.push({ points, one });
  for (const one of fixed()) offer(score(letters, one.label), one);
  for (const { kind, name, to } of names.list) offer(score(letters, name), { kind, label: name, run: () => go(to) });
  for (const queue of new Set([...live.queues.keys(), ...stored])) {
    const points = score(letters, queue);
    if (points <= 0) continue;
    const counts = live.queues.get(queue)?.counts;
    const hint =
      counts === undefined
        ? 'no jobs'
        : `${format.count(counts.ready)} ready${counts.dead > 0 ? `, ${format.count(counts.dead)} dead` : ''}`;
    offer(points + 5, { kind: 'Queue', label: queue, hint, run: () => go(link(['queues', queue])) });
  }
  found.sort((a, b) => b.points - a.points || (a.one.label < b.one.label ? -1 : 1));
  return [...first, ...found.slice(0, SHOWN).map(({ one }) => one)];
}

/** @param {string} typed what was typed before it was there */
export function palette(typed) {
  /** @type {(Command & {kind: string})[]} */ let shown = [];
  /** @type {string[]} */ let stored = [];
  let at = 0;
  let timer = 0;
  const list = h('ul', { role: 'listbox', id: 'palette-list', 'aria-label': 'Results' });
  const said = h('p', { class: 'unseen', role: 'status' });
  const input = h('input', {
    type: 'text',
    role: 'combobox',
    'aria-label': 'Queue, job id or command',
    'aria-controls': 'palette-list',
    'aria-expanded': 'true',
    'aria-autocomplete': 'list',
    autocomplete: 'off',
    autocapitalize: 'off',
    spellcheck: 'false',
    autofocus: true,
    maxlength: '200',
    placeholder: 'A queue, a job id, a command …',
    value: typed,
  });
  const mark = () => {
    [...list.children].forEach((node, n) => attr(node, 'aria-selected', String(n === at)));
    attr(input, 'aria-activedescendant', shown.length > 0 ? `palette-${at}` : null);
    list.children[at]?.scrollIntoView({ block: 'nearest' });
  };
  const run = (/** @type {number} */ n) => {
    const one = shown[n];
    if (one === undefined) return;
    dialog.close();
    one.run();
  };
  const draw = () => {
    shown = find(input.value, stored);
    at = Math.max(0, Math.min(at, shown.length - 1));
    swap(
      list,
      ...shown.map((one, n) =>
        h(
          'li',
          {
            role: 'option',
            id: `palette-${n}`,
            on: {
              click: () => run(n),
              pointermove: () => {
                if (at !== n) {
                  at = n;
                  mark();
                }
              },
            },
          },
          h('small', { class: 'kind' }, one.kind),
          h('span', { class: 'grow' }, one.label),
          h('small', null, one.hint ?? ''),
        ),
      ),
    );
    if (shown.length === 0)
      list.append(
        h(
          'li',
          { class: 'muted', role: 'option', 'aria-disabled': 'true' },
          'Nothing has this name. A job is found by its whole id, a payload by the search of “Jobs”.',
        ),
      );
    text(said, shown.length === 0 ? 'No results' : format.plural(shown.length, 'result'));
    mark();
  };
  const ask = async () => {
    const prefix = input.value.trim();
    if (!/^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/.test(prefix)) return;
    try {
      const page = await get(query(path('queues'), { prefix, limit: 20 }));
      if (!dialog.isConnected || input.value.trim() !== prefix) return;
      stored = page.queues.map((/** @type {any} */ { queue }) => queue);
      draw();
    } catch {
      /* those of the picture are found all the same */
    }
  };
  input.addEventListener('input', () => {
    at = 0;
    stored = [];
    draw();
    clearTimeout(timer);
    timer = window.setTimeout(ask, 150);
  });
  input.addEventListener('keydown', (/** @type {KeyboardEvent} */ event) => {
    if (event.isComposing) return;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 8, PageUp: at - 8 }[event.key];
    if (to !== undefined && shown.length > 0) {
      event.preventDefault();
      const isStep = Math.abs(to - at) === 1;
      at = isStep ? (to + shown.length) % shown.length : Math.max(0, Math.min(shown.length - 1, to));
      mark();
    } else if (event.key === 'Enter') {
      event.preventDefault();
      run(at);
    }
  });
  const dialog = h(
    'dialog',
    {
      class: 'palette',
      'aria-label': 'Search and commands',
      on: {
        close: () => {
          clearTimeout(timer);
          dialog.remove();
        },
        click: (/** @type {Event} */ event) => event.target === dialog && dialog.close(),
      },
    },
    input,
    list,
    said,
  );
  document.body.append(dialog);
  dialog.showModal();
  draw();
  if (typed !== '') ask();
  readNames().then(() => dialog.isConnected && draw());
}
