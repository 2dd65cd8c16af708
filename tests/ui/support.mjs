// Servers for the browser's tests, and pages that fail the test where something goes wrong in them.
import { test as base, expect } from '@playwright/test';
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import { readFileSync, mkdirSync } from 'node:fs';
import { isAbsolute, join } from 'node:path';

const root = process.env.TAILBACK_ROOT ?? join(import.meta.dirname, '../..');
const folder = process.env.CARGO_TARGET_DIR ?? 'target';
const target = isAbsolute(folder) ? folder : join(root, folder);
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** How long a condition may take on a slow machine, in milliseconds. */
const PATIENCE_MS = 60_000;

/**
 * Waits until `look` returns something; outside of a test, where `expect.poll` is not to be had.
 * @template T @param {() => Promise<T>} look @returns {Promise<T>}
 */
export async function until(look) {
  const began = Date.now();
  for (;;) {
    try {
      const found = await look();
      if (found) return found;
    } catch (error) {
      if (Date.now() - began > PATIENCE_MS) throw error;
    }
    if (Date.now() - began > PATIENCE_MS) throw new Error(`not within ${PATIENCE_MS} ms: ${look}`);
    await new Promise((then) => setTimeout(then, 50));
  }
}

/** A server in a process of its own, over SQLite: in memory, or in a file where a test restarts it. */
export class Server {
  /** @param {Record<string, string>} settings of its environment */
  static async start(settings = {}) {
    const server = new Server();
    server.settings = { TAILBACK_STORE: 'sqlite::memory:', TAILBACK_LISTEN: '127.0.0.1:0', ...settings };
    server.key = settings.TAILBACK_AUTH__ADMIN_KEY;
    await server.run();
    return server;
  }

