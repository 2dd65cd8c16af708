// What an operator meets in a day: dead letters, keys, questions before many jobs change, a server that goes and comes back.
import { closed, dialog, expect, inDialog, open, settled, test, until } from '../support.mjs';

const act = (page, name) => page.locator('.acts').getByRole('button', { name, exact: true });
const needs = (page) => page.getByRole('region', { name: 'Needs attention' });

/** Dead letters of `mail`, in `letters`. */
async function letters(server, count) {
  await server.put('/v1/queues/mail', { dead_letter: 'letters' });
  for (let n = 0; n < count; n += 1) await server.dead('mail', 'no such mailbox', n);
}

test('dead letters in their queue: found, explained and redriven', async ({ page, server }) => {
  await letters(server, 3);
  await open(page, server, '#/queues/letters');
  await expect(needs(page)).toContainText('3 jobs lie in this dead-letter queue');
  await needs(page).getByRole('button', { name: 'Redrive' }).click();
  await expect(dialog(page)).toContainText('3 jobs would be redriven');
  await inDialog(page, 'Cancel').click();
  await closed(page);
  await open(page, server, '#/dead');
  const card = page.getByRole('region', { name: 'In dead-letter queues' });
  await expect(card).toContainText('3 jobs that died elsewhere, in 1 queue.');
  await expect(card.getByRole('link', { name: 'letters', exact: true })).toBeVisible();
  await expect(card.getByRole('link', { name: 'mail', exact: true })).toBeVisible();
  await expect(card).toContainText('no such mailbox');
  await card.getByRole('button', { name: 'Redrive' }).click();
  await expect(dialog(page)).toContainText('3 jobs would be redriven');
  await inDialog(page, 'Redrive').click();
  await closed(page);
  await expect(page.getByRole('article', { name: 'Operation' })).toContainText('3 redriven');
  await expect(card).toBeHidden();
  expect((await server.counts('mail')).ready).toBe(3);
});

test('nobody takes dead letters: the overview does not ask for workers', async ({ page, begin }) => {
  const server = await begin({ TAILBACK_ATTENTION__IDLE_MS: '1000' });
  await letters(server, 2);
  const reasons = async () => (await server.get('/v1/queues/letters/stats')).attention.map(({ reason }) => reason);
  await until(async () => (await reasons()).includes('starved'));
  await open(page, server, '#/');
  await expect(needs(page)).toContainText('2 jobs lie in this dead-letter queue');
  await expect(needs(page)).not.toContainText('starved');
  await needs(page).getByRole('link', { name: 'See the errors: letters' }).click();
  await expect(page.getByRole('region', { name: 'In dead-letter queues' })).toContainText('no such mailbox');
});

