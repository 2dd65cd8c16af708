// What the page knows of the stream, with a stream of the test's: `node --test tests/ui/`.
import assert from 'node:assert/strict';
import { test } from 'node:test';

/** The streams that were begun. @type {Source[]} */
const begun = [];
class Source extends EventTarget {
  static OPEN = 1;
  static CLOSED = 2;
  readyState = 1;
  constructor() {
    super();
    begun.push(this);
  }
  close() {
    this.readyState = 2;
  }
  /** @param {string} type @param {any} data */
  send(type, data) {
    this.dispatchEvent(new MessageEvent(type, { data: JSON.stringify({ at: new Date().toISOString(), queues: [], ...data }) }));
  }
}
globalThis.EventSource = Source;
globalThis.document = Object.assign(new EventTarget(), { hidden: false });
// Looked up at each call: a test mocks it.
globalThis.window = Object.assign(new EventTarget(), { setTimeout: (...of) => setTimeout(...of) });
/** @param {boolean} is whether the page is seen */
const see = (is) => {
  document.hidden = !is;
  document.dispatchEvent(new Event('visibilitychange'));
};
globalThis.location = { hash: '', origin: 'http://tailback.test' };

const live = await import('../../../src/dashboard/ui/live.js');
const board = await import('../../../src/dashboard/ui/board.js');

const counts = { ready: 1, scheduled: 0, reserved: 0, blocked: 0, dead: 0, done: 0 };
const queue = (/** @type {string} */ name, rest = {}) => ({ queue: name, paused: false, counts, ...rest });

test('all parts of a message are told with its last one', () => {
  live.connect();
  const stream = begun.at(-1);
  const told = [];
  live.follow(new AbortController().signal, (changed, happened, isNew) =>
    told.push([[...changed].sort(), happened.map((one) => one.kind), isNew]),
  );
  stream.send('snapshot', { part: 1, more: true, left_out: 0, queues: [queue('a')] });
  assert.deepEqual(told, []);
  stream.send('snapshot', { part: 2, more: false, left_out: 0, queues: [queue('b')] });
  assert.deepEqual(told.splice(0), [[['a', 'b'], [], true]]);
  stream.send('changes', {
    more: true,
    queues: [queue('a', { counts: { ...counts, ready: 7 } })],
    happened: [{ kind: 'paused', queue: 'a' }],
  });
  stream.send('changes', { more: false, queues: [], gone: ['b'], happened: [{ kind: 'dead', queue: 'b' }] });
  assert.deepEqual(told.splice(0), [[['a', 'b'], ['paused', 'dead'], false]]);
  assert.equal(live.totals().counts.ready, 7);
  // A snapshot that replaces another: what is no longer in it has changed as well.
  stream.send('snapshot', { part: 1, more: true, left_out: 0, queues: [] });
  stream.send('snapshot', { part: 1, more: true, left_out: 0, queues: [queue('c')] });
  stream.send('snapshot', { part: 2, more: false, left_out: 0, queues: [queue('d')] });
  assert.deepEqual(told.splice(0), [[['a', 'c', 'd'], [], true]]);
});

test('a picture may say itself that the store is away', () => {
  const stream = begun.at(-1);
  const away = [{ kind: 'store_away' }];
  stream.send('snapshot', { part: 1, more: true, queues: [queue('c')], happened: away });
  stream.send('snapshot', { part: 2, more: false, queues: [queue('d')] });
  assert.equal(live.state.storeAway, true);
  stream.send('changes', { more: false });
  assert.equal(live.state.storeAway, true);
  stream.send('changes', { more: false, happened: [{ kind: 'store_back' }] });
  assert.equal(live.state.storeAway, false);
  // One that does not say so ends what was said before.
  stream.send('snapshot', { part: 1, more: false, queues: [], happened: away });
  stream.send('snapshot', { part: 1, more: false, queues: [] });
  assert.equal(live.state.storeAway, false);
});

test('a queue that the stream does not tell of is empty only where it tells of all', async () => {
  const figures = { counts: { ...counts, ready: 3 }, rates_per_s: {} };
  globalThis.fetch = async () => Response.json({ queues: [{ queue: 'far', figures, effective: { paused: false } }] });
  const stream = begun.at(-1);
  await board.loadPage({}, new AbortController().signal);
  assert.equal(board.row('far').counts.ready, 0);
  for (const partly of [{ left_out: 1 }, { left_out: 0, incomplete: true }]) {
    stream.send('snapshot', { part: 1, more: false, queues: [], ...partly });
    await board.loadPage({}, new AbortController().signal);
    assert.equal(board.row('far').counts.ready, 3, JSON.stringify(partly));
  }
  // Whether it tells of all may change while the page is open.
  const changes = (/** @type {any} */ partly) => stream.send('changes', { more: false, ...partly });
  const shown = () => board.row('far').counts.ready;
  changes({ incomplete: false });
  assert.equal(shown(), 0);
  changes({ left_out: 2 });
  changes({});
  assert.deepEqual([live.state.leftOut, shown()], [2, 3]);
  changes({ left_out: 0 });
  assert.deepEqual([live.state.leftOut, shown()], [0, 0]);
  changes({ incomplete: true });
  assert.equal(shown(), 3);
});

