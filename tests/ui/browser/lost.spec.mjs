// Connection lost, and dialogs: what axe finds in these states; a server that hangs is found out.
import { fill } from '../fill.mjs';
import { closed, dialog, expect, findings, open, test } from '../support.mjs';

const bar = (page) => page.locator('div.lost');

for (const theme of ['light', 'dark']) {
  test(`while the connection is lost all is still legible, ${theme}`, async ({ browser, begin }) => {
    const server = await begin();
    await fill(server);
    const context = await browser.newContext({ colorScheme: theme, viewport: { width: 1280, height: 900 }, reducedMotion: 'reduce' });
    const pages = [];
    for (const hash of ['#/', '#/queues/mail.send', '#/dead', '#/system']) {
      const page = await context.newPage();
      await open(page, server, hash);
      pages.push([hash, page]);
    }
    await server.stop('SIGKILL');
    const found = [];
    for (const [hash, page] of pages) {
      await page.bringToFront();
      await expect(bar(page)).toBeVisible();
      found.push(...(await findings(page)).map((one) => `${hash}: ${one}`));
    }
    expect(found).toEqual([]);
    await context.close();
  });

  test(`dialogs are without serious findings, ${theme}`, async ({ browser, server }) => {
    await fill(server);
    const context = await browser.newContext({ colorScheme: theme, viewport: { width: 1280, height: 900 }, reducedMotion: 'reduce' });
    const page = await context.newPage();
    const found = [];
    for (const [hash, names] of /** @type {[string, string[]][]} */ ([
      ['#/queues/mail.send', ['Push a job', 'Redrive…', 'Replay…', 'Purge…', 'Delete…', 'Edit the settings']],
      ['#/schedules', ['New schedule']],
      ['#/limits', ['New semaphore']],
      ['#/workers/encoder-1', ['Remove…']],
      ['#/keys', ['New key']],
    ])) {
      await open(page, server, hash);
      for (const name of names) {
        await page.locator('main').getByRole('button', { name, exact: true }).first().click();
        await expect(dialog(page)).toBeVisible();
        found.push(...(await findings(page)).map((one) => `${hash} ${name}: ${one}`));
        await page.keyboard.press('Escape');
        await closed(page);
      }
    }
    await page.keyboard.press('/');
    await expect(dialog(page).getByRole('combobox')).toBeVisible();
    found.push(...(await findings(page)).map((one) => `palette: ${one}`));
    expect(found).toEqual([]);
    await context.close();
  });
}

test('a server that hangs is found out, and since when', async ({ page, server }) => {
  await server.push('mail', 1);
  await open(page, server, '#/');
  await expect(page.locator('header .status')).toContainText('live');
  // Notes when the page finds it out.
  await page.evaluate(() => {
    const status = document.querySelector('header .status');
    new MutationObserver(() => {
      if (status.classList.contains('lost')) globalThis.foundOut ??= Date.now();
    }).observe(status, { attributes: true });
  });
  server.process.kill('SIGSTOP');
  try {
    await expect(bar(page)).toContainText(/cannot be reached since \d\d:\d\d:\d\d/);
    const [, at] = /since (\d\d:\d\d:\d\d)/.exec(await bar(page).textContent());
    // Since it was last heard, and not since it was found out: that takes five seconds.
    const time = await page.evaluate(() => new Date(globalThis.foundOut - 5000).toLocaleTimeString('en-GB'));
    expect(at <= time).toBe(true);
  } finally {
    server.process.kill('SIGCONT');
  }
  await expect(bar(page)).toBeHidden();
});
