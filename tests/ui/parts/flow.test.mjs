// Which queues are looked at for pipelines, and the lists that the page has of the server's: `node --test tests/ui/`.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

globalThis.document ??= Object.assign(new EventTarget(), { hidden: false });
globalThis.window ??= Object.assign(new EventTarget(), { setTimeout });
globalThis.location ??= { hash: '', origin: 'http://tailback.test' };

const { nextOf } = await import('../../../src/dashboard/ui/flowsource.js');
const { ACTS } = await import('../../../src/dashboard/ui/screens/audit.js');
const source = join(import.meta.dirname, '../../../src');

test('every queue is looked at in its turn: stages first, then those with rates, then those that wait', () => {
  const figures = new Map([
    ['idle', { counts: { ready: 0 } }],
    ['waits', { counts: { ready: 3 } }],
    ['works', { counts: { ready: 0 }, rates_per_s: { committed: 0.1 } }],
    ['stage', { counts: { ready: 0 } }],
  ]);
  const lookedAt = new Map();
  const look = (/** @type {number} */ round, /** @type {number} */ most) => {
    const some = nextOf(figures.keys(), (name) => figures.get(name), new Set(['stage']), lookedAt, most);
    for (const name of some) lookedAt.set(name, round);
    return some;
  };
  assert.deepEqual(look(1, 2), ['stage', 'works']);
  assert.deepEqual(look(2, 2), ['waits', 'idle']);
  assert.deepEqual(look(3, 3), ['stage', 'works', 'waits']);
  assert.deepEqual(look(4, 1), ['idle']);
});

test('the audit proposes the acts that the server writes', () => {
  const written = readFileSync(join(source, 'job/audit.rs'), 'utf8').split('];')[0];
  assert.deepEqual([...ACTS].sort(), [...written.matchAll(/"([a-z_]+\.[a-z_]+)"/g)].map(([, act]) => act).sort());
});

test('what people write is never read by JSON.parse', () => {
  for (const name of ['fields.js', 'push.js', 'jobedit.js', 'raw.js', 'jsonview.js'])
    assert.doesNotMatch(readFileSync(join(source, 'dashboard/ui', name), 'utf8').replace(/\/\/.*|\*.*/g, ''), /JSON\.parse/, name);
});
