// Elements, built once and updated only with what is new. No text is ever parsed as HTML: strings become text nodes.

const SVG = 'http://www.w3.org/2000/svg';

/** @typedef {Node | string | number | false | null | undefined} Child */

/**
 * Makes an element. `on` has listeners; `class`, `hidden`, `aria-*` and other attributes are set as they are, `false`, null and
 * undefined are left out, `true` is an attribute without a value. `value` and `checked` are properties.
 * @param {string} tag
 * @param {Record<string, any> | null} [props]
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/**
 * Makes an element of SVG.
 * @param {string} tag
 * @param {Record<string, any> | null} [props]
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** @param {any} element @param {Record<string, any> | null | undefined} props @param {(Child | Child[])[]} children */
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name === 'on') {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === 'value' || name === 'checked') {
      element[name] = value;
    } else {
      attr(element, name, value);
    }
  }
  for (const child of children.flat()) {
    if (child !== false && child !== null && child !== undefined) element.append(/** @type {any} */ (child));
  }
  return element;
}

/**
 * Sets an attribute where it has changed; `false`, null and undefined remove it.
 * @param {Element} element @param {string} name @param {any} value
 */
export function attr(element, name, value) {
  if (value === false || value === null || value === undefined) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else {
    const text = value === true ? '' : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

/**
 * Sets the text of an element that has nothing but text, where it has changed.
 * @param {Element} element @param {string | number} value
 */
export function text(element, value) {
  const next = String(value);
  const first = element.firstChild;
  if (first === null) {
    if (next !== '') element.append(next);
  } else if (first instanceof Text && first === element.lastChild) {
    if (first.data !== next) first.data = next;
  } else {
    element.textContent = next;
  }
}

/** @param {Element} element @param {string} name @param {boolean} is */
export function toggle(element, name, is) {
  if (element.classList.contains(name) !== is) element.classList.toggle(name, is);
}

/** Shows or hides an element. @param {Element} element @param {boolean} is */
export function show(element, is) {
  attr(element, 'hidden', !is);
}

/**
 * Keeps the children of `parent` in step with a list: an item whose key stays keeps its node, with focus, selection and scroll.
 * Returns the function that takes the next list.
 * @template T
 * @param {Element} parent
 * @param {(item: T) => string} key
 * @param {(item: T) => {node: Element, set: (item: T) => void}} make called once for each key; `set` follows at once
 * @returns {(items: T[]) => void}
 */
export function each(parent, key, make) {
  /** @type {Map<string, {node: Element, set: (item: T) => void}>} */
  let rows = new Map();
  return (items) => {
    const next = new Map();
    for (const item of items) {
      const of = key(item);
      if (next.has(of)) continue;
      const row = rows.get(of) ?? make(item);
      row.set(item);
      next.set(of, row);
    }
    for (const [of, row] of rows) if (!next.has(of)) row.node.remove();
    let at = parent.firstElementChild;
    for (const row of next.values()) {
      if (at !== null && row.node === at) at = at.nextElementSibling;
      else parent.insertBefore(row.node, at);
    }
    rows = next;
  };
}

/** Replaces all children. @param {Element} parent @param {...Child} children */
export function swap(parent, ...children) {
  parent.replaceChildren(
    ...children.filter((child) => child !== false && child !== null && child !== undefined).map(/** @returns {any} */ (child) => child),
  );
}

/** Whether keys are text there. @param {EventTarget | null} target */
export function isTyping(target) {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable ||
      (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) &&
        !['checkbox', 'radio', 'button'].includes(/** @type {HTMLInputElement} */ (target).type)))
  );
}