test('by keyboard: rows of queues, dead letters and pipelines', async ({ page, server }) => {
  const name = (n) => `queue.${String(n).padStart(3, '0')}`;
  await server.pushAll(Array.from({ length: 120 }, (_, n) => ({ queue: name(n), payload: n })));
  await page.setViewportSize({ width: 1280, height: 500 });
  await open(page, server, '#/queues?sort=name');
  const rows = page.getByRole('table', { name: 'Queues' }).locator('tbody:not(.spacer) tr');
  await expect(rows.first()).toContainText(name(0));
  const focused = () => page.evaluate(() => document.activeElement.querySelector('a')?.textContent);
  // Beyond the rows that had elements at first, and back.
  for (let n = 0; n < 90; n += 1) await page.keyboard.press('j');
  expect(await focused()).toBe(name(89));
  for (let n = 0; n < 80; n += 1) await page.keyboard.press('k');
  expect(await focused()).toBe(name(9));
  await page.keyboard.press('Enter');
  await expect(page.getByRole('heading', { level: 1, name: name(9) })).toBeVisible();
  await expect(page).toHaveURL(/#\/queues\/queue\.009$/);
  await open(page, server, '#/');
  await expect(page.getByRole('heading', { level: 1, name: 'Overview' })).toBeAttached();
  await expect(rows).toHaveCount(15);
  await page.keyboard.press('j');
  await expect(page.getByRole('table', { name: 'Queues' }).locator('tbody tr:focus')).toHaveCount(1);
  await page.keyboard.press('Enter');
  await expect(page).toHaveURL(/#\/queues\/queue\./);

  await server.dead('mail', 'out of memory');
  await open(page, server, '#/dead');
  await expect(page.locator('table.dead')).toContainText(['out of memory']);
  await page.keyboard.press('j');
  await page.keyboard.press('Enter');
  await expect(page).toHaveURL(/#\/jobs\?.*error_group=out/);
  await server.put('/v1/queues/mail', { dead_letter: 'letters' });
  await open(page, server, '#/pipelines?view=list');
  await expect(page.getByRole('table', { name: 'Ways between queues' })).toContainText('letters');
  await page.keyboard.press('j');
  await page.keyboard.press('Enter');
  await expect(page).toHaveURL(/#\/queues\/mail$/);
});

test('by keyboard: rows that lead nowhere are passed', async ({ page, server }) => {
  await server.post('/v1/operations', { filter: { queue: 'mail' }, action: 'delete' });
  await open(page, server, '#/system');
  await expect(page.getByRole('table', { name: 'Operations' })).toContainText('delete');
  await page.keyboard.press('j');
  const leads = await page.evaluate(() => {
    const row = document.activeElement;
    return row.matches('tr[data-row]') ? Boolean(row.dataset.href ?? row.querySelector('a[href]')) : 'no row';
  });
  expect([true, 'no row']).toContain(leads);
});

test('what moves or deletes many asks for the name; what they are is in the question', async ({ page, server }) => {
  for (let n = 0; n < 3; n += 1) await server.push('mail', n);
  await open(page, server, '#/jobs?queue=mail');
  const bar = page.locator('.bulk');
  await bar.getByRole('button', { name: /^Select all/ }).click();
  await bar.getByRole('button', { name: 'Move' }).click();
  await expect(dialog(page)).toContainText('Say where they go, and they are counted.');
  await expect(dialog(page)).toContainText('Puts them into another queue, where their attempts start again.');
  await dialog(page).getByLabel('To the queue').fill('elsewhere');
  await expect(dialog(page)).toContainText('3 jobs would be moved.');
  await expect(inDialog(page, 'Move')).toBeDisabled();
  await dialog(page).getByLabel('to confirm', { exact: false }).fill('mail');
  await dialog(page).getByLabel('At most', { exact: false }).fill('2');
  await expect(dialog(page)).toContainText('2 of 3 jobs would be moved.');
  await inDialog(page, 'Move').click();
  await closed(page);
  await expect(page.getByRole('article', { name: 'Operation' })).toContainText('2 moved');
  // What one has changed oneself is no news.
  await expect(page.locator('table.jobs tbody tr')).toHaveCount(1);
  await expect(page.locator('table.jobs tr.gone')).toHaveCount(0);
  expect((await server.counts('elsewhere')).ready).toBe(2);
});

test('a move is counted for the queue that is typed, whatever the names of queues are', async ({ page, server }) => {
  for (const name of ['any', 'any', 'mail']) await server.push(name, 1);
  await open(page, server, '#/jobs');
  const bar = page.locator('.bulk');
  await bar.getByRole('button', { name: /^Select all/ }).click();
  await bar.getByRole('button', { name: 'Move' }).click();
  await dialog(page).getByLabel('To the queue').fill('elsewhere');
  await expect(dialog(page)).toContainText('3 jobs would be moved.');
  await dialog(page).getByLabel('To the queue').fill('mail');
  await expect(dialog(page)).toContainText('2 jobs would be moved.');
  await dialog(page).getByLabel('To the queue').fill('');
  await expect(dialog(page)).not.toContainText('would be moved');
  await expect(inDialog(page, 'Move')).toBeDisabled();
});

test('purge begins where there are jobs, and does nothing for nothing', async ({ page, server }) => {
  for (let n = 0; n < 4; n += 1) await server.push('mail', n);
  await open(page, server, '#/queues/mail');
  await expect(page.getByRole('region', { name: 'Jobs by state' })).toContainText('ready 4');
  await act(page, 'Purge…').click();
  await expect(dialog(page).getByLabel('Jobs that are')).toHaveValue('ready');
  await dialog(page).getByLabel('At most', { exact: false }).fill('3');
  await expect(dialog(page)).toContainText('3 of 4 jobs would be deleted.');
  await dialog(page).getByLabel('to confirm', { exact: false }).fill('mail');
  await expect(inDialog(page, 'Delete')).toBeEnabled();
  await dialog(page).getByLabel('Jobs that are').selectOption('dead');
  await expect(dialog(page)).toContainText('0 jobs would be deleted.');
  await expect(inDialog(page, 'Delete')).toBeDisabled();
});

test('a screen that was opened while the server was away is there once it is back', async ({ page, begin }, info) => {
  const server = await begin({ TAILBACK_STORE: `sqlite:${info.outputPath('store.db')}` });
  await server.push('mail', 1);
  await open(page, server, '#/jobs');
  await open(page, server, '#/schedules/none');
  await expect(page.locator('main')).toContainText('There is nothing here.');
  const section = (name) => page.getByRole('navigation').getByRole('link', { name, exact: true }).click();
  await section('Jobs');
  await expect(page.locator('table.jobs tbody tr')).toHaveCount(1);
  await section('Overview');
  await expect(page.getByRole('table', { name: 'Queues' })).toBeVisible();
  const away = page.locator('main').getByRole('alert').filter({ hasText: 'This cannot be shown.' });
  const [list, module] = ['Jobs', 'Groups'];
  for (const [name, there] of [
    [list, () => expect(page.locator('table.jobs tbody tr')).toHaveCount(1)],
    [module, () => expect(page.getByRole('heading', { level: 1, name: 'Groups' })).toBeVisible()],
  ]) {
    await server.stop('SIGKILL');
    await expect(page.locator('header .status')).toContainText('not connected');
    // The module of both screens of schedules is there: the screen itself says what it cannot read.
    await section('Schedules');
    await expect(page.getByRole('heading', { level: 1, name: 'Schedules' })).toBeVisible();
    await section(name);
    await expect(away).toBeVisible();
    await server.run();
    await expect(page.locator('.status.live')).toBeVisible();
    await there();
    await expect(away).toHaveCount(0);
  }
});

test('the palette has what a queue and a job offer, and the theme', async ({ page, server }) => {
  const command = async (typed, shown) => {
    await page.keyboard.press('/');
    await dialog(page).getByRole('combobox').fill(typed);
    await expect(dialog(page).getByRole('option', { selected: true })).toContainText(shown);
    await page.keyboard.press('Enter');
  };
  const id = await server.dead('mail', 'x');
  await open(page, server, '#/queues/mail');
  await command('pause', 'Pause');
  await expect(act(page, 'Resume')).toBeVisible();
  await expect(act(page, 'Resume')).toBeEnabled(); // the stream may show the pause before its call has ended, and the button waits for that
  await command('resume', 'Resume');
  await expect(act(page, 'Pause')).toBeVisible();
  await command('purge', 'Purge');
  await expect(dialog(page)).toContainText('Purge mail');
  await inDialog(page, 'Cancel').click();
  await closed(page);
  await command('theme: dark', 'Theme: dark');
  await expect(page.locator('html')).toHaveAttribute('data-theme', 'dark');
  await open(page, server, `#/jobs/${id}`);
  await expect(page.locator('main .head').getByRole('button', { name: 'Retry' })).toBeVisible();
  await command('retry', 'Retry');
  await expect.poll(() => server.stateOf(id)).toBe('ready');
});

test('a job that is gone is not asked why it does not run', async ({ page, server }) => {
  const { id } = await server.push('mail', 1);
  await open(page, server, `#/jobs/${id}`);
  const why = page.getByRole('region', { name: 'Why it is where it is' });
  await expect(why).toContainText('Why is it not running?');
  await server.call('DELETE', `/v1/jobs/${id}`);
  await expect(page.locator('.notice')).toContainText('This job is gone');
  await expect(why).toBeHidden();
});

test('the page gives no calls of the API as the next step, but a button', async ({ page, server }) => {
  await server.dead('mail', 'x');
  await server.post('/v1/queues/mail/pause');
  await open(page, server, '#/queues/mail');
  await expect(needs(page)).toContainText('Resume it when the reason is gone.');
  await expect(needs(page).getByRole('link', { name: 'See the errors: mail' })).toBeVisible();
  await expect(needs(page)).not.toContainText('/v1/');
  await expect(act(page, 'Resume')).toBeVisible();
  await needs(page).getByRole('button', { name: 'Resume mail' }).click();
  await expect(act(page, 'Pause')).toBeVisible();
  expect((await server.get('/v1/queues/mail')).effective.paused).toBe(false);
});

test('what is selected stays selected while one looks at a job', async ({ page, server }) => {
  for (let n = 0; n < 3; n += 1) await server.push('mail', n);
  await open(page, server, '#/jobs?queue=mail');
  const boxes = page.locator('table.jobs tbody input[type=checkbox]');
  await expect(boxes).toHaveCount(3);
  await boxes.nth(0).check();
  await boxes.nth(2).check();
  await page.locator('table.jobs tbody a.name').first().click();
  await expect(page.locator('h1.job-id')).toBeVisible();
  await page.goBack();
  await settled(page);
  await expect(page.locator('.bulk')).toContainText('2 selected');
  await expect(boxes.nth(0)).toBeChecked();
  await expect(boxes.nth(1)).not.toBeChecked();
});

test('rates say of which time they are', async ({ page, server }) => {
  await server.push('mail', 1);
  await open(page, server, '#/');
  await expect(page.getByRole('group', { name: 'Pushed' })).toContainText(/over the last (minute|\d+ s)/);
  await open(page, server, '#/queues/mail');
  await expect(page.locator('main')).toContainText(/over the last (minute|\d+ s)/);
});