  /** Starts it, at the address that it had before, if any. */
  async run() {
    const inherited = Object.entries(process.env).filter(([name]) => !name.startsWith('TAILBACK_'));
    const env = { ...Object.fromEntries(inherited), TAILBACK_LOG__FORMAT: 'json', ...this.settings };
    // The mark by which CI finds what is left behind is inherited with the rest.
    this.process = spawn(process.env.TAILBACK_BIN ?? join(target, 'debug/tailback'), ['serve'], {
      env,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let log = '';
    this.url = await new Promise((resolve, reject) => {
      const take = (chunk) => {
        log = `${log}${chunk}`.slice(-20_000);
        const found = /listening on (http:\/\/[0-9.]+:[0-9]+)/.exec(log);
        if (found) resolve(found[1]);
      };
      this.process.stdout.on('data', take);
      this.process.stderr.on('data', take);
      this.process.once('error', reject);
      this.process.once('exit', () => reject(new Error(`the server did not start: ${log}`)));
    });
    // Whoever restarts it finds it where it was.
    this.settings.TAILBACK_LISTEN = this.url.replace('http://', '');
    await until(async () => (await fetch(`${this.url}/readyz`)).ok);
  }

  async stop(signal = 'SIGTERM') {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const ended = new Promise((resolve) => this.process.once('exit', resolve));
    this.process.kill(signal);
    this.process.kill('SIGCONT'); // a test may have ended while it was stopped, and then no other signal ends it
    const late = setTimeout(() => this.process.kill('SIGKILL'), PATIENCE_MS);
    await ended;
    clearTimeout(late);
  }

  /** Makes a call, and returns the text of the response; a refusal is an error. */
  async text(method, path, body, key) {
    const headers = { ...(body === undefined ? {} : { 'content-type': 'application/json' }) };
    if (key ?? this.key) headers.authorization = `Bearer ${key ?? this.key}`;
    const raw = body === undefined || typeof body === 'string' ? body : JSON.stringify(body);
    const response = await fetch(this.url + path, { method, headers, body: raw });
    const text = await response.text();
    if (!response.ok) throw Object.assign(new Error(`${method} ${path}: ${response.status} ${text}`), { status: response.status });
    return text;
  }

  /** Makes a call; a body that is a text is sent as it is. */
  async call(method, path, body, key) {
    const text = await this.text(method, path, body, key);
    return text === '' ? {} : JSON.parse(text);
  }

  get(path) {
    return this.call('GET', path);
  }
  post(path, body = {}) {
    return this.call('POST', path, body);
  }
  put(path, body = {}) {
    return this.call('PUT', path, body);
  }

  /** How a call was refused; 0 if it was not. @returns {Promise<number>} */
  async status(method, path, body) {
    return this.call(method, path, body).then(
      () => 0,
      (error) => error.status,
    );
  }

  /** @returns {Promise<{id: string}>} */
  async push(queue, payload, more = {}) {
    return this.post(`/v1/queues/${queue}/jobs`, { payload, ...more });
  }

  /** Pushes many jobs, a thousand with a call. @param {any[]} jobs each with its queue */
  async pushAll(jobs) {
    for (let at = 0; at < jobs.length; at += 1000) await this.post('/v1/jobs', { jobs: jobs.slice(at, at + 1000) });
  }

  async reserve(queue, more = {}) {
    const { jobs } = await this.post(`/v1/queues/${queue}/reserve`, { lease_ms: 600_000, ...more });
    return jobs;
  }

  /** Reserves one job and commits it. @returns {Promise<string>} its id */
  async work(queue, more = {}) {
    const [job] = await this.reserve(queue);
    await this.post(`/v1/jobs/${job.id}/commit`, { reservation: job.reservation, ...more });
    return job.id;
  }

  /** A job that has died of this error. @returns {Promise<string>} its id */
  async dead(queue, error, payload = 1, more = {}) {
    const { id } = await this.push(queue, payload, more);
    const [job] = await this.reserve(queue);
    await this.post(`/v1/jobs/${job.id}/rollback`, { reservation: job.reservation, error, dead: true });
    return id;
  }

  job(id) {
    return this.get(`/v1/jobs/${id}`);
  }

  /** How many jobs of a queue are in each state, counted now: other figures may be of a moment ago. @returns {Promise<Record<string, number>>} */
  async counts(queue) {
    return (await this.get(`/v1/queues/${queue}/stats?exact=true`)).counts;
  }

  /** The state of a job; "gone" where there is none. @returns {Promise<string>} */
  async stateOf(id) {
    return this.job(id).then(
      ({ state }) => state,
      ({ status }) => (status === 404 ? 'gone' : String(status)),
    );
  }
}

/** Watches a page: whatever goes wrong in it is in the list that is returned. @param {import('@playwright/test').Page} page */
export function watch(page) {
  const wrong = [];
  page.on('pageerror', (error) => wrong.push(`error: ${error.stack ?? error.message}`));
  page.on('console', (message) => {
    // What the browser itself says of a response is judged by what the page makes of it.
    if (message.type() === 'error' && !/Failed to load resource|net::ERR_/.test(message.text())) wrong.push(message.text());
  });
  page.on('dialog', (dialog) => {
    wrong.push(`a dialog opened: ${dialog.message()}`);
    dialog.dismiss();
  });
  return wrong;
}

/**
 * Notes what the page says in passing, from its beginning: it is gone after some seconds, however late one looks. To be called before the page is
 * opened; the function that is returned has all that was said.
 * @param {import('@playwright/test').Page} page @returns {Promise<() => Promise<string[]>>}
 */
export async function toasts(page) {
  await page.addInitScript(() => {
    globalThis.toastsOfTest = [];
    new MutationObserver((changes) => {
      for (const node of changes.flatMap(({ addedNodes }) => [...addedNodes]))
        if (node instanceof Element && node.matches('.toast')) globalThis.toastsOfTest.push(node.textContent);
    }).observe(document, { childList: true, subtree: true });
  });
  return () => page.evaluate(() => globalThis.toastsOfTest);
}

/**
 * `page` fails the test where the console has an error, an error is thrown, or a dialog of the browser opens; `server` is one of the test's
 * own, empty; `begin` starts others, and all end with the test.
 */
export const test = base.extend({
  begin: async ({}, use) => {
    const servers = [];
    await use(async (settings) => {
      const server = await Server.start(settings);
      servers.push(server);
      return server;
    });
    for (const server of servers) await server.stop();
  },
  server: async ({ begin }, use) => use(await begin()),
  page: async ({ page }, use) => {
    const wrong = watch(page);
    await use(page);
    expect(wrong).toEqual([]);
  },
});

/** Goes to a link of the dashboard, and waits until its screen is there. @param {import('@playwright/test').Page} page */
export async function open(page, server, hash) {
  await page.goto(`${server.url}/${hash}`);
  await settled(page);
}

/** Waits until the screen is there, with what it has to read. */
export async function settled(page) {
  await expect(page.locator('main h1').first()).toBeVisible();
  await expect(page.locator('[aria-busy=true]')).toHaveCount(0);
  await expect(
    page
      .locator('main')
      .getByText(/^(Loading|Looking .*|Counting .*)$/)
      .filter({ visible: true }),
  ).toHaveCount(0);
}

/** The button of the dialog that is open. */
export function inDialog(page, name) {
  return page.locator('dialog[open]').getByRole('button', { name, exact: true });
}

/** The dialog that is open; after it is done, none is. */
export function dialog(page) {
  return page.locator('dialog[open]');
}

export async function closed(page) {
  await expect(page.locator('dialog[open]')).toHaveCount(0);
}

/** Serious findings of axe on what is shown. */
export async function findings(page) {
  // A bundle that is evaluated by the tool is not subject to the page's policy.
  await page.evaluate(axe);
  const result = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  return result.violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target.join(' ')}: ${node.failureSummary}`));
}

/** What is wider than the page. */
export async function overflow(page) {
  return page.evaluate(() => {
    const wide = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= wide) return [];
    // What scrolls by itself, or is cut off, makes nothing wider.
    const isCut = (node) => {
      for (let one = node.parentElement; one !== null && one !== document.body; one = one.parentElement)
        if (getComputedStyle(one).overflowX !== 'visible') return true;
      return false;
    };
    return [...document.body.querySelectorAll('*')]
      .filter((node) => node.getBoundingClientRect().right > wide + 1 && !isCut(node))
      .map((node) => `${node.parentElement.className} > ${node.outerHTML.slice(0, 80)} to ${node.getBoundingClientRect().right}`)
      .slice(0, 5)
      .concat('the page is wider than the window');
  });
}

/** The sections that the navigation cuts off. */
export async function cutOff(page) {
  return page.evaluate(() => {
    const nav = document.querySelector('header nav');
    // On a busy machine the clocks may seem to differ. What says so is not looked at: it is rare, and has no room of its own.
    const clock = document.querySelector('header a.badge.warn');
    const wasHidden = clock.hidden;
    clock.hidden = true;
    const [needs, has] = [nav.scrollWidth, nav.clientWidth];
    clock.hidden = wasHidden;
    return needs > has ? [`the navigation is cut off: ${needs} > ${has}`] : [];
  });
}

/** Takes a picture of the screen, for people to look at. */
export async function shoot(page, name) {
  const pictures = join(target, 'ui/shots');
  mkdirSync(pictures, { recursive: true });
  await page.screenshot({ path: join(pictures, `${name}.png`), fullPage: true });
}

export { expect };
