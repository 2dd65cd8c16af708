// Schedules, semaphores, batches and workers: each action, and what the API says then.
import { closed, dialog, expect, inDialog, open, test } from '../support.mjs';

const button = (page, name) => page.locator('main').getByRole('button', { name, exact: true }).first();

test('a schedule: made, edited, run, paused, resumed, deleted', async ({ page, server }) => {
  await open(page, server, '#/schedules');
  await button(page, 'New schedule').click();
  await dialog(page).getByLabel('Name').fill('nightly');
  await dialog(page).getByLabel('Cron rule').fill('0 25 * * *');
  await dialog(page).getByLabel('Time zone').fill('Europe/Berlin');
  await dialog(page).getByLabel('Queue', { exact: true }).fill('reports');
  await dialog(page).getByLabel('Payload').fill('{"n":1.10}');
  await inDialog(page, 'Save').click();
  await expect(dialog(page).getByRole('alert')).toContainText('cron');
  await dialog(page).getByLabel('Cron rule').fill('0 3 * * *');
  await inDialog(page, 'Save').click();
  await closed(page);
  await expect(page).toHaveURL(/#\/schedules\/nightly$/);
  const rule = () => server.get('/v1/schedules/nightly');
  expect(await rule()).toMatchObject({ cron: '0 3 * * *', time_zone: 'Europe/Berlin', queue: 'reports', paused: false });
  expect(await server.text('GET', '/v1/schedules/nightly')).toContain('{"n":1.10}');

  await button(page, 'Edit').click();
  await dialog(page).getByLabel('Cron rule').fill('30 4 * * *');
  await inDialog(page, 'Save').click();
  await closed(page);
  await expect(page.locator('main')).toContainText('30 4 * * *');
  expect(await server.text('GET', '/v1/schedules/nightly')).toContain('{"n":1.10}');

  await button(page, 'Run now').click();
  await expect.poll(async () => (await server.get('/v1/queues/reports/jobs')).jobs.length).toBe(1);
  const [job] = (await server.get('/v1/queues/reports/jobs')).jobs;
  await expect(page.getByRole('link', { name: job.id })).toBeVisible();

  await button(page, 'Pause').click();
  await expect(button(page, 'Resume')).toBeVisible();
  expect(await rule()).toMatchObject({ paused: true, cron: '30 4 * * *' });
  await button(page, 'Resume').click();
  await expect(button(page, 'Pause')).toBeVisible();
  expect(await rule()).toMatchObject({ paused: false });

  await button(page, 'Delete…').click();
  await dialog(page).getByRole('textbox').fill('nightly');
  await inDialog(page, 'Delete the schedule').click();
  await expect(page).toHaveURL(/#\/schedules$/);
  expect(await server.status('GET', '/v1/schedules/nightly')).toBe(404);
});

test('a new schedule does not replace another one', async ({ page, server }) => {
  await server.put('/v1/schedules/nightly', { cron: '0 3 * * *', queue: 'reports', job: { payload: 1 } });
  await open(page, server, '#/schedules');
  await button(page, 'New schedule').click();
  await dialog(page).getByLabel('Name').fill('nightly');
  await dialog(page).getByLabel('Queue', { exact: true }).fill('other');
  await inDialog(page, 'Save').click();
  await expect(dialog(page).getByRole('alert')).toContainText('already');
  expect((await server.get('/v1/schedules/nightly')).queue).toBe('reports');
});

test('a semaphore: made, edited, in use, deleted', async ({ page, server }) => {
  await open(page, server, '#/limits');
  await button(page, 'New semaphore').click();
  await dialog(page).getByLabel('Name').fill('database');
  await dialog(page).getByRole('spinbutton').fill('2');
  await inDialog(page, 'Save').click();
  await expect(page).toHaveURL(/#\/limits\/database$/);
  expect((await server.get('/v1/semaphores/database')).capacity).toBe(2);
  const { id } = await server.push('imports', 1, { semaphores: ['database'] });
  await server.reserve('imports');
  const holders = page.getByRole('table', { name: 'Jobs that hold database' });
  await expect(holders).toContainText(id);
  await expect(holders.getByRole('meter')).toBeVisible();
  await button(page, 'Capacity').click();
  await dialog(page).getByRole('spinbutton').fill('5');
  await inDialog(page, 'Save').click();
  await closed(page);
  await expect(page.locator('main')).toContainText('1 of 5 held');
  expect((await server.get('/v1/semaphores/database')).capacity).toBe(5);

  await button(page, 'Delete…').click();
  await dialog(page).getByRole('textbox').fill('database');
  await inDialog(page, 'Delete the semaphore').click();
  // A job needs it: 409, said where one is.
  await expect(dialog(page).getByRole('alert')).not.toBeEmpty();
  expect(await server.status('GET', '/v1/semaphores/database')).toBe(0);
  await server.call('DELETE', `/v1/jobs/${id}?force=true`);
  await inDialog(page, 'Delete the semaphore').click();
  await expect(page).toHaveURL(/#\/limits$/);
  expect(await server.status('GET', '/v1/semaphores/database')).toBe(404);
});

test('a batch: sealed, then cancelled', async ({ page, server }) => {
  const { id } = await server.post('/v1/batches', { jobs: [1, 2, 3].map((payload) => ({ queue: 'exports', payload })), sealed: false });
  await open(page, server, `#/batches/${id}`);
  await button(page, 'Seal').click();
  await inDialog(page, 'Seal it').click();
  await closed(page);
  await expect(button(page, 'Seal')).toHaveCount(0);
  expect((await server.get(`/v1/batches/${id}`)).sealed).toBe(true);
  await server.work('exports', { result: { rows: 1.5 } });
  await expect(page.getByRole('table', { name: 'Results' })).toContainText('{"rows":1.5}');
  await button(page, 'Cancel the batch…').click();
  await dialog(page).getByRole('textbox').fill(id.slice(-6));
  await inDialog(page, 'Cancel the batch').click();
  await closed(page);
  await expect(page.locator('main')).toContainText('finished');
  expect(await server.get(`/v1/batches/${id}`)).toMatchObject({ done: 1, cancelled: 2, pending: 0 });
});

test('a worker is removed, and its jobs are released', async ({ page, server }) => {
  const { id } = await server.push('video', 1);
  await server.post('/v1/workers/encoder/heartbeat', { slots: 4, version: '1.0', timeout_ms: 86_400_000 });
  await server.reserve('video', { worker: 'encoder' });
  await open(page, server, '#/workers');
  await page.getByRole('link', { name: 'encoder' }).click();
  await expect(page.getByRole('table', { name: 'Jobs that encoder holds' })).toContainText(id);
  await button(page, 'Remove…').click();
  await expect(dialog(page)).toContainText('1 job');
  await dialog(page).getByRole('textbox').fill('encoder');
  await inDialog(page, 'Remove the worker').click();
  await expect(page).toHaveURL(/#\/workers$/);
  expect(await server.status('GET', '/v1/workers/encoder')).toBe(404);
  expect(['ready', 'scheduled']).toContain(await server.stateOf(id));
});

test('a worker without heartbeats holds at least what was found, also where that is not found again', async ({ page, server }) => {
  await server.pushAll(Array.from({ length: 1001 }, (_, payload) => ({ queue: 'video', payload })));
  for (const count of [1000, 1]) await server.reserve('video', { worker: 'quiet', count });
  await open(page, server, '#/workers');
  const row = page.getByRole('row', { name: 'quiet' });
  await expect(row).toContainText('1,000 or more');
  await expect(page.locator('main')).toContainText('they hold at least 1,000 jobs.');
  let [isRefused, isNextRound] = [false, false];
  page.on('request', (request) => (isNextRound ||= isRefused && request.url().includes('/v1/workers?')));
  await page.route(/\/v1\/jobs\?state=reserved/, (route) => {
    isRefused = true;
    return route.fulfill({ status: 503, json: { code: 'overloaded', detail: 'busy' } });
  });
  await expect.poll(() => isNextRound).toBe(true); // before it begins another round it tells what it makes of the one before
  await expect(row).toContainText('1,000 or more');
  await expect(page.locator('main')).not.toContainText('Not read again');
});
