// Every screen, on a server with every kind of thing: no error, nothing that axe finds, nothing wider than the page; and pictures.
import { fill } from '../fill.mjs';
import { cutOff, expect, findings, overflow, Server, settled, shoot, test as base, watch } from '../support.mjs';

const ADMIN = 'an-admin-key-of-the-browser-tests-0123456789';

/** The screens by name: the link of each. @type {[string, (ids: Record<string, string>) => string][]} */
const SCREENS = [
  ['overview', () => '#/'],
  ['queues', () => '#/queues'],
  ['queue', () => '#/queues/mail.send'],
  ['queue-empty', () => '#/queues/there.is.none'],
  ['jobs', () => '#/jobs'],
  ['jobs-found', () => '#/jobs?queue=mail.send&state=ready,scheduled&payload.template=%22shipped%22'],
  ['jobs-none', () => '#/jobs?queue=there.is.none'],
  ...['ready', 'scheduled', 'reserved', 'blocked', 'dead', 'done', 'moving', 'letter', 'binary'].map((of) => [
    `job-${of}`,
    (ids) => `#/jobs/${ids[of]}`,
  ]),
  ['job-none', () => '#/jobs/01a2b3c4d5e6f708192a3b4c5d'],
  ['dead', () => '#/dead'],
  ['schedules', () => '#/schedules'],
  ['schedule', () => '#/schedules/nightly'],
  ['limits', () => '#/limits'],
  ['semaphore', () => '#/limits/database'],
  ['groups', () => '#/groups'],
  ['batches', () => '#/batches'],
  ['batch', (ids) => `#/batches/${ids.batch}`],
  ['batch-finished', (ids) => `#/batches/${ids.finished}`],
  ['workers', () => '#/workers'],
  ['worker', () => '#/workers/encoder-1'],
  ['pipelines', () => '#/pipelines'],
  ['pipelines-list', () => '#/pipelines?view=list'],
  ['system', () => '#/system'],
  ['keys', () => '#/keys'],
  ['missing', () => '#/no/such/page'],
];

const test = base.extend({
  // One server for all: what is looked at does not change.
  filled: [
    async ({}, use) => {
      const server = await Server.start({ TAILBACK_AUTH__ADMIN_KEY: ADMIN });
      const ids = await fill(server);
      await server.post('/v1/keys', {
        name: 'mailer',
        scopes: ['push', 'consume'],
        queues: ['mail.*'],
        rate: { limit: 100, per_ms: 1000 },
      });
      await server.post('/v1/keys', { name: 'night shift', scopes: ['read', 'operate'], expires_in_ms: 86_400_000 });
      await use({ server, ids });
      await server.stop();
    },
    { scope: 'worker' },
  ],
});

for (const theme of ['light', 'dark']) {
  for (const width of [400, 1280, 2560]) {
    test(`every screen, ${theme}, ${width} px`, async ({ browser, filled: { server, ids } }) => {
      const context = await browser.newContext({
        colorScheme: theme,
        viewport: { width, height: width === 400 ? 850 : 900 },
        reducedMotion: 'reduce',
      });
      const page = await context.newPage();
      const wrong = watch(page);
      await page.goto(server.url);
      await expect(page.getByLabel('API key')).toBeVisible();
      const found = [];
      const look = async (name) => {
        await shoot(page, `${name}-${theme}-${width}`);
        found.push(...(await findings(page)).map((one) => `${name}: ${one}`));
        found.push(...(await overflow(page)).map((one) => `${name}: ${one}`));
      };
      await look('login');
      await page.getByLabel('API key').fill(ADMIN);
      await page.getByRole('button', { name: 'Log in' }).click();
      // The page is loaded anew with the session; until then the login is what is there.
      await expect(page.locator('.status.live')).toBeVisible();
      await settled(page);
      for (const [name, link] of SCREENS) {
        // Over a page of its own, so that what is looked at is not the screen before.
        await page.evaluate(() => (location.hash = '#/no/such/page'));
        await expect(page.getByRole('heading', { name: 'Not found' })).toBeVisible();
        if (name !== 'missing') {
          await page.evaluate((to) => (location.hash = to), link(ids));
          await expect(page.getByRole('heading', { name: 'Not found' })).toHaveCount(0);
        }
        await expect(page.locator('.status.live')).toBeVisible();
        await settled(page);
        await look(name);
      }
      if (width === 1280) found.push(...(await cutOff(page)));
      expect(found.concat(wrong)).toEqual([]);
      await context.close();
    });
  }
}
