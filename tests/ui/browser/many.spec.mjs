// Ten thousand queues, and a server that only shows.
import { closed, cutOff, dialog, expect, inDialog, open, test } from '../support.mjs';

test('ten thousand queues: few rows, sorted and filtered as quickly as few', async ({ page, server }) => {
  const name = (n) => `queue.${String(n).padStart(5, '0')}`;
  await server.pushAll(Array.from({ length: 10_000 }, (_, n) => ({ queue: name(n), payload: n })));
  await server.pushAll(Array.from({ length: 3 }, () => ({ queue: name(7777), payload: 1 })));
  await open(page, server, '#/queues?sort=name');
  const table = page.getByRole('table', { name: 'Queues' });
  await expect(page.locator('main').getByText('10,000 queues')).toBeVisible();
  const rows = table.locator('tbody:not(.spacer) tr');
  await expect(table.getByRole('link').first()).toHaveText(name(0));
  expect(await rows.count()).toBeLessThan(200);
  // The page is as long as all of them once it knows them, and its end shows the last.
  await expect(table).toHaveAttribute('aria-rowcount', '10001');
  await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
  await expect(table.getByRole('link', { name: name(9999) })).toBeVisible();
  expect(await rows.count()).toBeLessThan(200);
  await page.evaluate(() => scrollTo(0, 0));
  await expect(table.getByRole('link', { name: name(0) })).toBeVisible();
  await table.getByRole('button', { name: 'Ready' }).click();
  await expect(table.getByRole('link').first()).toHaveText(name(7777));
  await expect(page).toHaveURL(/sort=-ready/);
  await page.getByLabel('Filter by name').fill('999');
  await expect(page.locator('main').getByText('19 of 10,000 queues')).toBeVisible();
  await expect(table.getByRole('link')).toHaveCount(19);
  // The figures still come.
  await page.getByLabel('Filter by name').fill('00042');
  await server.push(name(42), 1);
  await expect(rows.first()).toContainText('2');
  await open(page, server, '#/');
  await expect(page.getByRole('link', { name: 'All 10,000 queues' })).toBeVisible();
});

test('of a queue that the stream leaves out the page has the figures of the server', async ({ page, server }) => {
  await server.dead('left.out', 'x');
  await server.pushAll(Array.from({ length: 3 }, (_, payload) => ({ queue: 'left.out', payload })));
  const picture = JSON.stringify({ at: new Date().toISOString(), part: 1, left_out: 1, queues: [] });
  const body = `retry: 1000\nevent: snapshot\ndata: ${picture}\n\n`;
  await page.route('**/v1/events', (route) => route.fulfill({ contentType: 'text/event-stream', body }));
  await open(page, server, '#/');
  await expect(page.getByRole('region', { name: 'Jobs by state' })).toContainText('ready 3');
  await expect(page.locator('header .pill')).toHaveText('1');
  await open(page, server, '#/queues/left.out');
  const act = (/** @type {string} */ name) => page.locator('.acts').getByRole('button', { name, exact: true });
  await act('Purge…').click();
  await expect(dialog(page).getByLabel('Jobs that are')).toContainText('dead (1)');
  await inDialog(page, 'Cancel').click();
  await closed(page);
  await act('Delete…').click();
  await expect(dialog(page)).toContainText('its 4 jobs');
  await dialog(page).getByRole('textbox').fill('left.out');
  await inDialog(page, 'Delete').click();
  await closed(page);
  expect(await server.counts('left.out')).toMatchObject({ ready: 0, dead: 0 });
});

test('a server that only shows offers no actions', async ({ page, begin }, info) => {
  const store = `sqlite:${info.outputPath('store.db')}`;
  const server = await begin({ TAILBACK_STORE: store });
  const ready = await server.push('mail', 1);
  const dead = await server.dead('mail', 'x', 1, { priority: 9, group: 'a' });
  await server.put('/v1/schedules/nightly', { cron: '0 3 * * *', queue: 'mail', job: { payload: 1 } });
  await server.put('/v1/semaphores/database', { capacity: 1 });
  await server.post('/v1/workers/one/heartbeat', { timeout_ms: 86_400_000 });
  const batch = await server.post('/v1/batches', { jobs: [{ queue: 'mail', payload: 1 }], sealed: false });
  await server.stop();
  const shows = await begin({ TAILBACK_STORE: store, TAILBACK_HTTP__READ_ONLY: 'true' });
  const change =
    /^(Push|Pause|Resume|Redrive|Replay|Purge|Delete|New|Edit|Remove|Retry|Move|Run|Cancel|Seal|Capacity|Release|Rotate|Revoke)\b/;
  const screens = ['', 'queues/mail', 'jobs', `jobs/${ready.id}`, `jobs/${dead}`, 'dead', 'schedules', 'schedules/nightly', 'limits'];
  for (const link of [...screens, 'limits/database', 'groups', 'batches', `batches/${batch.id}`, 'workers/one', 'system', 'keys']) {
    await open(page, shows, `#/${link}`);
    await expect(page.locator('header').getByText('read-only')).toBeVisible();
    await expect(page.locator('.status.live')).toBeVisible();
    const offered = await page.locator('main').getByRole('button', { name: change }).allTextContents();
    expect(`${link}: ${offered}`).toBe(`${link}: `);
    await expect(page.locator('main input[type=checkbox]')).toHaveCount(0);
    await expect.poll(() => cutOff(page)).toEqual([]);
  }
  expect((await shows.job(ready.id)).state).toBe('ready');
});
