// The page goes on by itself: figures, two browsers, a server that goes and comes back, a hidden page, back and forward.
import { closed, dialog, expect, inDialog, open, settled, test, toasts, watch } from '../support.mjs';

const figures = (page) => page.getByRole('region', { name: 'Jobs by state' });

test('figures change without a reload; focus, selection and scroll stay', async ({ page, begin }) => {
  // However long this takes, no reason for attention comes above the list.
  const server = await begin({ TAILBACK_ATTENTION__IDLE_MS: '86400000' });
  for (let n = 0; n < 40; n += 1) await server.push('mail', { n });
  await page.setViewportSize({ width: 1280, height: 500 });
  await open(page, server, '#/queues/mail');
  await expect(figures(page)).toContainText('ready 40');
  const box = page.locator('table.jobs tbody input[type=checkbox]').nth(20);
  await box.check();
  await box.focus();
  // What is selected in it is text of the page.
  await page.evaluate(() => getSelection().selectAllChildren(document.querySelector('h1')));
  const before = await page.evaluate(() => scrollY);
  expect(before).toBeGreaterThan(100);
  const id = await box.getAttribute('aria-label');
  for (let n = 0; n < 5; n += 1) await server.push('mail', { more: n });
  await expect(figures(page)).toContainText('ready 45');
  await server.work('mail');
  await expect(figures(page)).toContainText('ready 44');
  await expect(page.getByRole('button', { name: /new: show/ })).toBeVisible();
  const after = await page.evaluate(() => ({
    focus: document.activeElement.getAttribute('aria-label'),
    selection: getSelection().toString(),
    scroll: scrollY,
    loads: performance.getEntriesByType('navigation').length,
  }));
  expect(after).toEqual({ focus: id, selection: 'mail', scroll: before, loads: 1 });
  await expect(page.getByLabel(id)).toBeChecked();
});

test('a field keeps what is typed in it while figures come', async ({ page, server }) => {
  await server.push('mail', 1);
  await open(page, server, '#/queues/mail');
  await page.getByRole('button', { name: 'Push a job' }).click();
  const payload = page.getByLabel('Payload', { exact: true });
  await payload.fill('{"half": ');
  for (let n = 0; n < 3; n += 1) await server.push('mail', n);
  await expect(figures(page)).toContainText('ready 4');
  await expect(payload).toHaveValue('{"half": ');
  await expect(payload).toBeFocused();
});

test('two browsers see what each other does', async ({ page, browser, server }) => {
  await server.push('mail', 1);
  const other = await browser.newPage();
  const wrong = watch(other);
  await open(page, server, '#/queues/mail');
  await open(other, server, '#/queues/mail');
  await page.locator('.acts').getByRole('button', { name: 'Pause', exact: true }).click();
  await expect(other.locator('.acts').getByRole('button', { name: 'Resume', exact: true })).toBeVisible();
  await other.locator('.acts').getByRole('button', { name: 'Push a job' }).click();
  await other.getByLabel('Payload', { exact: true }).fill('2');
  await inDialog(other, 'Push').click();
  await closed(other);
  await expect(figures(page)).toContainText('ready 2');
  await other.locator('.acts').getByRole('button', { name: 'Resume', exact: true }).click();
  await expect(page.locator('.acts').getByRole('button', { name: 'Pause', exact: true })).toBeVisible();
  expect(wrong).toEqual([]);
  await other.close();
});

test('a pause that another ends before the stream has shown it is not shown for good', async ({ page, server }) => {
  await server.push('mail', 1);
  const counts = { ready: 1, scheduled: 0, reserved: 0, blocked: 0, dead: 0, done: 0 };
  const picture = JSON.stringify({ at: new Date().toISOString(), part: 1, queues: [{ queue: 'mail', paused: false, counts }] });
  // Each of these streams ends at once, and the next one says the same. Each lets the settings be read anew, in place of a read that is under way: that
  // has a second.
  const body = `retry: 1000\nevent: snapshot\ndata: ${picture}\n\n`;
  await page.route('**/v1/events', (route) => route.fulfill({ contentType: 'text/event-stream', body }));
  await open(page, server, '#/queues/mail');
  const act = (/** @type {string} */ name) => page.locator('.acts').getByRole('button', { name, exact: true });
  await act('Pause').click();
  await expect(act('Resume')).toBeVisible();
  await server.post('/v1/queues/mail/resume');
  await expect(act('Pause')).toBeVisible();
});

test('a server that is gone: since when the figures are old; then the page goes on', async ({ page, begin }, info) => {
  const server = await begin({ TAILBACK_STORE: `sqlite:${info.outputPath('store.db')}` });
  await server.push('mail', 1);
  const said = await toasts(page);
  await open(page, server, '#/queues/mail');
  await expect(figures(page)).toContainText('ready 1');
  await page.evaluate(() => (window.isTheSamePage = true));
  await server.stop('SIGKILL');
  await expect(page.locator('div.lost')).toContainText(/cannot be reached since \d\d:\d\d:\d\d.*figures are as of \d\d:\d\d:\d\d/);
  await expect(page.locator('header .status')).toContainText('not connected');
  // What was shown stays, and an action says why it does nothing.
  await expect(figures(page)).toContainText('ready 1');
  await page.locator('.acts').getByRole('button', { name: 'Pause', exact: true }).click();
  await expect.poll(async () => (await said()).join()).toContain('The server cannot be reached. It may be done all the same');
  await server.run();
  await expect(page.locator('div.lost')).toBeHidden();
  await expect(page.locator('.status.live')).toBeVisible();
  await server.push('mail', 2);
  await expect(figures(page)).toContainText('ready 2');
  expect(await page.evaluate(() => window.isTheSamePage)).toBe(true);
});

