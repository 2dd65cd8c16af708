// What a screen costs where it is the first that is opened: the bytes of the page, its style and all modules until it is settled, as they are
// sent. When it is painted is printed, and not judged: no test needs a quick machine.
import { fill } from '../fill.mjs';
import { expect, Server, settled, test, watch } from '../support.mjs';

const ADMIN = 'an-admin-key-of-the-browser-tests-0123456789';
const MOST_BYTES = 60_000;

/** The kinds of screens by the module that makes them, with their links. @type {[string, (ids: Record<string, string>) => string][]} */
const SCREENS = [
  ['overview', () => '#/'],
  ['queues', () => '#/queues'],
  ['queue', () => '#/queues/mail.send'],
  ['queue', (ids) => `#/queues/mail.send?operation=${ids.operation}`],
  ['jobs', () => '#/jobs'],
  ['jobs', () => '#/jobs?queue=mail.send&state=ready,scheduled&payload.template=%22shipped%22'],
  ['job', (ids) => `#/jobs/${ids.moving}`],
  ['job', (ids) => `#/jobs/${ids.binary}`],
  ['dead', () => '#/dead'],
  ['schedules', () => '#/schedules'],
  ['schedules', () => '#/schedules/nightly'],
  ['limits', () => '#/limits'],
  ['limits', () => '#/limits/database'],
  ['groups', () => '#/groups'],
  ['batches', () => '#/batches'],
  ['batches', (ids) => `#/batches/${ids.batch}`],
  ['workers', () => '#/workers'],
  ['workers', () => '#/workers/encoder-1'],
  ['pipelines', () => '#/pipelines'],
  ['system', () => '#/system'],
  ['keys', () => '#/keys'],
];

/** Notes in the page when its heading and its first figures are there. */
function note() {
  const times = (globalThis.timesOfTest = {});
  const look = () => {
    const main = document.querySelector('main');
    const heading = main?.querySelector('h1');
    if (!main || !heading) return;
    times.heading ??= performance.now();
    const isWaiting = main.querySelector('[aria-busy=true]') !== null || /(Loading|Looking|Counting) ?…?$/m.test(main.innerText);
    if (!isWaiting && /\d/.test(main.innerText.replace(heading.innerText, ''))) times.figures ??= performance.now();
  };
  new MutationObserver(look).observe(document, { childList: true, subtree: true, characterData: true, attributes: true });
}

/** What was loaded of the dashboard, by its path; and when what was there. @param {import('@playwright/test').Page} page */
async function measure(page) {
  await page.waitForFunction(() => performance.getEntriesByName('first-contentful-paint').length > 0);
  return page.evaluate(() => {
    const entries = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
    const parts = entries
      .map(({ name, encodedBodySize, decodedBodySize }) => ({ path: new URL(name).pathname, encodedBodySize, decodedBodySize }))
      .filter(({ path }) => path === '/' || path.startsWith('/ui/'))
      // On a busy machine the clocks may seem to differ: what says so is loaded then only.
      .filter(({ path }) => !path.endsWith('/notices.js'));
    const painted = performance.getEntriesByName('first-contentful-paint')[0].startTime;
    return { parts: Object.fromEntries(parts.map((part) => [part.path, part])), painted, ...globalThis.timesOfTest };
  });
}

/** Opens a link as the first of a browser, and measures it. @returns {Promise<any>} with `wrong`: what went wrong in the page */
async function openFirst(browser, server, storageState, link) {
  const context = await browser.newContext({ storageState, viewport: { width: 1280, height: 900 } });
  await context.addInitScript(note);
  const page = await context.newPage();
  const wrong = watch(page);
  await page.goto(`${server.url}/${link}`);
  if (storageState === undefined) {
    await expect(page.getByLabel('API key')).toBeVisible();
    await page.waitForLoadState('networkidle'); // the screen of the link is loaded meanwhile
  } else {
    await expect(page.locator('.status.live')).toBeVisible();
    await settled(page);
  }
  const found = await measure(page);
  await context.close();
  const sizes = Object.values(found.parts).map(({ encodedBodySize }) => encodedBodySize);
  return { ...found, wrong, bytes: sizes.reduce((sum, size) => sum + size, 0) };
}

/** Logs in, and returns the session. */
async function logIn(browser, server) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(server.url);
  await page.getByLabel('API key').fill(ADMIN);
  await page.getByRole('button', { name: 'Log in' }).click();
  await expect(page.locator('.status.live')).toBeVisible();
  const state = await context.storageState();
  await context.close();
  return state;
}

test(`every screen loads at most ${MOST_BYTES} bytes where it is the first`, async ({ browser }) => {
  const server = await Server.start({ TAILBACK_AUTH__ADMIN_KEY: ADMIN });
  try {
    const ids = await fill(server);
    const session = await logIn(browser, server);
    const links = [['login', '#/', undefined], ...SCREENS.map(([name, link]) => [name, link(ids), session])];
    const ms = (time) => `${time === undefined ? '–' : Math.round(time)} ms`.padStart(9);
    console.log('  bytes  files    paint  heading  figures  screen');
    const wrong = [];
    for (const [name, link, state] of links) {
      const found = await openFirst(browser, server, state, link);
      const files = Object.keys(found.parts);
      const times = [found.painted, found.heading, found.figures].map(ms).join('');
      console.log(`${String(found.bytes).padStart(7)}${String(files.length).padStart(7)}${times}  ${link} ${name}`);
      wrong.push(...found.wrong);
      if (found.bytes > MOST_BYTES) wrong.push(`${link}: ${found.bytes} bytes`);
      // What is missing here, or is not compressed, is measured wrongly.
      const screen = name === 'login' ? '/screens/login.js' : `/screens/${name}.js`;
      for (const end of ['/app.css', '/main.js', screen]) {
        const part = Object.values(found.parts).find(({ path }) => path.endsWith(end));
        if (!(part?.encodedBodySize > 0 && part.encodedBodySize < part.decodedBodySize)) wrong.push(`${link}: ${end} is not measured`);
      }
      if (!(found.parts['/']?.encodedBodySize > 0)) wrong.push(`${link}: the page is not measured`);
    }
    expect(wrong).toEqual([]);
  } finally {
    await server.stop();
  }
});
