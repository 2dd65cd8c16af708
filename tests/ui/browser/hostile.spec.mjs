// Names and texts that somebody means ill with: shown as text wherever they are, and nothing comes of them.
import { dialog, expect, open, overflow, settled, test } from '../support.mjs';

const IMAGE = '<img src=x onerror=alert(1)>';
const SCRIPT = '</script><script>alert(1)</script>';
/** Turns the text behind it around. */
const OVERRIDE = '\u202e';
const LONG = `a${'.b'.repeat(63)}c`; // 128, the longest name

/** No element has come of a text: none of these is ever made by the page. @param {import('@playwright/test').Page} page */
async function nothingCame(page) {
  const made = await page.evaluate(() => [
    ...[...document.querySelectorAll('main img, main script, main iframe, main style, dialog img, dialog script, [onerror], [onload]')].map(
      (node) => node.outerHTML,
    ),
    ...[...document.querySelectorAll('a[href]')]
      .map((node) => node.getAttribute('href'))
      .filter((href) => !/^(#|\/docs\/$|\/metrics$)/.test(href)),
  ]);
  expect(made).toEqual([]);
  expect(await overflow(page)).toEqual([]);
}

/** Characters that turn text around, or that one does not see, are never in the page as they are. */
async function nothingUnseen(page) {
  const text = await page.evaluate(() => document.body.innerText);
  // eslint-disable-next-line no-control-regex
  expect(text.match(/[\u0000-\u0008\u000b-\u001f\u202a-\u202e\u2066-\u2069\u200b]/g)).toBeNull();
}

test('names in links and fields', async ({ page, server }) => {
  for (const name of [IMAGE, SCRIPT, `safe${OVERRIDE}gpj.exe`, 'x'.repeat(255), '../../v1/keys', '%00', '\'"--']) {
    for (const of of ['queues', 'jobs', 'schedules', 'limits', 'batches', 'workers']) {
      await open(page, server, `#/${of}/${encodeURIComponent(name)}`);
      await nothingCame(page);
      await nothingUnseen(page);
    }
    for (const of of [
      'queues?q',
      'jobs?queue',
      'jobs?payload.x',
      'dead?queue',
      'groups?queue',
      'jobs?error',
      'jobs?cursor',
      'jobs?operation',
    ]) {
      await open(page, server, `#/${of}=${encodeURIComponent(name)}`);
      await nothingCame(page);
    }
  }
  await open(page, server, `#/${encodeURIComponent(IMAGE)}`);
  await nothingCame(page);
});

test('the longest names', async ({ page, server }) => {
  await server.put(`/v1/semaphores/${LONG}`, { capacity: 1 });
  await server.push(LONG, 1, { group: LONG, semaphores: [LONG], key: LONG.slice(0, 128), then: [{ queue: LONG }] });
  await server.put(`/v1/schedules/${LONG}`, { cron: '0 3 * * *', queue: LONG, job: { payload: 1 } });
  await server.post(`/v1/workers/${LONG}/heartbeat`, { version: IMAGE, slots: 1, timeout_ms: 86_400_000 });
  const [job] = await server.reserve(LONG, { worker: LONG });
  for (const width of [400, 1280]) {
    await page.setViewportSize({ width, height: 850 });
    for (const link of ['', 'queues', `queues/${LONG}`, 'jobs', `jobs/${job.id}`, 'schedules', `schedules/${LONG}`, 'limits']) {
      await open(page, server, `#/${link}`);
      await nothingCame(page);
    }
    for (const link of [`limits/${LONG}`, 'workers', `workers/${LONG}`, 'pipelines', 'pipelines?view=list', 'system']) {
      await open(page, server, `#/${link}`);
      await nothingCame(page);
    }
  }
  await open(page, server, `#/workers/${LONG}`);
  await expect(page.locator('main')).toContainText(IMAGE);
});

test('payloads, errors, headers, results and progress are texts', async ({ page, server }) => {
  const raw = `{"script":${JSON.stringify(SCRIPT)},"image":${JSON.stringify(IMAGE)},"${IMAGE}":1.10,"n":12345678901234567890,"o":"\\u202egpj.exe","c":"\\u0007\\u0000\\u200b","__proto__":{"x":1}}`;
  const body = `{"payload":${raw},"headers":{"script":${JSON.stringify(SCRIPT)},"n":1.10,"o":"\\u202e"},"max_attempts":1}`;
  const { id } = await server.call('POST', '/v1/queues/mail/jobs', body);
  const [job] = await server.reserve('mail');
  await server.call('POST', `/v1/jobs/${id}/extend`, `{"reservation":"${job.reservation}","progress":${raw}}`);
  const look = async () => {
    for (const link of [`jobs/${id}`, 'jobs', 'queues/mail', 'dead', '', 'system', 'pipelines']) {
      await open(page, server, `#/${link}`);
      await nothingCame(page);
      await nothingUnseen(page);
    }
    await open(page, server, `#/jobs/${id}`);
    const main = page.locator('main');
    for (const text of [SCRIPT, IMAGE, '1.10', '12345678901234567890']) await expect(main).toContainText(text);
  };
  await look();
  await server.call('POST', `/v1/jobs/${id}/rollback`, { reservation: job.reservation, error: `${SCRIPT}${OVERRIDE}\u0007 ${IMAGE}` });
  await look();
  await expect(page.locator('main')).toContainText('\\u202e');
  await open(page, server, '#/dead');
  await expect(page.locator('main')).toContainText('<img src=x onerror=alert(');
  // Also where it is edited, and back as it was.
  await server.post(`/v1/jobs/${id}/retry`);
  await open(page, server, `#/jobs/${id}`);
  await page.getByRole('button', { name: 'Edit …' }).click();
  const field = dialog(page).locator('textarea[name=payload]');
  await expect(field).toHaveValue(/1\.10,"n":12345678901234567890/);
  await dialog(page).getByRole('button', { name: 'Write them as escapes' }).first().click();
  await expect(field).toHaveValue(/"o":"\\u202egpj\.exe","c":"\\u0007\\u0000\\u200b"/);
  await nothingCame(page);
  await page.keyboard.press('Escape');
  const [again] = await server.reserve('mail');
  await server.put('/v1/queues/mail', { retain_done_ms: 86_400_000 });
  await server.call('POST', `/v1/jobs/${id}/commit`, `{"reservation":"${again.reservation}","result":${raw}}`);
  await look();
});

test('payloads that are large or deep', async ({ page, server }) => {
  const large = `"${'<b>x</b> '.repeat(100_000)}"`;
  const many = `[${Array.from({ length: 60_000 }, (_, n) => `{"n":${n}.10}`).join(',')}]`;
  const depth = 120;
  const deep = `${'{"a":['.repeat(depth / 2)}"end"${']}'.repeat(depth / 2)}`;
  for (const payload of [large, many, deep]) {
    const { id } = await server.call('POST', '/v1/queues/mail/jobs', `{"payload":${payload}}`);
    await open(page, server, `#/jobs/${id}`);
    await nothingCame(page);
    expect(await page.evaluate(() => document.querySelectorAll('*').length)).toBeLessThan(5000);
    await page.getByRole('button', { name: 'Raw', exact: true }).first().click();
    await nothingCame(page);
    expect(await page.evaluate(() => document.querySelectorAll('*').length)).toBeLessThan(5000);
  }
  await open(page, server, '#/jobs');
  await expect(page.locator('table.jobs tbody tr')).toHaveCount(3);
  await nothingCame(page);
});

test('names of keys, and what the audit says', async ({ page, begin }) => {
  const key = 'an-admin-key-of-the-browser-tests-0123456789';
  const server = await begin({ TAILBACK_AUTH__ADMIN_KEY: key });
  await server.post('/v1/keys', { name: `${IMAGE}`, scopes: ['read'] });
  await server.put('/v1/semaphores/s', { capacity: 1 });
  await server.push('mail', { a: SCRIPT }, { delay_ms: 3_600_000 });
  await server.post('/v1/operations', { filter: { queue: 'mail', payload: { a: SCRIPT } }, action: 'set_priority', priority: 1 });
  await page.goto(`${server.url}/#/keys`);
  await page.getByLabel('API key').fill(key);
  await page.getByRole('button', { name: 'Log in' }).click();
  await expect(page.locator('main')).toContainText(IMAGE);
  await nothingCame(page);
  await open(page, server, '#/system');
  await settled(page);
  await expect(page.locator('main')).toContainText('alert(1)');
  await nothingCame(page);
});
