// Keys of calls that must not happen twice, what is remembered of names, rules in words: `node --test tests/ui/`.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { act, ACTS } from '../../../src/dashboard/ui/acts.js';
import { answerOf, attempts, curl, get, post, Problem } from '../../../src/dashboard/ui/api.js';
import { calmly } from '../../../src/dashboard/ui/attention.js';
import { remember } from '../../../src/dashboard/ui/bounded.js';
import { countInWords, wantedDry, wordOf } from '../../../src/dashboard/ui/bulkask.js';
import { inWords } from '../../../src/dashboard/ui/cron.js';
import { compare, selectedOf } from '../../../src/dashboard/ui/jobpage.js';
import { beforeTime } from '../../../src/dashboard/ui/jobparts.js';
import { perform } from '../../../src/dashboard/ui/perform.js';
import { ownPause } from '../../../src/dashboard/ui/queueacts.js';
import { asSeen, setUser } from '../../../src/dashboard/ui/session.js';
import { Stages } from '../../../src/dashboard/ui/stages.js';
import { onceAnswered } from '../../../src/dashboard/ui/unanswered.js';

test('the same call has the same key, another call another one', () => {
  const keys = attempts();
  const first = keys('a');
  assert.equal(keys('a'), first);
  const other = keys('b');
  assert.notDeepEqual(other, first);
  assert.equal(keys('b'), other);
});

test('a key is kept until an answer has come', async () => {
  const used = [];
  const call = (/** @type {any} */ outcome) => async (/** @type {any} */ headers) => {
    used.push(headers['idempotency-key']);
    if (outcome !== 200) throw new Problem(outcome, null);
    return 'done';
  };
  for (const outcome of [0, 502, 409]) await assert.rejects(onceAnswered('replay 1', call(outcome)));
  assert.equal(await onceAnswered('replay 1', call(200)), 'done');
  assert.equal(new Set(used.splice(0)).size, 1);
  await assert.rejects(onceAnswered('replay 1', call(404)));
  await onceAnswered('replay 1', call(200));
  await onceAnswered('replay 2', call(200));
  assert.equal(new Set(used).size, 3);
});

test('who makes a call again after more than a minute means another one', async (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 1_800_000_000_000 });
  /** @type {string[]} */ const used = [];
  const lost = () =>
    assert.rejects(
      onceAnswered('run nightly', async (headers) => {
        used.push(headers['idempotency-key']);
        t.mock.timers.tick(100_000); // a lost connection may be known late
        throw new Problem(0, null);
      }),
    );
  await lost();
  t.mock.timers.tick(59_000);
  await lost();
  assert.equal(used[1], used[0]);
  t.mock.timers.tick(60_000);
  await lost();
  assert.notEqual(used[2], used[0]);
});

test('a call that is never answered ends', async (t) => {
  const limit = new AbortController();
  t.mock.method(AbortSignal, 'timeout', () => limit.signal);
  globalThis.fetch = (_, { signal }) => new Promise((_, fail) => signal.addEventListener('abort', () => fail(signal.reason)));
  const mine = new AbortController();
  const asked = get('/v1/session', mine.signal);
  limit.abort();
  await assert.rejects(asked, (error) => error instanceof Problem && error.status === 0);
});

test('a pause of this page is shown at once, and no longer than until it is known that others have ended it', () => {
  const own = ownPause();
  own.read(true);
  assert.equal(own.or(false), false); // this page has set nothing
  own.set(true);
  assert.equal(own.or(false), true);
  own.read(true);
  assert.equal(own.or(false), true);
  // Another one resumes it before the stream has shown the pause.
  own.read(false);
  assert.equal(own.or(false), false);
  assert.equal(own.or(true), true);
  own.set(false);
  assert.equal(own.or(true), false);
  assert.equal(own.or(false), false);
  assert.equal(own.or(true), true);
});

test('of names only the newest are remembered', () => {
  const map = new Map();
  for (const name of ['a', 'b', 'a', 'c']) remember(map, name, name, 2);
  assert.deepEqual([...map.keys()], ['a', 'c']);
  const stages = new Stages();
  const job = (/** @type {number} */ n) => ({ id: `${n}`, queue: 'b', trail: [{ queue: 'a', reason: 'committed' }] });
  for (let n = 0; n < 60_000; n++) stages.addJob(job(n));
  assert.equal(stages.counted.size, 50_000);
  stages.addJob(job(59_999));
  assert.equal([...stages.edges.values()][0].seen, 60_000);
});

test('a step that does not fill the hour is no interval', () => {
  assert.equal(inWords('*/15 * * * *'), 'every 15 minutes');
  assert.equal(inWords('*/45 * * * *'), 'at minute 0 and 45 of every hour');
  assert.equal(inWords('*/25 * * * *'), 'at minute 0, 25 and 50 of every hour');
});

