// The login, and keys: made, shown once, rotated, revoked.
import { closed, dialog, expect, inDialog, open, test } from '../support.mjs';

const ADMIN = 'an-admin-key-of-the-browser-tests-0123456789';
const auth = { TAILBACK_AUTH__ADMIN_KEY: ADMIN };

/** @param {import('@playwright/test').Page} page */
async function login(page, key) {
  await page.getByLabel('API key').fill(key);
  await page.getByRole('button', { name: 'Log in' }).click();
}

test('a wrong key, the right one, and out again', async ({ page, begin }) => {
  const server = await begin(auth);
  await server.push('mail', 1);
  await page.goto(`${server.url}/#/queues/mail`);
  await login(page, 'this-is-no-key-at-all');
  await expect(page.getByRole('alert')).toContainText('not valid here');
  await expect(page.locator('header.top')).toHaveCount(0);
  await login(page, ADMIN);
  // The link that was opened follows.
  await expect(page.getByRole('heading', { name: 'mail', exact: true })).toBeVisible();
  const cookies = await page.context().cookies();
  expect(cookies.map(({ httpOnly, sameSite }) => ({ httpOnly, sameSite }))).toEqual([{ httpOnly: true, sameSite: 'Strict' }]);
  const kept = await page.evaluate(() => JSON.stringify([localStorage, sessionStorage, document.cookie]));
  expect(kept).not.toContain(ADMIN);
  await page.getByRole('button', { name: 'Log out' }).click();
  await expect(page.getByLabel('API key')).toBeVisible();
  await page.reload();
  await expect(page.getByLabel('API key')).toBeVisible();
});

test('a key: made, shown once, rotated, revoked', async ({ page, begin }) => {
  const server = await begin(auth);
  await page.goto(`${server.url}/#/keys`);
  await login(page, ADMIN);
  await page.getByRole('button', { name: 'New key' }).click();
  await expect(inDialog(page, 'Create')).toBeDisabled();
  await dialog(page).getByRole('textbox', { name: /^Name/ }).fill('mailer');
  await dialog(page).getByRole('checkbox', { name: 'push' }).check();
  await dialog(page)
    .getByRole('textbox', { name: /^Queues/ })
    .fill('mail.*');
  await inDialog(page, 'Create').click();
  const secret = page.locator('output.secret');
  await expect(secret).toBeVisible();
  const first = await secret.textContent();
  // It is shown this once: neither Escape nor a link closes it.
  await page.keyboard.press('Escape');
  await expect(secret).toBeVisible();
  await dialog(page).getByRole('checkbox').check();
  await inDialog(page, 'Close').click();
  await closed(page);
  await expect.poll(() => page.content()).not.toContain(first);
  const [key] = (await server.get('/v1/keys')).keys;
  expect(key).toMatchObject({ name: 'mailer', scopes: ['push'], queues: ['mail.*'] });
  const push = (queue, by) =>
    server.call('POST', `/v1/queues/${queue}/jobs`, { payload: 1 }, by).then(
      () => 0,
      ({ status }) => status,
    );
  expect([await push('mail.a', first), await push('other', first)]).toEqual([0, 403]);

  await page.getByRole('button', { name: 'Rotate mailer' }).click();
  await inDialog(page, 'Rotate the key').click();
  await expect(secret).toBeVisible();
  const second = await secret.textContent();
  await dialog(page).getByRole('checkbox').check();
  await inDialog(page, 'Close').click();
  await closed(page);
  expect([await push('mail.a', first), await push('mail.a', second)]).toEqual([401, 0]);

  await page.getByRole('button', { name: 'Revoke mailer' }).click();
  await dialog(page).getByRole('textbox').fill(key.id);
  await inDialog(page, 'Revoke the key').click();
  await closed(page);
  await expect(page.locator('main')).toContainText('There are no keys.');
  expect(await push('mail.a', second)).toBe(401);
});

