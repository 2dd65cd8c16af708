// The login, where keys are required: the key becomes a session of the browser, and is kept nowhere.
import { answerOf, get, path, retryAfter } from '../api.js';
import { h, show, text } from '../dom.js';
import { message } from '../widgets.js';

/** What a refused login means, and what to do. @param {any} error */
function reason(error) {
  if (error.code === 'tls-required') {
    return (
      'A key may only be sent over an encrypted connection, or on the machine of the server itself. Open this page by https, or put a proxy ' +
      'that ends TLS in front of the server and name it in http.trusted_proxies. An SSH tunnel to the machine works as well.'
    );
  }
  if (error.code === 'too-many-attempts') return 'Too many logins from your address have failed.';
  if (error.status === 401) return 'This key is not valid here: it may have been mistyped, revoked or rotated, or it has expired.';
  return message(error);
}

/**
 * The form. `then` is called once the browser has a session.
 * @param {() => any} then @param {{lead: string}} options
 */
function form(then, { lead }) {
  const key = h('input', {
    type: 'password',
    name: 'key',
    autocomplete: 'current-password',
    required: true,
    autofocus: true,
    spellcheck: 'false',
    maxlength: '4096',
    'aria-describedby': 'login-problem',
  });
  const problem = h('p', { class: 'problem', role: 'alert', id: 'login-problem', hidden: true });
  const go = h('button', { type: 'submit', class: 'primary' }, 'Log in');
  let timer = 0;
  /** Counts down until the server takes another attempt. @param {number} until @param {string} what */
  const wait = (until, what) => {
    const left = Math.ceil((until - Date.now()) / 1000);
    go.disabled = left > 0;
    text(go, left > 0 ? `Try again in ${left} s` : 'Log in');
    text(problem, what);
    clearTimeout(timer);
    if (left > 0) timer = window.setTimeout(() => wait(until, what), 500);
  };
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    try {
      await answerOf('POST', path('session'), { body: { key: key.value.trim() }, changes: false });
      key.value = '';
      clearTimeout(timer);
      await then();
    } catch (/** @type {any} */ error) {
      show(problem, true);
      wait(error.code === 'too-many-attempts' ? Date.now() + (retryAfter(error) ?? 60_000) : 0, reason(error));
      key.select();
      key.focus();
    }
  };
  const shown = h(
    'button',
    {
      type: 'button',
      class: 'quiet',
      'aria-pressed': 'false',
      on: {
        click: () => {
          const is = key.type === 'password';
          key.type = is ? 'text' : 'password';
          text(shown, is ? 'Hide' : 'Show');
          shown.setAttribute('aria-pressed', String(is));
        },
      },
    },
    'Show',
  );
  // Password managers file a key under a name.
  const name = h('input', {
    type: 'text',
    name: 'username',
    autocomplete: 'username',
    value: 'tailback',
    hidden: true,
    tabindex: '-1',
    'aria-hidden': 'true',
  });
  return h(
    'form',
    { class: 'card', on: { submit } },
    name,
    h('h1', { id: 'login-title' }, 'Tailback'),
    h('p', { class: 'muted' }, lead),
    h(
      'div',
      { class: 'field' },
      h('label', { for: 'login-key' }, h('span', { class: 'strong' }, 'API key')),
      h('span', { class: 'joined' }, Object.assign(key, { id: 'login-key' }), shown),
    ),
    problem,
    go,
  );
}

/** The whole page, before anything else was shown. @param {() => void} then @returns {Element} */
export function login(then) {
  return h('main', { class: 'login' }, form(then, { lead: 'This server asks for a key. The link that you opened follows.' }));
}

/**
 * Asks again, over the page as it is, with all that was typed into it: the session has ended. Resolves once there is one, also one that was begun in
 * another tab.
 * @returns {Promise<any>} who one is now
 */
export function loginAgain() {
  return new Promise((resolve) => {
    const done = async () => {
      const next = await get(path('session'));
      ended.abort();
      dialog.close();
      dialog.remove();
      resolve(next);
    };
    const ended = new AbortController();
    const dialog = h(
      'dialog',
      { class: 'again login', 'aria-labelledby': 'login-title' },
      form(done, { lead: 'The session has ended. Log in, and the page goes on where it was.' }),
    );
    dialog.addEventListener('cancel', (/** @type {Event} */ event) => event.preventDefault());
    // A browser closes at the second Escape, whatever is said to the first.
    dialog.addEventListener('close', () => !ended.signal.aborted && dialog.showModal());
    const elsewhere = () => document.hidden || done().catch(() => {});
    document.addEventListener('visibilitychange', elsewhere, { signal: ended.signal });
    window.addEventListener('focus', elsewhere, { signal: ended.signal });
    document.body.append(dialog);
    dialog.showModal();
  });
}
