// What is there is found and said as it is: by whom one is, wherever it lies, however busy the rest.
import { expect, inDialog, dialog, closed, open, settled, test, toasts } from '../support.mjs';

const ADMIN = 'an-admin-key-of-the-browser-tests-0123456789';
const auth = { TAILBACK_AUTH__ADMIN_KEY: ADMIN };
const main = (page) => page.locator('main');
const acts = (page) => page.locator('main .head').first().getByRole('button').filter({ visible: true });

/** @param {import('@playwright/test').Page} page */
async function login(page, server, key, hash) {
  await page.goto(`${server.url}/${hash}`);
  await page.getByLabel('API key').fill(key);
  await page.getByRole('button', { name: 'Log in' }).click();
  await expect(page.locator('.status.live')).toBeVisible();
  await settled(page);
}

test('a pipeline is found beside a queue with thousands of newer jobs', async ({ page, server }) => {
  await server.push('first', 1, { then: [{ queue: 'second' }] });
  await server.work('first');
  await server.pushAll(Array.from({ length: 1500 }, (_, payload) => ({ queue: 'busy', payload })));
  await open(page, server, '#/pipelines');
  const graph = page.locator('svg.graph');
  await expect(graph).toContainText('first');
  await expect(graph).toContainText('second');
  // How many were seen stands on the line.
  await expect(graph.locator('.g-route .g-figure')).toHaveText('1');
  await page.getByRole('button', { name: 'List' }).click();
  await expect(page.getByRole('table', { name: 'Ways between queues' })).toContainText('goes on by its route');
});

test('a worker without heartbeats is listed, shown and removed', async ({ page, server }) => {
  const { id } = await server.push('video', 1);
  await server.push('video', 2);
  await server.reserve('video', { worker: 'silent-one', count: 2 });
  expect(await server.status('GET', '/v1/workers/silent-one')).toBe(404);
  await open(page, server, '#/workers');
  await page.getByRole('link', { name: 'silent-one' }).click();
  await settled(page);
  await expect(main(page)).toContainText('2 jobs');
  await expect(page.getByRole('table', { name: 'Jobs that silent-one holds' })).toContainText(id);
  await page.getByRole('button', { name: 'Remove…' }).click();
  await dialog(page).getByRole('textbox').fill('silent-one');
  await inDialog(page, 'Remove the worker').click();
  await closed(page);
  expect(['ready', 'scheduled']).toContain(await server.stateOf(id));
});

test('a dead letter says where it died and of what, and the header counts it', async ({ page, server }) => {
  await server.put('/v1/queues/mail.send', { dead_letter: 'mail.dead' });
  const id = await server.dead('mail.send', 'no such mailbox');
  await open(page, server, `#/jobs/${id}`);
  const why = page.getByRole('region', { name: 'Why it is where it is' });
  await expect(why.getByRole('heading')).toHaveText('It died in mail.send: it waits here for somebody');
  await expect(why).toContainText('no such mailbox');
  await expect(why).toContainText('Redrive returns it to mail.send');
  await expect(page.locator('header .pill')).toHaveText('1');
});

test('times within a reason are times as people read them', async ({ page, server }) => {
  const { id } = await server.push('mail', 1, { delay_ms: 3_600_000 });
  await open(page, server, `#/jobs/${id}`);
  const why = page.getByRole('region', { name: 'Why it is where it is' });
  await expect(why.locator('li').first().locator('time')).toHaveAttribute('title', /\d{4}/);
  await expect(why).toContainText('It is due in ');
  await expect(why).not.toContainText(/\d{4}-\d\d-\d\dT/);
});

test('a queue of which nothing is known says so; one with settings does not', async ({ page, server }) => {
  await server.put('/v1/queues/known', { max_attempts: 3 });
  await open(page, server, '#/queues/knwon');
  await expect(main(page)).toContainText('Nothing is known of this queue: no jobs, no settings.');
  await open(page, server, '#/queues/known');
  await expect(main(page).getByText('There are no jobs here.')).toBeVisible();
  await expect(main(page).getByText('Nothing is known of this queue')).toBeHidden();
});

test('what is missing offers no actions', async ({ page, server }) => {
  for (const hash of ['#/schedules/none', '#/limits/none', '#/workers/none', '#/batches/01a2b3c4d5e6f708192a3b4c5d']) {
    await open(page, server, hash);
    await expect(main(page)).toContainText('There is nothing here.');
    await expect(acts(page)).toHaveCount(0);
    await page.keyboard.press('/');
    await expect(dialog(page).getByRole('combobox')).toBeVisible();
    await expect(dialog(page).getByRole('option', { name: /Remove…|Delete…|Run now|Capacity|Cancel/ })).toHaveCount(0);
    await page.keyboard.press('Escape');
    await closed(page);
  }
  // It is there as soon as it is made.
  await server.put('/v1/semaphores/none', { capacity: 1 });
  await open(page, server, '#/limits/none');
  await expect(acts(page)).toHaveText(['Capacity', 'Delete…']);
});

