// Nothing moves by itself: while a screen is read for the first time, while figures come, while one points at a chart.
import { fill } from '../fill.mjs';
import { expect, open, settled, test } from '../support.mjs';

/** How much of a screen may move; what moves much has a tenth or more. */
const MOST = 0.03;

/** Notes each move of what is shown, with what has moved. */
function noteShifts() {
  globalThis.shiftsOfTest = [];
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) {
      if (one.hadRecentInput) continue;
      const what = one.sources.map(
        ({ node }) => node?.closest?.('section')?.getAttribute('aria-label') ?? node?.className ?? node?.nodeName,
      );
      globalThis.shiftsOfTest.push({ value: one.value, what: what.join(', ') });
    }
  }).observe({ type: 'layout-shift', buffered: true });
}

/**
 * Lets what is hidden until what is above it was read stay so until then. It is shown after a second at the latest, and may move from then on: on a busy
 * machine reading takes longer.
 */
function holdBack() {
  for (const one of document.getAnimations()) {
    if (one.animationName !== 'late') continue;
    one.pause();
    one.currentTime = 0;
  }
  requestAnimationFrame(holdBack);
}

/** @param {import('@playwright/test').Page} page */
async function shifts(page) {
  // The browser tells of a move after the frame that shows it.
  await page.evaluate(() => new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(then)))));
  const all = await page.evaluate(() => globalThis.shiftsOfTest);
  return { sum: all.reduce((n, { value }) => n + value, 0), all };
}

for (const width of [400, 1280]) {
  test(`screens stay where they are while they are read, ${width} px`, async ({ page, begin }) => {
    // However long this takes, no reason for attention comes while one reads.
    const server = await begin({ TAILBACK_ATTENTION__IDLE_MS: '86400000' });
    await fill(server);
    await page.addInitScript(noteShifts);
    await page.addInitScript(holdBack);
    await page.setViewportSize({ width, height: 850 });
    const found = [];
    for (const hash of ['#/', '#/dead', '#/system', '#/workers', '#/limits', '#/groups', '#/schedules']) {
      await page.goto('about:blank');
      await open(page, server, hash);
      await expect(page.locator('[data-first]')).toHaveCount(0);
      const { sum, all } = await shifts(page);
      console.log(`${String(width).padStart(5)} ${hash.padEnd(12)} ${sum.toFixed(3)} ${all.map(({ what }) => what).join('; ')}`);
      if (sum > MOST) found.push(`${hash}: ${sum.toFixed(3)}: ${JSON.stringify(all)}`);
    }
    expect(found).toEqual([]);
  });
}

/** The middle of a plot, for the pointer. @param {import('@playwright/test').Locator} plot @returns {Promise<[number, number]>} */
async function middle(plot) {
  const { x, y, width, height } = await plot.boundingBox();
  return [x + width / 2, y + height / 2];
}

test('plots stay where they are while one points at them, and are level side by side', async ({ page, server }) => {
  await fill(server);
  for (const [width, hash] of [
    [1280, '#/'],
    [1280, '#/queues/mail.send'],
    [400, '#/'],
  ]) {
    await page.setViewportSize({ width, height: 900 });
    await page.goto('about:blank'); // or the screen before is taken for this one
    await open(page, server, hash);
    await expect(page.locator('[data-first]')).toHaveCount(0);
    const plots = page.locator('.chart .plot');
    const tops = () => plots.evaluateAll((all) => all.map((one) => Math.round(one.getBoundingClientRect().top + scrollY)));
    if (width > 1000) await expect.poll(async () => (await tops())[0] - (await tops())[1]).toBe(0);
    // Again until the figures are there to be read, and what is above the charts has come.
    await expect(async () => {
      await page.mouse.move(0, 0);
      await expect(page.locator('.chart.pointed')).toHaveCount(0, { timeout: 500 });
      const before = await tops();
      await plots.first().hover({ position: { x: 150, y: 60 } });
      await page.mouse.move(...(await middle(plots.first())));
      await expect(page.locator('.chart.pointed')).not.toHaveCount(0, { timeout: 500 });
      expect(await tops()).toEqual(before);
    }).toPass();
  }
});

test('on a narrow page the news of a list has a line of its own, and a name is whole beside its badge', async ({ page, server }) => {
  await page.setViewportSize({ width: 400, height: 850 });
  await server.pushAll(Array.from({ length: 20 }, (_, payload) => ({ queue: 'billing.invoices.eu', payload })));
  await server.post('/v1/queues/billing.invoices.eu/pause');
  await open(page, server, '#/jobs');
  // The figures of the states are there, which are above the list and take room.
  await expect(page.locator('.job-list').getByRole('button', { name: /^ready/ })).toHaveText('ready 20');
  const first = page.locator('table.jobs tbody tr').first();
  const top = (await first.boundingBox()).y;
  await server.push('billing.invoices.eu', 1);
  await expect(page.locator('.news')).toHaveText('1 new: show');
  // A line of text would be twenty.
  expect(Math.abs((await first.boundingBox()).y - top)).toBeLessThan(2);
  await open(page, server, '#/queues');
  const name = page.getByRole('table', { name: 'Queues' }).locator('a.name').first();
  await expect(name).toHaveText('billing.invoices.eu');
  await expect(page.locator('.queues .badge').first()).toBeVisible();
  const cut = await name.evaluate((one) => one.scrollWidth - one.clientWidth);
  expect(cut).toBeLessThanOrEqual(0);
});

test('on a narrow page nothing that matters is left out, and the lost connection is said below the header', async ({ page, begin }) => {
  const server = await begin();
  await fill(server);
  await page.setViewportSize({ width: 400, height: 850 });
  await open(page, server, '#/groups');
  await expect(page.getByRole('table', { name: 'Groups that a dead job holds' })).toContainText('the card was declined');
  await expect(page.getByText('the card was declined')).toBeVisible();
  await open(page, server, '#/schedules');
  await expect(page.locator('td[data-label="Last run"]').first()).toBeVisible();
  await expect(page.locator('td[data-label="Queue"]').first()).toBeVisible();
  await open(page, server, '#/pipelines?view=list');
  await settled(page);
  const scrolls = page.locator('.scroll').filter({ has: page.getByRole('table', { name: 'Ways between queues' }) });
  expect(await scrolls.evaluate((one) => one.scrollWidth - one.clientWidth)).toBeLessThanOrEqual(0);
  await open(page, server, '#/system');
  await expect(page.locator('td[data-label="Last error"]').filter({ visible: true })).toHaveCount(0);
  await page.evaluate(() => scrollTo(0, 600));
  await server.stop('SIGKILL');
  const bar = page.locator('div.lost');
  await expect(bar).toBeVisible();
  const header = await page.locator('header.top').boundingBox();
  expect((await bar.boundingBox()).y).toBeGreaterThanOrEqual(header.y + header.height - 1);
});