test('the counts of all queues are those of the server where the stream leaves queues out', () => {
  const end = new AbortController();
  const stream = begun.at(-1);
  /** @type {any[]} */ const told = [];
  stream.send('snapshot', { part: 1, more: false, queues: [queue('a')] });
  live.follow(end.signal, () => told.push(live.allCounts()));
  assert.deepEqual(told.splice(0), [counts]);
  stream.send('snapshot', { part: 1, more: false, left_out: 9, queues: [queue('a')] });
  assert.deepEqual(told.splice(0), [null]);
  live.takeCounts({ ...counts, dead: 7 });
  stream.send('changes', { more: false, queues: [queue('a', { counts: { ...counts, ready: 2 } })] });
  assert.deepEqual(told.splice(0), Array(2).fill({ ...counts, dead: 7 }));
  stream.send('changes', { more: false, left_out: 0 });
  // What was counted before is too old once queues are left out again.
  stream.send('changes', { more: false, left_out: 1 });
  assert.deepEqual(told.splice(0), [{ ...counts, ready: 2 }, null]);
  end.abort();
});

/** @returns {(seconds: number) => Promise<void>} by which time goes by, and what is begun in it ends */
const passer = (/** @type {any} */ t) => {
  t.mock.timers.enable({ apis: ['setInterval', 'setTimeout', 'Date'], now: Date.now() });
  return async (seconds) => {
    for (let at = 0; at < seconds; at += 5) {
      t.mock.timers.tick(5000);
      for (let n = 0; n < 50; n++) await null;
      await new Promise((then) => setImmediate(then));
    }
  };
};

test('a stream that is silent is proved, then begun anew; a page that is not seen is not live', async (t) => {
  const pass = passer(t);
  let asked = 0;
  globalThis.fetch = async () => {
    asked += 1;
    return Response.json({});
  };
  live.start();
  const stream = begun.at(-1);
  stream.dispatchEvent(new Event('open'));
  stream.send('changes', { more: false });
  await pass(40);
  assert.equal(begun.at(-1), stream);
  assert.ok(asked > 0, 'the server is asked');
  await pass(40);
  const next = begun.at(-1);
  assert.notEqual(next, stream);
  assert.equal(stream.readyState, Source.CLOSED);
  assert.equal(live.state.connection, 'live', 'nobody is told of a change of streams');
  next.readyState = 0; // it never opens, though the server is there
  await pass(30);
  assert.equal(live.state.connection, 'lost');
  await pass(30);
  begun.at(-1).dispatchEvent(new Event('open'));
  assert.equal(live.state.connection, 'live');
  see(false);
  assert.equal(begun.at(-1).readyState, Source.CLOSED);
  assert.equal(live.state.connection, 'connecting');
});

test('a server that hangs while nobody looks is found out by who looks then', async (t) => {
  const pass = passer(t);
  live.start();
  see(false);
  see(true);
  // The stream neither opens nor fails.
  const hung = begun.at(-1);
  hung.readyState = 0;
  await pass(15);
  assert.equal(live.state.connection, 'lost');
  assert.equal(hung.readyState, Source.CLOSED);
  // Nor does the next one, though the server is back: it is not waited for without end, and what fails at once is left to the browser.
  const stuck = begun.at(-1);
  assert.notEqual(stuck, hung);
  stuck.readyState = 0;
  for (let n = 0; n < 8; n++) {
    await pass(5);
    stuck.dispatchEvent(new Event('error'));
  }
  assert.equal(begun.at(-1), stuck);
  await pass(30);
  assert.notEqual(begun.at(-1), stuck);
  assert.equal(stuck.readyState, Source.CLOSED);
  begun.at(-1).dispatchEvent(new Event('open'));
  assert.equal(live.state.connection, 'live');
});

test('a refusal of our own proves that the server is there; not one of a proxy, nor of a server that ends', async (t) => {
  const pass = passer(t);
  live.start();
  see(false);
  see(true);
  begun.at(-1).dispatchEvent(new Event('open'));
  for (const [status, code, is] of /** @type {[number, string, string][]} */ ([
    [429, 'key-limited', 'live'],
    [503, 'overloaded', 'live'],
    [503, 'draining', 'lost'],
    [503, '', 'lost'],
  ])) {
    const kept = begun.at(-1);
    globalThis.fetch = async () => (code === '' ? new Response('no', { status }) : Response.json({ code }, { status }));
    await pass(30);
    assert.equal(live.state.connection, is, `${status} ${code}`);
    assert.equal(kept.readyState, is === 'live' ? Source.OPEN : Source.CLOSED);
    await pass(20);
    begun.at(-1).dispatchEvent(new Event('open'));
  }
});