test('a hidden page asks for nothing, and goes on when it is seen', async ({ page, server }) => {
  await server.push('mail', 1);
  await open(page, server, '#/');
  // A test's browser shows all of its pages: the page is told that it is hidden.
  const show = (hidden) =>
    page.evaluate((is) => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => is });
      document.dispatchEvent(new Event('visibilitychange'));
    }, hidden);
  await show(true);
  const asked = [];
  page.on('request', (request) => asked.push(request.url()));
  await server.push('mail', 2);
  // What was under way may still ask; after that nothing is asked for longer than all that a page repeats.
  await expect(async () => {
    asked.length = 0;
    await page.evaluate(() => new Promise((then) => setTimeout(then, 6000)));
    expect(asked.filter((url) => url.includes('/v1/') || url.includes('/stats'))).toEqual([]);
  }).toPass();
  await show(false);
  await expect(page.getByRole('region', { name: 'Jobs by state' })).toContainText('ready 2');
  expect(asked.length).toBeGreaterThan(0);
});

test('links: all that is shown is in them; back and forward', async ({ page, browser, server }) => {
  for (let n = 0; n < 3; n += 1) await server.push('mail', n);
  await server.dead('mail', 'x', 1, { priority: 9 });
  await server.push('other', 1);
  await open(page, server, '#/');
  await page.getByRole('link', { name: 'Queues', exact: true }).click();
  await page.getByLabel('Filter by name').fill('mai');
  await page.getByRole('table', { name: 'Queues' }).getByRole('link', { name: 'mail' }).click();
  await page.getByRole('button', { name: '1 h', exact: true }).click();
  const list = page.locator('.job-list');
  await list.getByRole('button', { name: /^dead/ }).click();
  await expect(list.locator('tbody tr')).toHaveCount(1);
  const url = page.url();
  expect(url).toContain('state=dead');
  // The same in another browser.
  const other = await browser.newPage();
  await other.goto(url);
  await settled(other);
  await expect(other.locator('.job-list tbody tr')).toHaveCount(1);
  await expect(other.getByRole('button', { name: '1 h', exact: true })).toHaveAttribute('aria-pressed', 'true');
  await other.close();
  await list.locator('tbody a.name').click();
  await expect(page.locator('main .badge').first()).toHaveText('dead');
  await page.goBack();
  await expect(list.locator('tbody tr')).toHaveCount(1);
  await page.goBack();
  await expect(list.locator('tbody tr')).toHaveCount(4);
  await page.goBack();
  await expect(page.getByRole('button', { name: '15 min', exact: true })).toHaveAttribute('aria-pressed', 'true');
  await page.goBack();
  await expect(page.getByLabel('Filter by name')).toHaveValue('mai');
  await expect(page.getByRole('table', { name: 'Queues' }).getByRole('link')).toHaveText(['mail']);
  await page.goForward();
  await expect(page.getByRole('heading', { level: 1, name: 'mail' })).toBeVisible();
});

test('by keyboard: search, sections, rows', async ({ page, server }) => {
  await server.push('mail.first', 1);
  await server.push('mail.second', 1);
  await open(page, server, '#/');
  // The letter must follow within a moment: for the page no time goes by between the keys, however busy the machine is.
  await page.evaluate(() => {
    const [goesOn, now] = [Date.now, Date.now()];
    Date.now = () => now;
    globalThis.letTimeGoOn = () => (Date.now = goesOn);
  });
  await page.keyboard.press('g');
  await page.keyboard.press('q');
  await expect(page).toHaveURL(/#\/queues$/);
  await page.evaluate(() => globalThis.letTimeGoOn());
  await expect(page.getByRole('table', { name: 'Queues' }).getByRole('link')).toHaveCount(2);
  await page.keyboard.press('/');
  await expect(dialog(page)).toBeVisible();
  await page.keyboard.type('second');
  await expect(dialog(page)).toContainText('mail.second');
  await page.keyboard.press('Enter');
  await expect(page).toHaveURL(/#\/queues\/mail\.second/);
  await closed(page);
  await page.keyboard.press('?');
  await expect(dialog(page)).toContainText('Keyboard');
  await page.keyboard.press('Escape');
  await closed(page);
});

test('by keyboard: the jobs of a list', async ({ page, server }) => {
  for (let n = 0; n < 3; n += 1) await server.push('mail', { n });
  await open(page, server, '#/jobs?queue=mail');
  const rows = page.locator('table.jobs tbody tr');
  await expect(rows).toHaveCount(3);
  await page.keyboard.press('j');
  await expect(rows.nth(0)).toBeFocused();
  await page.keyboard.press('ArrowDown');
  await expect(rows.nth(1)).toBeFocused();
  await page.keyboard.press('x');
  await expect(page.locator('.bulk')).toContainText('1 selected');
  await expect(rows.nth(1).getByRole('checkbox')).toBeChecked();
  await page.keyboard.press('k');
  await expect(rows.nth(0)).toBeFocused();
  const id = await rows.nth(0).locator('a.name').first().textContent();
  await page.keyboard.press('Enter');
  await expect(page).toHaveURL(new RegExp(`#/jobs/${id}$`));
});
