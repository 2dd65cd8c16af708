// Modules that are loaded when they are first asked for: screens, and what is needed only after a click.

import { get, path } from './api.js';
import * as live from './live.js';

/**
 * Makes a function that loads a module once. Where that fails, its error says so in words.
 * @template T @param {() => Promise<T>} load @returns {() => Promise<T>}
 */
export function lazy(load) {
  /** @type {T | undefined} */ let loaded;
  return async () => {
    if (loaded !== undefined) return loaded;
    // Chromium never tries a module again that it could not get: none is tried while the server is away.
    if (live.state.connection === 'lost') await get(path('session'));
    try {
      loaded = await load();
    } catch (error) {
      throw new Error('This part of the page could not be loaded. Reload the page once the server is there.', { cause: error });
    }
    return loaded;
  };
}

/**
 * Loads a module and opens a dialog of it. It opens nothing, and resolves to undefined, where another dialog was opened or another link was followed
 * while it was loaded.
 * @template T, R @param {() => Promise<T>} load @param {(module: T) => Promise<R> | R} open @returns {Promise<R | undefined>}
 */
export async function openWith(load, open) {
  const { href } = location;
  const module = await load();
  return location.href === href && document.querySelector('dialog[open]') === null ? open(module) : undefined;
}
