// What the page costs while it is live: script, style and layout per second with a thousand busy queues, and when it is first painted. The figures
// are printed. Only a cost that is grossly more fails: the time of the page's thread, whatever else the machine does. When it is painted is not
// judged: no test needs a quick machine.
import { expect, open, test } from '../support.mjs';

const QUEUES = 1000;
/** For how long is measured, in milliseconds. */
const SPAN_MS = 10_000;
/** Promised are 20 ms per second, on a quiet machine. */
const MOST_MS_PER_S = 200;
const MOST_HIDDEN_MS_PER_S = 5;

test('a thousand busy queues cost little while they are seen, and nothing while they are not', async ({ page, server }) => {
  const name = (n) => `busy.${String(n).padStart(4, '0')}`;
  const all = Array.from({ length: QUEUES }, (_, n) => ({ queue: name(n), payload: n }));
  await server.pushAll(all);
  await open(page, server, '#/');
  const painted = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime);
  const devtools = await page.context().newCDPSession(page);
  await devtools.send('Performance.enable', { timeDomain: 'threadTicks' });
  const metrics = async () => {
    const at = performance.now() / 1000;
    const { metrics: found } = await devtools.send('Performance.getMetrics');
    const of = Object.fromEntries(found.map(({ name: of, value }) => [of, value]));
    return { at, ms: 1000 * (of.ScriptDuration + of.LayoutDuration + of.RecalcStyleDuration) };
  };
  let isOver = false;
  const traffic = (async () => {
    while (!isOver) {
      await server.pushAll(all);
      await new Promise((then) => setTimeout(then, 500));
    }
  })();
  const measure = async () => {
    const before = await metrics();
    await page.waitForTimeout(SPAN_MS);
    const after = await metrics();
    return (after.ms - before.ms) / (after.at - before.at);
  };
  try {
    const seen = {};
    for (const hash of ['#/', '#/queues', '#/queues/busy.0001']) {
      await open(page, server, hash);
      seen[hash] = await measure();
      console.log(`${seen[hash].toFixed(1).padStart(7)} ms per second: ${hash}`);
    }
    await page.evaluate(() => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => true });
      document.dispatchEvent(new Event('visibilitychange'));
    });
    const hidden = async () => {
      const ms = await measure();
      console.log(`${ms.toFixed(1).padStart(7)} ms per second while hidden`);
      return ms;
    };
    // What was under way when it was hidden still ends.
    await expect.poll(hidden, { timeout: 6 * SPAN_MS }).toBeLessThan(MOST_HIDDEN_MS_PER_S);
    console.log(`${painted.toFixed(0).padStart(7)} ms to the first paint`);
    for (const [hash, ms] of Object.entries(seen)) expect(`${hash}: ${ms < MOST_MS_PER_S}`).toBe(`${hash}: true`);
  } finally {
    isOver = true;
    await traffic;
  }
});
