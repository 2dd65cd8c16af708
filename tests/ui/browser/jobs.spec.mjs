// What is done to one job, and to many: each action, and what the API says of it then.
import { closed, dialog, expect, inDialog, open, test } from '../support.mjs';

const act = (page, name) => page.locator('main .head').getByRole('button', { name, exact: true });
const badge = (page) => page.locator('main .head .badge').first();

test('retry and redrive a dead job', async ({ page, server }) => {
  const id = await server.dead('mail', 'out of memory');
  await open(page, server, `#/jobs/${id}`);
  await expect(badge(page)).toHaveText('dead');
  await expect(page.locator('main')).toContainText('out of memory');
  await act(page, 'Retry').click();
  await expect(badge(page)).toHaveText('ready');
  expect(await server.job(id)).toMatchObject({ state: 'ready', attempt: 0 });
  await server.put('/v1/queues/mail', { dead_letter: 'letters' });
  const [job] = await server.reserve('mail');
  await server.post(`/v1/jobs/${id}/rollback`, { reservation: job.reservation, error: 'again', dead: true });
  await expect(page.locator('main .head a.name')).toHaveText('letters');
  await act(page, 'Redrive').click();
  await expect.poll(async () => (await server.job(id)).queue).toBe('mail');
  await expect(page.locator('main .head a.name')).toHaveText('mail');
});

test('replay: a copy, to which a link leads', async ({ page, server }) => {
  const id = await server.dead('mail', 'x', { a: 1 });
  await open(page, server, `#/jobs/${id}`);
  await act(page, 'Replay').click();
  const copy = page.locator('.notice a');
  await expect(copy).toBeVisible();
  const other = await copy.textContent();
  expect(await server.job(other)).toMatchObject({ state: 'ready', payload: { a: 1 }, replay_of: id });
  expect(await server.stateOf(id)).toBe('dead');
});

test('run a scheduled job now, edit its payload as it is written, set its priority', async ({ page, server }) => {
  const { id } = await server.push('mail', 1, { delay_ms: 3_600_000 });
  await open(page, server, `#/jobs/${id}`);
  await act(page, 'Edit …').click();
  await expect(inDialog(page, 'Save')).toBeDisabled();
  await dialog(page).getByLabel('Payload', { exact: false }).fill('{"z":1.10,"a":12345678901234567890}');
  await dialog(page).getByLabel('Attempts at most', { exact: false }).fill('3');
  await inDialog(page, 'Save').click();
  await closed(page);
  expect(await server.text('GET', `/v1/jobs/${id}/payload`)).toBe('{"z":1.10,"a":12345678901234567890}');
  expect(await server.job(id)).toMatchObject({ state: 'scheduled', max_attempts: 3 });
  await act(page, 'Priority …').click();
  await dialog(page).getByLabel('Priority').fill('-5');
  await inDialog(page, 'Set').click();
  await closed(page);
  await act(page, 'Run now').click();
  await expect(badge(page)).toHaveText('ready');
  expect(await server.job(id)).toMatchObject({ state: 'ready', priority: -5 });
});

test('release, cancel and cancel at once', async ({ page, server }) => {
  const { id } = await server.push('mail', 1);
  const [job] = await server.reserve('mail', { worker: 'one' });
  await open(page, server, `#/jobs/${id}`);
  await expect(badge(page)).toHaveText('reserved');
  await act(page, 'Release').click();
  await inDialog(page, 'Release').click();
  await expect(badge(page)).toHaveText('ready');
  expect(await server.job(id)).toMatchObject({ state: 'ready', attempt: 0 });
  expect(await server.status('POST', `/v1/jobs/${id}/commit`, { reservation: job.reservation })).toBe(409);
  await server.reserve('mail');
  await act(page, 'Cancel …').click();
  await inDialog(page, 'Cancel it').click();
  await closed(page);
  await expect.poll(async () => (await server.job(id)).cancel_requested).toBe(true);
  await expect(page.locator('main')).toContainText('is asked to stop');
  await act(page, 'Cancel …').click();
  await dialog(page).getByRole('checkbox').check();
  await inDialog(page, 'Cancel it').click();
  await expect(badge(page)).toHaveText('gone');
  expect(await server.stateOf(id)).toBe('gone');
});

test('move and delete', async ({ page, server }) => {
  const { id } = await server.push('mail', 1);
  await open(page, server, `#/jobs/${id}`);
  await act(page, 'Move …').click();
  await dialog(page).getByLabel('To the queue').fill('no spaces allowed');
  await inDialog(page, 'Move').click();
  await expect(dialog(page).getByRole('alert')).toContainText('queue');
  await dialog(page).getByLabel('To the queue').fill('elsewhere');
  await inDialog(page, 'Move').click();
  await closed(page);
  await expect(page.locator('main .head a.name')).toHaveText('elsewhere');
  expect((await server.job(id)).queue).toBe('elsewhere');
  await act(page, 'Delete …').click();
  await expect(inDialog(page, 'Delete')).toBeDisabled();
  await dialog(page).getByRole('textbox').fill('delete');
  await inDialog(page, 'Delete').click();
  await expect(page.locator('.notice')).toContainText('This job is gone');
  expect(await server.stateOf(id)).toBe('gone');
});