test('that nothing needs anybody is said only where all queues are judged', () => {
  assert.equal(calmly(0), 'Nothing needs you.');
  assert.equal(calmly(1), 'Nothing is known to need you; one queue is not judged yet.');
  assert.match(calmly(12), /; 12 queues are not judged yet\.$/);
});

test('only the time that a reason ends with is one: names may look like times', () => {
  const until = '2026-11-24T13:00:00.000Z';
  assert.equal(beforeTime({ detail: `it is due at ${until}`, until }), 'it is due');
  assert.equal(beforeTime({ detail: `the worker ${until} has it`, until }), undefined);
  assert.equal(beforeTime({ detail: `no job of the queue at ${until}` }), undefined);
  assert.equal(beforeTime({ detail: 'the queue mail.2026-99-99T99:99:99Z is paused' }), undefined);
});

test('a job is deleted as what it was shown as', async () => {
  /** @type {string[]} */ const sent = [];
  globalThis.fetch = /** @type {any} */ (
    async (/** @type {string} */ at, /** @type {any} */ { method }) => {
      sent.push(`${method} ${at}`);
      return Response.json(method === 'GET' ? { state: 'ready' } : { deleted: true });
    }
  );
  await assert.rejects(perform(act('delete'), { id: 'a', state: 'dead' }), /is ready by now, not dead: nothing was done/);
  assert.deepEqual(sent.splice(0), ['GET /v1/jobs/a']);
  await perform(act('delete'), { id: 'a', state: 'ready' });
  assert.deepEqual(sent, ['GET /v1/jobs/a', 'DELETE /v1/jobs/a?reserved=refuse']);
});

test('what a worker has is taken from it only as it was shown', async () => {
  /** @type {any} */ let now = {};
  /** @type {string[]} */ const sent = [];
  globalThis.fetch = /** @type {any} */ (
    async (/** @type {string} */ at, /** @type {any} */ { method }) => {
      if (method !== 'GET') sent.push(`${method} ${at}`);
      return Response.json(method === 'GET' ? now : {});
    }
  );
  const shown = { id: 'a', state: 'reserved', queue: 'mail', attempt: 2 };
  for (const name of ['cancel', 'release', 'move']) {
    now = { ...shown, state: 'done' };
    await assert.rejects(perform(act(name), shown, { to: 'b' }), /is done by now, not reserved: nothing was done/, name);
    now = { ...shown, attempt: 3 };
    await assert.rejects(perform(act(name), shown, { to: 'b' }), /Another worker has the job by now/, name);
    now = { ...shown, queue: 'letters' };
    await assert.rejects(perform(act(name), shown, { to: 'b' }), /is in letters by now/, name);
  }
  assert.deepEqual(sent.splice(0), []);
  now = shown;
  for (const name of ['cancel', 'release', 'move']) await perform(act(name), shown, { to: 'b' });
  assert.deepEqual(sent, ['DELETE /v1/jobs/a', 'POST /v1/jobs/a/release', 'POST /v1/jobs/a/move']);
});

test('a move whose answer was lost is repeated with its key, wherever the job is by then', async () => {
  /** @type {(string | undefined)[]} */ const keys = [];
  let isLost = true;
  globalThis.fetch = /** @type {any} */ (
    async (/** @type {string} */ _, /** @type {any} */ { method, headers }) => {
      if (method === 'GET') return Response.json({ state: 'ready', queue: keys.length === 0 ? 'a' : 'b' });
      keys.push(headers['idempotency-key']);
      if (isLost) throw new TypeError('cut off');
      return Response.json({ queue: 'b', state: 'ready' });
    }
  );
  const move = () => perform(act('move'), { id: 'moved', state: 'ready', queue: 'a' }, { to: 'b' });
  await assert.rejects(move(), /cannot be reached.*may be done all the same/);
  isLost = false;
  await move();
  assert.equal(keys.length, 2);
  assert.ok(keys[0] !== undefined && keys[0] === keys[1]);
});

test('a lost answer is not said to be nothing', async () => {
  const unknown = /may be done all the same: look before you repeat it/;
  globalThis.fetch = /** @type {any} */ (
    async () => {
      throw new TypeError('cut off');
    }
  );
  await assert.rejects(post('/v1/keys', {}), unknown);
  await assert.rejects(answerOf('POST', '/v1/operations', { body: {}, changes: false }), { message: 'The server cannot be reached.' });
  globalThis.fetch = /** @type {any} */ (async () => new Response('{"id":', { status: 200 }));
  await assert.rejects(post('/v1/keys', {}), unknown);
  globalThis.fetch = /** @type {any} */ (async () => new Response('<html>', { status: 504 }));
  await assert.rejects(post('/v1/keys', {}), unknown);
  await assert.rejects(get('/v1/keys'), { message: 'The server took too long to respond (504).' });
});

