// Axes, gaps and rates of the charts, and what forms make of what is written: `node --test tests/ui/`.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { object, parseDuration, READ, writeDuration } from '../../../src/dashboard/ui/fields.js';
import * as format from '../../../src/dashboard/ui/format.js';
import { hasGap, nearest, timeTicks, valueTicks } from '../../../src/dashboard/ui/scale.js';
import { Series } from '../../../src/dashboard/ui/series.js';

test('the lines of an axis are round, few, and not below the figures', () => {
  for (const kind of ['count', 'number', 'duration']) {
    for (let most = 0.001; most < 1e15; most *= 1.37) {
      const ticks = valueTicks(most, kind);
      assert.equal(ticks[0], 0);
      assert.ok(ticks.length >= 2 && ticks.length <= 5, `${kind} ${most}: ${ticks}`);
      assert.ok(ticks.at(-1) >= most * (1 - 1e-9), `${kind} ${most}: ${ticks}`);
      if (kind === 'count') assert.ok(ticks.every(Number.isInteger), `${most}: ${ticks}`);
    }
  }
  assert.deepEqual(valueTicks(38, 'number'), [0, 10, 20, 30, 40]);
  assert.deepEqual(valueTicks(2, 'count'), [0, 1, 2]);
  assert.deepEqual(valueTicks(0, 'duration'), [0, 1]);
  assert.deepEqual(valueTicks(50_000, 'duration'), [0, 15_000, 30_000, 45_000, 60_000]);
});

test('times at an axis are full minutes, hours or days within the range', () => {
  const to = Date.parse('2026-11-23T16:07:31Z');
  for (const ms of [900_000, 3_600_000, 86_400_000, 7 * 86_400_000]) {
    for (const most of [2, 5, 12]) {
      const ticks = timeTicks(to - ms, to, most);
      assert.ok(ticks.length >= 1 && ticks.length <= most + 1, `${ms} ${most}: ${ticks.length}`);
      assert.ok(ticks.every(({ at }) => at >= to - ms && at <= to && at % 60_000 === 0));
    }
  }
});

test('a missing step is a gap, and has no value', () => {
  assert.equal(hasGap(0, 10, 10), false);
  assert.equal(hasGap(0, 20, 10), true);
  const points = [
    [0, 1],
    [10, 2],
    [100, 3],
  ];
  assert.deepEqual(nearest(points, 6, 10), [10, 2]);
  assert.equal(nearest(points, 50, 10), undefined);
  assert.equal(nearest([], 50, 10), undefined);
});

test('a rate is of what has passed of a step', () => {
  const series = new Series(
    0,
    25_000,
    10_000,
    new Map([
      [
        'a',
        [
          [0, 50],
          [10_000, 20],
          [20_000, 1],
        ],
      ],
      ['b', [[0, 10]]],
    ]),
  );
  assert.deepEqual(series.rate(['a', 'b']), [
    [0, 6],
    [10_000, 2],
  ]); // of the last one too little is known
  assert.deepEqual(series.values(series.rate(['a'])), [5, 2, null]);
  const long = new Series(
    0,
    3_000_000,
    1_800_000,
    new Map([
      [
        'a',
        [
          [0, 1800],
          [1_800_000, 2400],
        ],
      ],
    ]),
  );
  assert.deepEqual(long.rate(['a']), [
    [0, 1],
    [1_800_000, 2],
  ]);
  assert.equal(long.sum(['a', 'none']), 4200);
});

test('durations are read as they are written', () => {
  for (const [written, ms] of [
    ['0', 0],
    ['1500', 1500],
    ['90s', 90_000],
    ['1h 30m', 5_400_000],
    ['250 ms', 250],
    ['1.5 s', 1500],
    ['2 d', 172_800_000],
  ])
    assert.equal(parseDuration(written), ms);
  for (const written of ['', 'soon', '5 x', '-5s', '1h30']) assert.equal(parseDuration(written), undefined, written);
  for (const ms of [0, 1, 999, 1000, 61_001, 86_400_000, 31_536_000_000]) assert.equal(parseDuration(writeDuration(ms)), ms);
});

test('numbers and payloads go to the server as they were written', () => {
  assert.equal(READ.whole('9223372036854775807', 'n'), '9223372036854775807');
  assert.equal(READ.whole('1,000,000', 'n'), '1000000');
  assert.equal(READ.whole('007', 'n'), '7');
  assert.throws(() => READ.whole('1.5', 'n'), /whole number/);
  assert.equal(
    object([
      ['a', '1.10'],
      ['b"', 'null'],
    ]),
    '{"a": 1.10, "b\\"": null}',
  );
  assert.throws(() => READ.json('{"a": 1}, "key": 2', 'The payload'), /The payload is no JSON: line 1, column 9: ", \\"key\\": 2"/);
  assert.throws(() => READ.json('{"a":\n1.10,}', 'The payload'), /line 2, column 6/);
  assert.equal(READ.json('{"a": 12345678901234567890, "a": 1.10}', 'n'), '{"a": 12345678901234567890, "a": 1.10}');
});

test('what is no time has no duration', () => {
  assert.equal(format.duration(NaN), '–');
  assert.equal(format.ago('2026-99-99T99:99:99Z'), '–');
});

test('what goes on while one reads keeps its width; all and nothing are said only where that is so', (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 1_800_000_000_000 }); // no second goes by between two looks
  assert.equal(format.duration(1000), '1 s');
  assert.equal(format.duration(9900), '9.9 s');
  assert.equal(format.duration(1_200_000), '20 m');
  assert.equal(format.duration(1_200_000, true), '20 m 0 s');
  assert.equal(format.ago(new Date(Date.now() - 1_200_000).toISOString()), '20 m 0 s ago');
  assert.equal(format.percent(100, 100), '100 %');
  assert.equal(format.percent(9999, 10_000), '99.9 %');
  assert.equal(format.percent(1_999_999, 2_000_000), '99.9 %');
  assert.equal(format.percent(1, 1_000_000), '< 0.1 %');
  assert.equal(format.percent(0, 10), '0.0 %');
  assert.equal(format.percent(99, 100), '99 %');
});