test('those that are selected are moved, the others stay', async ({ page, server }) => {
  for (let n = 0; n < 5; n += 1) await server.push('mail', n);
  await open(page, server, '#/jobs?queue=mail');
  const boxes = page.locator('table.jobs tbody input[type=checkbox]');
  await expect(boxes).toHaveCount(5);
  await boxes.nth(1).check();
  await boxes.nth(3).check({ force: true });
  const bar = page.locator('.bulk');
  await expect(bar).toContainText('2 selected');
  await bar.getByRole('button', { name: 'Move' }).click();
  await dialog(page).getByLabel('To the queue').fill('elsewhere');
  await inDialog(page, 'Move').click();
  await closed(page);
  expect((await server.get('/v1/queues/mail/jobs')).jobs.map(({ payload }) => payload).sort()).toEqual([0, 2, 4]);
  expect((await server.get('/v1/queues/elsewhere/jobs')).jobs.map(({ payload }) => payload).sort()).toEqual([1, 3]);
});

test('what is selected and has changed meanwhile is not deleted', async ({ page, server }) => {
  const [redriven, left] = [await server.dead('mail', 'x'), await server.dead('mail', 'x')];
  await open(page, server, '#/jobs?queue=mail&state=dead');
  await page.getByLabel('Select all jobs of this page').check();
  const bar = page.locator('.bulk');
  await expect(bar).toContainText('2 selected');
  await server.post(`/v1/jobs/${redriven}/redrive`);
  await expect(bar).toContainText('1 selected, 1 changed and left out');
  await bar.getByRole('button', { name: 'Delete' }).click();
  await expect(dialog(page)).toContainText('1 of those selected has changed since, and is left out.');
  await dialog(page).getByRole('textbox').fill('mail');
  await inDialog(page, 'Delete').click();
  await closed(page);
  expect([await server.stateOf(redriven), await server.stateOf(left)]).toEqual(['ready', 'gone']);
});

test('an operation over all that match: a dry run, a typed name, how far it is', async ({ page, server }) => {
  const jobs = Array.from({ length: 3000 }, (_, n) => ({ queue: 'mail', payload: { kind: n % 3 === 0 ? 'bulk' : 'single', n } }));
  await server.pushAll(jobs);
  await open(page, server, '#/jobs?queue=mail&payload.kind=%22bulk%22');
  const bar = page.locator('.bulk');
  await bar.getByRole('button', { name: /^Select all/ }).click();
  await bar.getByRole('button', { name: 'Delete' }).click();
  // A dry run ends after a second: on a busy machine it has not looked at all of them by then, and says so.
  await expect(dialog(page)).toContainText(/1,000 jobs would be deleted|looked at (so far )?match/);
  await expect(inDialog(page, 'Delete')).toBeDisabled();
  await dialog(page).getByLabel('to confirm', { exact: false }).fill('mail');
  await inDialog(page, 'Delete').click();
  await closed(page);
  const operation = page.getByRole('article', { name: 'Operation' });
  await expect(operation).toContainText('1,000 deleted');
  await expect(operation.locator('.badge')).toHaveText('done');
  expect((await server.counts('mail')).ready).toBe(2000);
  // Its link leads to the same operation, in another browser as well.
  await page.reload();
  await expect(page.getByRole('article', { name: 'Operation' })).toContainText('1,000 deleted');
  await page.goto(`${server.url}/#/system`);
  await expect(page.getByRole('table', { name: 'Operations' })).toContainText('delete');
});

test('the dead of one error are retried, the others stay dead', async ({ page, server }) => {
  for (let n = 0; n < 3; n += 1) await server.dead('mail', `timeout after ${n} s`);
  const other = await server.dead('mail', 'out of memory');
  await open(page, server, '#/dead');
  const group = page.locator('table.dead > tbody > tr').filter({ hasText: 'timeout' });
  await expect(group.locator('.dead-count')).toHaveText('3');
  await group.getByRole('button', { name: 'Retry' }).click();
  await expect(dialog(page)).toContainText('3 jobs would be retried');
  await expect(dialog(page).getByLabel('to confirm', { exact: false })).toHaveCount(0);
  await inDialog(page, 'Retry').click();
  await closed(page);
  await expect(page.getByRole('article', { name: 'Operation' })).toContainText('3 retried');
  await expect(group).toContainText('none left');
  expect(await server.counts('mail')).toMatchObject({ ready: 3, dead: 1 });
  expect(await server.stateOf(other)).toBe('dead');
});

test('a group that a dead job holds goes on', async ({ page, server }) => {
  const first = await server.dead('orders', 'declined', 1, { group: 'customer' });
  await server.push('orders', 2, { group: 'customer' });
  await open(page, server, '#/groups');
  const held = page.getByRole('table', { name: 'Groups that a dead job holds' });
  await expect(held).toContainText('declined');
  expect(await server.reserve('orders')).toEqual([]);
  await held.getByRole('button', { name: 'redrive the first job of customer' }).click();
  await expect.poll(() => server.stateOf(first)).toBe('ready');
  await expect(page.locator('main')).toContainText('No group is held.');
  await server.work('orders');
  expect(await server.reserve('orders')).toHaveLength(1);
});