test('a finished batch says what became of its jobs, and shows the results first', async ({ page, server }) => {
  const { id } = await server.post('/v1/batches', { jobs: [{ queue: 'exports', payload: 1 }], sealed: true });
  await server.work('exports', { result: { rows: 3 } });
  await open(page, server, `#/batches/${id}`);
  await expect(main(page)).toContainText('None of its jobs is kept.');
  const regions = await main(page)
    .locator('section.card')
    .evaluateAll((all) => all.map((one) => one.getAttribute('aria-label')));
  expect(regions.indexOf('Results')).toBeLessThan(regions.indexOf('Jobs'));
});

test('a key of some queues: which these are, and nothing said of the others', async ({ page, begin }) => {
  const server = await begin(auth);
  await server.push('mail.a', 1);
  await server.push('secret', 1);
  await server.put('/v1/schedules/nightly', { cron: '0 3 * * *', queue: 'secret', job: { payload: 1 } });
  const { key } = await server.post('/v1/keys', { name: 'readmail', scopes: ['read'], queues: ['mail.*'] });
  await page.setViewportSize({ width: 1600, height: 900 });
  await login(page, server, key, '#/schedules');
  await expect(page.locator('header .scope')).toHaveText('readmail: mail.*');
  await expect(main(page)).toContainText('There are no schedules that this key may see (mail.*).');
  await expect(main(page)).not.toContainText('New schedule');
  await open(page, server, '#/workers');
  await expect(main(page)).toContainText('that this key may see (mail.*)');
  // A call to copy has a place for the key, since it is refused without one.
  await open(page, server, '#/jobs?queue=mail.a');
  await page.locator('table.jobs a.name').first().click();
  await page.getByText('The same as curl').click();
  await expect(page.locator('code.curl').first()).toContainText('-H "authorization: Bearer $TAILBACK_KEY"');
});

test('a key that may not read is told so on a page of the dashboard', async ({ page, begin }) => {
  const server = await begin(auth);
  const { key } = await server.post('/v1/keys', { name: 'pusher', scopes: ['push'] });
  await page.goto(`${server.url}/`);
  await page.getByLabel('API key').fill(key);
  await page.getByRole('button', { name: 'Log in' }).click();
  await expect(main(page)).toContainText('the key “pusher” has push');
  await expect(page.locator('header .brand')).toBeVisible();
  await page.getByRole('button', { name: 'Log out' }).click();
  await expect(page.getByLabel('API key')).toBeVisible();
});

test('the palette has what a list of jobs offers; an operation leads to where it is shown', async ({ page, server }) => {
  for (let n = 0; n < 3; n += 1) await server.push('mail', n, { delay_ms: 3_600_000 });
  await open(page, server, '#/jobs');
  await page.keyboard.press('/');
  await dialog(page).getByRole('combobox').fill('select all');
  await expect(dialog(page).getByRole('option', { selected: true })).toContainText('Select all 3 matching');
  await page.keyboard.press('Enter');
  await expect(page.locator('.bulk')).toContainText('All 3 matching');
  const { id } = await server.post('/v1/operations', { filter: { queue: 'mail' }, action: 'set_priority', priority: 5 });
  await open(page, server, '#/system');
  await page.getByRole('table', { name: 'Operations' }).getByRole('link', { name: 'set priority' }).click();
  await expect(page).toHaveURL(new RegExp(`operation=${id}`));
  await expect(page.getByRole('article', { name: 'Operation' })).toBeVisible();
});

test('a payload with many parts is folded at first', async ({ page, server }) => {
  const { id } = await server.push('mail', { few: [1, 2, 3], many: Array.from({ length: 900 }, (_, n) => ({ n, text: 'x'.repeat(60) })) });
  await open(page, server, `#/jobs/${id}`);
  const payload = page.getByRole('region', { name: 'Payload' });
  await expect(payload).toContainText('900 elements');
  await expect(payload.locator('.j-line').filter({ visible: true })).toHaveCount(6);
  await payload.getByRole('button', { name: /900 elements/ }).click();
  await expect(payload.locator('.j-line').filter({ visible: true })).not.toHaveCount(6);
});

test('copying works without a secure context', async ({ page, server, context }) => {
  await context.grantPermissions(['clipboard-read']);
  await page.addInitScript(() => Object.defineProperty(navigator, 'clipboard', { configurable: true, value: undefined }));
  await server.put('/v1/semaphores/database', { capacity: 1 });
  await server.push('imports', 1, { semaphores: ['database'] });
  await server.reserve('imports', { worker: 'importer' });
  await server.post('/v1/workers/importer/heartbeat', { timeout_ms: 86_400_000 });
  const said = await toasts(page);
  await open(page, server, '#/workers/importer');
  await page.evaluate(() => document.addEventListener('copy', () => (window.copied = document.activeElement.value)));
  await page.getByRole('button', { name: 'Copy as curl' }).click();
  await expect.poll(said).toEqual(['Copied']);
  expect(await page.evaluate(() => window.copied)).toContain('/v1/workers/importer');
  // The share that is left of the lease, which began with the delivery.
  await open(page, server, '#/limits/database');
  const holders = page.getByRole('table', { name: 'Jobs that hold database' });
  await expect(holders.locator('.leased .left')).toContainText(/\d/);
  await expect(holders.getByRole('meter').filter({ visible: true })).toHaveCount(1);
});
