// The dialog that says which keys there are.

import { h } from './dom.js';
import { SECTIONS } from './shell.js';

/** @type {[string, string][]} */
const KEYS = [
  ['/', 'Search: queues, jobs by id, commands'],
  ['j k', 'Next or previous row'],
  ['Enter', 'Open the row'],
  ['x', 'Select the row'],
  ['?', 'This help'],
  ['Esc', 'Close'],
];

/** Shows which keys there are. */
export function help() {
  const row = (/** @type {string} */ keys, /** @type {string} */ what) => [
    h('dt', null, ...keys.split(' ').flatMap((one) => [h('kbd', null, one), ' '])),
    h('dd', null, what),
  ];
  const close = h('button', { type: 'button', autofocus: true, on: { click: () => dialog.close() } }, 'Close');
  const dialog = h(
    'dialog',
    { 'aria-labelledby': 'help-title', class: 'wide', on: { close: () => dialog.remove() } },
    h('h2', { id: 'help-title' }, 'Keyboard'),
    h(
      'div',
      { class: 'halves' },
      h('dl', { class: 'facts keys' }, ...KEYS.flatMap(([keys, what]) => row(keys, what))),
      h('dl', { class: 'facts keys' }, ...SECTIONS.flatMap(({ key, label }) => row(`g ${key}`, label))),
    ),
    h('div', { class: 'actions' }, close),
  );
  document.body.append(dialog);
  dialog.showModal();
}