test('what a proxy has not is not what the server has not', async () => {
  globalThis.fetch = /** @type {any} */ (async () => new Response('<html>', { status: 404 }));
  await assert.rejects(get('/v1/queues/mail'), { status: 502, message: 'A proxy returned 404 in place of the server.' });
  globalThis.fetch = /** @type {any} */ (async () => Response.json({ code: 'queue-not-found', detail: 'there is none' }, { status: 404 }));
  await assert.rejects(get('/v1/queues/mail'), { status: 404, message: 'there is none' });
});

test('jobs that are not what was selected any more are left out', () => {
  const shown = ['a', 'b', 'c'].map((id) => ({ id, state: 'dead' }));
  const fresh = { jobs: /** @type {any[]} */ ([shown[1]]), unreadable: [], scanned: 1, complete: true };
  const { jobs } = compare(shown, fresh, false);
  assert.deepEqual(selectedOf(jobs, new Set(['a', 'b'])), { jobs: [shown[1]], gone: 1 });
  assert.deepEqual(selectedOf(jobs, new Set(['c'])), { jobs: [], gone: 1 });
});

test('what is done to many is said of many', () => {
  for (const { name, saysMany } of ACTS) assert.doesNotMatch(saysMany, /\b(Makes|Puts|Takes|Removes) it\b|\b[Ii]ts attempts/, name);
});

test('a name is asked for where many are deleted or moved, and where all of all queues are meant', () => {
  const meant = (/** @type {Record<string, string>} */ is) => ({
    fixed: {},
    conditions: Object.entries(is).map(([name, value]) => ({ name, value })),
  });
  /** @type {[string, Record<string, string>, string | undefined][]} */ const cases = [
    ['retry', { queue: 'mail', state: 'dead' }, undefined],
    ['retry', { state: 'dead', error_group: 'timeout' }, undefined],
    ['retry', { state: 'dead' }, 'everything'],
    ['redrive', { queue_prefix: 'mail.' }, undefined],
    ['move', { queue: 'mail', key: 'a' }, 'mail'],
    ['move', { queue_prefix: 'mail.' }, 'mail.*'],
    ['delete', { queue: 'mail' }, 'mail'],
    ['delete', { state: 'dead', error_group: 'timeout' }, 'delete'],
    ['delete', {}, 'everything'],
  ];
  for (const [action, is, word] of cases) assert.equal(wordOf(action, meant(is)), word, `${action} ${JSON.stringify(is)}`);
});

test('a move is counted once it is known where to', () => {
  assert.equal(wantedDry('move', { to: '' }), undefined);
  assert.deepEqual(wantedDry('move', { to: 'mail' }), { to: 'mail' });
  assert.deepEqual(wantedDry('delete', {}), {});
  assert.deepEqual(wantedDry('set_priority', {}), { priority: 0 });
});

test('a dry run says how many of those that match are meant', () => {
  const all = { matched: 4000, scanned: 5000, complete: true };
  assert.equal(countInWords(all, 'delete'), '4,000 jobs would be deleted.');
  assert.equal(countInWords(all, 'delete', 10), '10 of 4,000 jobs would be deleted.');
  assert.equal(countInWords(all, 'delete', 4000), '4,000 jobs would be deleted.');
  assert.equal(countInWords({ ...all, complete: false }, 'delete', 10), '10 of at least 4,000 jobs would be deleted.');
  assert.equal(countInWords({ ...all, complete: false, estimate: 9000 }, 'delete', 10), '10 of about 9,000 jobs would be deleted.');
});

test('a call for a shell names the key where one is required, and never is the key', () => {
  globalThis.location = /** @type {any} */ ({ origin: 'http://tailback.test', hash: '' });
  const as = (/** @type {boolean} */ required) =>
    setUser({ scopes: ['read'], queues: ['mail.*'], keys_required: required, read_only: false, version: '1' });
  as(false);
  assert.equal(curl('GET', '/v1/queues'), "curl -s 'http://tailback.test/v1/queues'");
  as(true);
  assert.equal(
    curl('POST', '/v1/x', `{"a": "it's"}`),
    `curl -s -X POST -H "authorization: Bearer $TAILBACK_KEY" --json '{"a": "it'\\''s"}' 'http://tailback.test/v1/x'`,
  );
  // A key of some queues does not say that there is nothing at all.
  assert.equal(asSeen('There are no schedules.'), 'There are no schedules that this key may see (mail.*).');
  setUser({ scopes: ['admin'], keys_required: true, read_only: false, version: '1' });
  assert.equal(asSeen('There are no schedules.'), 'There are no schedules.');
});
