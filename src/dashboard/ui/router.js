// Which screen a link means: everything that a screen shows is in its link, so that back, forward and a copied link are right.

import { failure } from './widgets.js';

/**
 * What a screen is given. All that it starts ends with `signal`.
 * @typedef {{
 *   parts: string[],
 *   params: URLSearchParams,
 *   signal: AbortSignal,
 *   setParams: (next: Record<string, string | undefined>, replace?: boolean) => void,
 * }} Context
 * @typedef {{title: string, node: Element, update?: (context: Context) => void}} Screen
 */

/** A link. @param {string[]} parts @param {Record<string, string | undefined>} [params] */
export function link(parts, params = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) if (value !== undefined && value !== '') search.set(name, value);
  const text = search.toString();
  return `#/${parts.map(encodeURIComponent).join('/')}${text === '' ? '' : `?${text}`}`;
}

/** @param {string} hash */
export function parse(hash) {
  const [at, search] = split(hash.replace(/^#\/?/, ''));
  const parts = at
    .split('/')
    .filter((part) => part !== '')
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  return { parts, params: new URLSearchParams(search) };
}

/** @param {string} text */
function split(text) {
  const at = text.indexOf('?');
  return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + 1)];
}

/** Goes to a link. @param {string} hash @param {boolean} [replace] */
export function go(hash, replace = false) {
  if (replace) {
    history.replaceState(history.state, '', hash);
    window.dispatchEvent(new HashChangeEvent('hashchange'));
  } else {
    location.hash = hash;
  }
}

/** A screen that cannot be made must not take the others with it. @param {() => Screen} how @returns {Screen} */
function make(how) {
  try {
    return how();
  } catch (error) {
    console.error(error);
    return { title: 'Error', node: failure(error) };
  }
}

/**
 * Goes back to where one was on a page, once there is as much of it again; forward begins at the top. A browser does that only for pages that are
 * there at once.
 */
function keepScroll() {
  history.scrollRestoration = 'manual';
  /** @type {Map<number, number>} */ const kept = new Map();
  let last = Date.now();
  const entry = () => {
    if (typeof history.state?.entry !== 'number') {
      last += 1;
      history.replaceState({ ...history.state, entry: last }, '');
    }
    return /** @type {number} */ (history.state.entry);
  };
  let here = entry();
  let stop = () => {};
  window.addEventListener('scroll', () => kept.set(here, window.scrollY), { passive: true });
  // Before the screen of the link: this listener is the first.
  window.addEventListener('hashchange', () => {
    kept.set(here, window.scrollY);
    here = entry();
  });
  return {
    /** @param {boolean} first */
    shown: (first) => {
      stop();
      const to = kept.get(here) ?? 0;
      if (!first || to > 0) window.scrollTo(0, to);
      if (to === 0) return;
      // Until what is read has come; the browser's own holding on to what is in view would work against it.
      document.documentElement.style.setProperty('overflow-anchor', 'none');
      const grown = new ResizeObserver(() => {
        window.scrollTo(0, to);
        kept.set(here, to);
      });
      const timer = setTimeout(() => stop(), 2000);
      stop = () => {
        grown.disconnect();
        clearTimeout(timer);
        document.documentElement.style.removeProperty('overflow-anchor');
        for (const type of ['wheel', 'touchstart', 'keydown']) window.removeEventListener(type, stop);
        stop = () => {};
      };
      for (const type of ['wheel', 'touchstart', 'keydown']) window.addEventListener(type, stop, { passive: true });
      grown.observe(document.body);
    },
  };
}

/**
 * Shows the screen of the link, and another one when the link changes. A change of parameters alone is told to the screen, which keeps its
 * elements. `choose` loads how to make the screen of these parts.
 * @param {(parts: string[]) => Promise<(context: Context) => Screen>} choose
 * @param {(screen: Screen, parts: string[]) => void} shown
 */
export function route(choose, shown) {
  let ended = new AbortController();
  /** @type {{path: string, screen: Screen} | null} */
  let current = null;
  /** @param {string[]} parts @param {URLSearchParams} params @returns {Context} */
  const context = (parts, params) => ({
    parts,
    params,
    signal: ended.signal,
    setParams: (next, replace = false) => {
      const all = Object.fromEntries(parse(location.hash).params);
      go(link(parts, { ...all, ...next }), replace);
    },
  });
  let first = true;
  const render = async () => {
    const { parts, params } = parse(location.hash);
    const path = JSON.stringify(parts);
    if (current?.path === path && current.screen.update) {
      try {
        current.screen.update(context(parts, params));
      } catch (error) {
        console.error(error);
      }
      return;
    }
    ended.abort();
    const mine = new AbortController();
    ended = mine;
    current = null;
    let chosen = null;
    try {
      const of = await choose(parts);
      chosen = () => of(context(parts, params));
    } catch (error) {
      chosen = () => ({ title: '', node: failure(error, render) });
    }
    if (ended !== mine) return; // another link was followed meanwhile
    const screen = make(chosen);
    current = { path, screen };
    shown(screen, parts);
    scroll.shown(first);
    first = false;
  };
  const scroll = keepScroll();
  window.addEventListener('hashchange', render);
  render();
}

/**
 * Runs `task` at once, and again `ms` after it has ended; not while the page is hidden. Errors are the task's. Returns a function that runs it now.
 * @param {AbortSignal} signal @param {number} ms @param {() => Promise<void> | void} task
 */
export function every(signal, ms, task) {
  let timer = 0;
  let running = false;
  let again = false;
  const run = async () => {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (running) {
      again = true;
      return;
    }
    running = true;
    try {
      await task();
    } catch (error) {
      if (!signal.aborted) console.error(error);
    }
    running = false;
    if (again) {
      again = false;
      run();
    } else if (!signal.aborted && !document.hidden) {
      timer = window.setTimeout(run, ms);
    }
  };
  document.addEventListener('visibilitychange', () => (document.hidden ? clearTimeout(timer) : run()), { signal });
  signal.addEventListener('abort', () => clearTimeout(timer));
  run();
  return run;
}
