// The commands of the screen that is shown, the palette that offers them, and the help about keys.

import { isTyping } from './dom.js';
import { lazy, openWith } from './lazy.js';
import { message, toast } from './widgets.js';

/** @typedef {{label: string, run: () => any, hint?: string}} Command */

/** Commands of the screen that is shown. @type {Set<Command>} */
const commands = new Set();
/** What else it offers: its buttons. @type {Set<() => Command[]>} */
const buttons = new Set();

/**
 * Offers what the buttons do that are shown in a part of the screen, until the screen is left: whatever they are when one looks.
 * @param {AbortSignal} signal @param {Element} of @param {string} hint what it is done to
 */
export function registerButtons(signal, of, hint) {
  const list = () =>
    [.../** @type {NodeListOf<HTMLElement>} */ (of.querySelectorAll('button:not([hidden], [disabled])'))].map((one) => ({
      label: one.getAttribute('aria-label') ?? one.textContent ?? '',
      hint,
      run: () => one.click(),
    }));
  buttons.add(list);
  signal.addEventListener('abort', () => buttons.delete(list));
}

/** The commands of the screen that is shown, as they are now. @returns {Command[]} */
export function commandsHere() {
  return [...commands, ...[...buttons].flatMap((list) => list())];
}

/** Offers commands until the screen is left. @param {AbortSignal} signal @param {Command[]} list */
export function registerCommands(signal, list) {
  for (const one of list) commands.add(one);
  signal.addEventListener('abort', () => list.forEach((one) => commands.delete(one)));
}

const loadPalette = lazy(() => import('./palette.js'));
const loadHelp = lazy(() => import('./help.js'));
const say = (/** @type {any} */ error) => toast(message(error), 'bad');

/** Opens the palette. */
export async function openPalette() {
  const keys = keepTyped();
  try {
    await openWith(loadPalette, ({ palette }) => palette(keys.end()));
  } catch (error) {
    say(error);
  } finally {
    keys.end();
  }
}

/** Opens the help. */
export function help() {
  openWith(loadHelp, (module) => module.help()).catch(say);
}

/** Keeps what is typed while the palette is loaded: it is meant for its field, and is no shortcut. */
function keepTyped() {
  let typed = '';
  const keep = (/** @type {KeyboardEvent} */ event) => {
    if (isTyping(event.target) || event.key.length !== 1 || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    typed += event.key;
  };
  window.addEventListener('keydown', keep, true);
  return {
    end: () => {
      window.removeEventListener('keydown', keep, true);
      return typed;
    },
  };
}