test('a session that ends: the page stays as it is, and goes on after the login', async ({ page, begin }) => {
  const server = await begin(auth);
  await page.goto(`${server.url}/#/queues/mail`);
  await login(page, ADMIN);
  await page.getByRole('button', { name: 'Push a job' }).click();
  await page.getByLabel('Payload', { exact: true }).fill('{"typed": "with care"}');
  // What the page reads again and again is not asked meanwhile: it would be told of the end before the push is, and the login be above the dialog.
  await page.route(/\/v1\//, (route) => (route.request().method() === 'GET' ? route.abort() : route.continue()));
  // As if it had ended: the cookie is gone.
  await page.context().clearCookies();
  await inDialog(page, 'Push').click();
  await expect(page.getByLabel('API key')).toBeVisible();
  await page.unrouteAll({ behavior: 'wait' });
  await login(page, ADMIN);
  await expect(page.getByLabel('API key')).toHaveCount(0);
  await expect(page.getByLabel('Payload', { exact: true })).toHaveValue('{"typed": "with care"}');
  await inDialog(page, 'Push').click();
  await closed(page);
  expect((await server.get('/v1/queues/mail/jobs')).jobs[0].payload).toEqual({ typed: 'with care' });
});

test('the own key: what it is rotated to is seen before the login asks for it', async ({ page, begin }) => {
  const server = await begin(auth);
  const { key } = await server.post('/v1/keys', { name: 'mine', scopes: ['admin'] });
  await page.goto(`${server.url}/#/keys`);
  await login(page, key);
  await page.getByRole('button', { name: 'Rotate mine' }).click();
  const ended = page.waitForResponse((response) => response.status() === 401);
  await inDialog(page, 'Rotate the key').click();
  const secret = page.locator('output.secret');
  await expect(secret).toBeVisible();
  const next = await secret.textContent();
  // The session has ended, and with it the stream: the page was told so, and would ask for the login.
  await ended;
  await expect(secret).toHaveText(next);
  await expect(page.getByLabel('API key')).toHaveCount(0);
  await dialog(page).getByRole('checkbox').check();
  await inDialog(page, 'Close').click();
  await expect(page.getByLabel('API key')).toBeVisible();
  await login(page, next);
  await closed(page);
  await expect(page.locator('.status.live')).toBeVisible();
  await expect(page.getByRole('table', { name: 'Keys' })).toContainText('mine');
});

test('a key that is revoked meanwhile: what was typed stays below the login', async ({ page, begin }) => {
  const server = await begin(auth);
  const { id, key } = await server.post('/v1/keys', { name: 'mine', scopes: ['read', 'push'] });
  await server.push('mail', 1);
  await page.goto(`${server.url}/#/queues/mail`);
  await login(page, key);
  await page.getByRole('button', { name: 'Push a job' }).click();
  const payload = page.getByLabel('Payload', { exact: true });
  await payload.fill('{"typed": "with care"}');
  await server.call('DELETE', `/v1/keys/${id}`);
  await expect(page.locator('dialog.again').getByLabel('API key')).toBeVisible();
  await expect(payload).toHaveValue('{"typed": "with care"}');
});

test('a key of some queues whose jobs name others sees the pipelines of its own', async ({ page, begin }) => {
  const server = await begin(auth);
  await server.push('mail.a', 1, { then: [{ queue: 'secret' }] });
  const { key } = await server.post('/v1/keys', { name: 'reader', scopes: ['read'], queues: ['mail.*'] });
  await page.goto(`${server.url}/#/pipelines`);
  await login(page, key);
  const main = page.locator('main');
  await expect(main).toContainText('This key may not see all queues.');
  await expect(main.locator('svg a, svg text').filter({ hasText: 'mail.a' }).first()).toBeVisible();
  await expect(main).not.toContainText('not for this key');
});

test('a key of some queues that only reads sees these, and is offered nothing', async ({ page, begin }) => {
  const server = await begin(auth);
  await server.push('mail.a', 1);
  await server.push('mail.b', 1);
  await server.push('secret', 1);
  const { key } = await server.post('/v1/keys', { name: 'reader', scopes: ['read'], queues: ['mail.*'] });
  await page.goto(`${server.url}/#/queues`);
  await login(page, key);
  const table = page.getByRole('table', { name: 'Queues' });
  await expect(table.getByRole('link')).toHaveText(['mail.a', 'mail.b']);
  for (const [hash, of] of [
    ['#/', 'Overview'],
    ['#/queues/mail.a', 'mail.a'],
    ['#/jobs?queue=mail.a', 'Jobs'],
    ['#/dead?queue_prefix=mail.', 'Dead letters'],
    ['#/schedules', 'Schedules'],
    ['#/limits', 'Limits'],
    ['#/groups?queue=mail.', 'Groups'],
    ['#/batches', 'Batches'],
    ['#/workers', 'Workers'],
    ['#/pipelines', 'Pipelines'],
    ['#/system', 'System'],
    ['#/keys', 'Keys'],
    ['#/queues/secret', 'secret'],
  ]) {
    await open(page, server, hash);
    await expect(page.getByRole('heading', { level: 1, name: of })).toBeAttached();
    const offered = await page
      .locator('main :not(.chip) > button')
      .filter({ hasText: /^(Push|Pause|Redrive|Purge|Delete|New|Edit|Remove|Retry|Move)\b/ })
      .filter({ visible: true })
      .count();
    expect(`${hash}: ${offered}`).toBe(`${hash}: 0`);
    if (hash !== '#/queues/secret') await expect(page.locator('main')).not.toContainText('secret');
  }
  await expect(page.locator('main')).toContainText('Your key is not for this queue.');
});
