// The browser's tests: Debian's Chromium, and servers that each test starts for itself.
import { defineConfig } from '@playwright/test';
import { existsSync } from 'node:fs';

const executablePath = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);

export default defineConfig({
  testDir: './browser',
  outputDir: '../results',
  timeout: 600_000, // no test needs a quick machine: one that takes ten minutes hangs
  // A page reads some things again after half a minute only, where reading them has taken long.
  expect: { timeout: Number(process.env.TAILBACK_UI_WAIT_MS ?? 60_000) },
  workers: 2, // most of the time is spent waiting for pages
  retries: 0,
  reporter: 'list',
  use: {
    launchOptions: { executablePath, args: ['--no-sandbox', '--disable-dev-shm-usage'] },
    timezoneId: 'Europe/Berlin',
    locale: 'en-GB',
    trace: 'off',
  },
});
