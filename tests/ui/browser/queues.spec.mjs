// What is done to a queue: each action, and what the API says of it then.
import { closed, dialog, expect, inDialog, open, test } from '../support.mjs';

const queue = (server, name) => server.get(`/v1/queues/${name}`);
const act = (page, name) => page.locator('.acts').getByRole('button', { name, exact: true });

test('a payload arrives byte for byte', async ({ page, server }) => {
  await open(page, server, '#/queues/mail');
  await act(page, 'Push a job').click();
  const payload = '{"z":1.10,"b":12345678901234567890,"a":[1e3]}';
  await page.getByLabel('Payload', { exact: true }).fill(payload);
  await dialog(page).getByLabel('Priority').fill('7');
  await dialog(page).getByText('Headers, attempts').click();
  await dialog(page).getByLabel('Headers', { exact: false }).last().fill('{"n": 1.50}');
  await inDialog(page, 'Push').click();
  await closed(page);
  const { jobs } = await server.get('/v1/queues/mail/jobs');
  expect(jobs).toHaveLength(1);
  expect(jobs[0]).toMatchObject({ state: 'ready', priority: 7 });
  expect(await server.text('GET', `/v1/jobs/${jobs[0].id}/payload`)).toBe(payload);
  expect(await server.text('GET', `/v1/jobs/${jobs[0].id}`)).toContain('{"n":1.50}');
  // It is shown without a reload, as it was written.
  await page.getByRole('link', { name: jobs[0].id }).first().click();
  await expect(page.locator('main')).toContainText('12345678901234567890');
  await expect(page.locator('main')).toContainText('1.10');
});

test('a payload that is no JSON is refused where it is typed', async ({ page, server }) => {
  await open(page, server, '#/queues/mail');
  await act(page, 'Push a job').click();
  await page.getByLabel('Payload', { exact: true }).fill('{"a": 1,}');
  await inDialog(page, 'Push').click();
  await expect(dialog(page).getByRole('alert')).toContainText('The payload is no JSON');
  await page.getByLabel('Payload', { exact: true }).fill('1');
  await dialog(page).getByLabel('Deliver in').fill('1h 30m');
  await inDialog(page, 'Push').click();
  await closed(page);
  const [job] = (await server.get('/v1/queues/mail/jobs')).jobs;
  expect(job.state).toBe('scheduled');
  expect(Date.parse(job.run_at) - Date.parse(job.created_at)).toBe(5_400_000);
});

test('settings: only what was changed is sent', async ({ page, server }) => {
  await server.put('/v1/queues/mail', { max_attempts: 9, max_jobs: 500 });
  await open(page, server, '#/queues/mail');
  await page.getByRole('button', { name: 'Edit the settings' }).click();
  await dialog(page).getByLabel('Lease', { exact: false }).first().fill('90s');
  await dialog(page).getByLabel('Most jobs', { exact: false }).fill('');
  // Somebody else changes another one meanwhile.
  await server.call('PATCH', '/v1/queues/mail', { max_reserved: 4 });
  await inDialog(page, 'Save').click();
  await expect(dialog(page).getByRole('alert')).toContainText('max_reserved');
  await inDialog(page, 'Save').click();
  await closed(page);
  const kept = await queue(server, 'mail');
  expect(kept).toMatchObject({ lease_ms: 90_000, max_attempts: 9, max_reserved: 4 });
  expect(kept).not.toHaveProperty('max_jobs');
  await expect(page.getByRole('region', { name: 'Settings' })).toContainText('1 m 30 s');
  // A value that the server refuses is said at its field.
  await page.getByRole('button', { name: 'Edit the settings' }).click();
  await dialog(page).getByLabel('Jitter', { exact: false }).fill('7');
  await inDialog(page, 'Save').click();
  await expect(dialog(page).getByRole('alert')).toContainText('jitter');
  await expect(dialog(page).getByLabel('Jitter', { exact: false })).toHaveAttribute('aria-invalid', 'true');
});

