// Dialogs whose modules are loaded by the first click: one of them, with the focus; and in words why there is none.
import { closed, dialog, expect, inDialog, open, test, toasts } from '../support.mjs';

const act = (page, name) => page.locator('.acts').getByRole('button', { name, exact: true });

/** Lets a module come late: the function that is returned lets it come. */
async function holdBack(page, file) {
  let release = () => {};
  const released = new Promise((then) => (release = then));
  await page.route(`**/ui/*/${file}`, async (route) => {
    await released;
    await route.continue();
  });
  return release;
}

test('each button of a queue opens one dialog, which gives the focus back', async ({ page, server }) => {
  await server.push('mail', 1);
  await open(page, server, '#/queues/mail');
  const buttons = ['Push a job', 'Redrive…', 'Replay…', 'Purge…', 'Delete…'].map((name) => act(page, name));
  for (const one of [...buttons, page.getByRole('button', { name: 'Edit the settings' })]) {
    await one.dblclick();
    await expect(dialog(page)).toHaveCount(1);
    expect(await page.evaluate(() => document.activeElement.closest('dialog') !== null)).toBe(true);
    await inDialog(page, 'Cancel').click();
    await closed(page);
    await expect(one).toBeFocused();
    await expect(one).not.toHaveAttribute('aria-disabled', 'true');
  }
});

test('a module that comes late opens one dialog, and none where another link was followed', async ({ page, server }) => {
  await server.push('mail', 1);
  const push = await holdBack(page, 'push.js');
  const form = await holdBack(page, 'settingsform.js');
  await open(page, server, '#/queues/mail');
  await act(page, 'Push a job').click();
  await act(page, 'Push a job').click({ force: true });
  await expect(act(page, 'Push a job')).toHaveAttribute('aria-disabled', 'true');
  push();
  await expect(dialog(page)).toHaveCount(1);
  await page.keyboard.press('Escape');
  await closed(page);
  const loaded = page.waitForResponse((response) => response.url().endsWith('/settingsform.js'));
  await page.getByRole('button', { name: 'Edit the settings' }).click();
  await page.getByRole('link', { name: 'Workers', exact: true }).click();
  await expect(page.getByRole('heading', { level: 1, name: 'Workers' })).toBeVisible();
  form();
  await (await loaded).finished();
  await page.evaluate(() => import(document.querySelector('script').src.replace('main.js', 'settingsform.js')));
  await closed(page);
});

test('what is typed while the palette is loaded is for its field', async ({ page, server }) => {
  await server.push('mail.quick', 1);
  const palette = await holdBack(page, 'palette.js');
  await open(page, server, '#/');
  await page.keyboard.press('/');
  await page.keyboard.type('gq'); // elsewhere the keys that lead to the queues
  palette();
  await expect(page.getByRole('combobox')).toHaveValue('gq');
  await expect(page.getByRole('combobox')).toBeFocused();
  await page.keyboard.press('Escape');
  await closed(page);
  await expect(page).toHaveURL(/#\/$/);
});

test('a module that cannot be loaded is said in words', async ({ page, server }) => {
  await server.push('mail', 1);
  await page.route('**/ui/*/push.js', (route) => route.abort());
  await page.route('**/ui/*/help.js', (route) => route.abort());
  await page.route('**/ui/*/chipeditor.js', (route) => route.abort());
  const all = await toasts(page);
  await open(page, server, '#/queues/mail');
  const said = async () => (await all()).filter((words) => words.includes('This part of the page could not be loaded.')).length;
  await act(page, 'Push a job').click();
  await expect.poll(said).toBe(1);
  await page.keyboard.press('?');
  await expect.poll(said).toBe(2);
  await page.getByRole('button', { name: '+ Condition' }).click();
  await expect.poll(said).toBe(3);
  await closed(page);
});

test('while the server is away nothing is loaded; once it is back, the same click opens the dialog', async ({ page, begin }, info) => {
  const server = await begin({ TAILBACK_STORE: `sqlite:${info.outputPath('store.db')}` });
  await server.push('mail', 1);
  const said = await toasts(page);
  await open(page, server, '#/queues/mail');
  await act(page, 'Purge…').click();
  await inDialog(page, 'Cancel').click();
  await closed(page);
  await server.stop('SIGKILL');
  await expect(page.locator('header .status')).toContainText('not connected');
  await act(page, 'Push a job').click();
  await expect.poll(said).toContain('The server cannot be reached.');
  await closed(page);
  // One that was loaded before is there, and says itself what it cannot do.
  await act(page, 'Purge…').click();
  await expect(dialog(page)).toContainText('The server cannot be reached.');
  await inDialog(page, 'Cancel').click();
  await closed(page);
  await server.run();
  await expect(page.locator('.status.live')).toBeVisible();
  await act(page, 'Push a job').click();
  await expect(dialog(page)).toContainText('Push a job to mail');
});