test('pause and resume', async ({ page, server }) => {
  await server.push('mail', 1);
  await open(page, server, '#/queues/mail');
  await act(page, 'Pause').click();
  await expect(act(page, 'Resume')).toBeVisible();
  expect((await queue(server, 'mail')).effective.paused).toBe(true);
  expect(await server.reserve('mail')).toEqual([]);
  await act(page, 'Resume').click();
  await expect(act(page, 'Pause')).toBeVisible();
  expect((await queue(server, 'mail')).effective.paused).toBe(false);
  expect(await server.reserve('mail')).toHaveLength(1);
});

test('redrive and replay: a dry run says how many, the operation does it', async ({ page, server }) => {
  await server.put('/v1/queues/mail', { retain_done_ms: 86_400_000 });
  for (let n = 0; n < 3; n += 1) await server.dead('mail', 'out of memory', n);
  for (let n = 0; n < 2; n += 1) await server.push('mail', n);
  for (let n = 0; n < 2; n += 1) await server.work('mail');
  await open(page, server, '#/queues/mail');
  await act(page, 'Redrive…').click();
  await expect(dialog(page)).toContainText('3 jobs would be redriven');
  expect(await server.counts('mail')).toMatchObject({ dead: 3, ready: 0 });
  await inDialog(page, 'Redrive').click();
  await closed(page);
  await expect(page.getByRole('article', { name: 'Operation' })).toContainText('3 redriven');
  expect(await server.counts('mail')).toMatchObject({ dead: 0, ready: 3 });
  await act(page, 'Replay…').click();
  await expect(dialog(page)).toContainText('2 jobs would be replayed');
  await dialog(page).getByLabel('At most', { exact: false }).fill('1');
  await inDialog(page, 'Replay').click();
  await closed(page);
  await expect.poll(() => server.counts('mail')).toMatchObject({ done: 2, ready: 4 });
});

test('purge: only with the name of the queue', async ({ page, server }) => {
  for (let n = 0; n < 4; n += 1) await server.push('mail', n);
  await server.dead('mail.other', 'x');
  await server.dead('mail', 'x', 1, { priority: 5 });
  await open(page, server, '#/queues/mail');
  await act(page, 'Purge…').click();
  await dialog(page).getByLabel('Jobs that are').selectOption('ready');
  await expect(dialog(page)).toContainText('4 jobs would be deleted');
  await expect(inDialog(page, 'Delete')).toBeDisabled();
  await dialog(page).getByLabel('to confirm', { exact: false }).fill('mail.');
  await expect(inDialog(page, 'Delete')).toBeDisabled();
  await dialog(page).getByLabel('to confirm', { exact: false }).fill('mail');
  await inDialog(page, 'Delete').click();
  await closed(page);
  await expect.poll(() => server.counts('mail')).toMatchObject({ ready: 0, dead: 1 });
  expect(await server.counts('mail.other')).toMatchObject({ dead: 1 });
});

test('delete a queue, with all that is in it', async ({ page, server }) => {
  await server.put('/v1/queues/mail', { max_attempts: 9 });
  await server.push('mail', 1);
  await server.push('other', 1);
  await open(page, server, '#/queues/mail');
  await expect(page.getByRole('region', { name: 'Jobs by state' })).toContainText('ready 1');
  await act(page, 'Delete…').click();
  await expect(dialog(page)).toContainText('its 1 job');
  await dialog(page).getByRole('textbox').fill('mail');
  await inDialog(page, 'Delete').click();
  await closed(page);
  await page.mouse.move(0, 0); // rows stay while one is pointed at
  await expect(page).toHaveURL(/#\/queues$/);
  await expect(page.getByRole('link', { name: 'other' })).toBeVisible();
  await expect(page.getByRole('link', { name: 'mail', exact: true })).toHaveCount(0);
  expect((await server.get('/v1/queues')).queues.map(({ queue }) => queue)).toEqual(['other']);
});
