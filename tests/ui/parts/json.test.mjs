// The tokenizer of the dashboard: `scripts/ui-check parts`.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  cut,
  hasUnseen,
  members,
  nameOf,
  NotJson,
  plain,
  readJobs,
  token,
  unseenEscaped,
  value,
  visible,
  whole,
} from '../../../src/dashboard/ui/json.js';

/** What was read, put together again from its tokens. */
function tokens(text) {
  const all = [];
  for (let at = 0; ;) {
    const one = token(text, at);
    if (one.kind === 'end') return all;
    all.push([one.kind, text.slice(one.start, one.end)]);
    at = one.end;
  }
}

const slice = (text, { start, end }) => text.slice(start, end);

test('tokens are the text as it is written', () => {
  assert.deepEqual(tokens(' {"a" : 1.10,\n"b":[12345678901234567890, -0.0e-07, true,null]}'), [
    ['{', '{'],
    ['string', '"a"'],
    [':', ':'],
    ['number', '1.10'],
    [',', ','],
    ['string', '"b"'],
    [':', ':'],
    ['[', '['],
    ['number', '12345678901234567890'],
    [',', ','],
    ['number', '-0.0e-07'],
    [',', ','],
    ['word', 'true'],
    [',', ','],
    ['word', 'null'],
    [']', ']'],
    ['}', '}'],
  ]);
  assert.deepEqual(tokens('"a\\"\\\\" "\\u00e9"'), [
    ['string', '"a\\"\\\\"'],
    ['string', '"\\u00e9"'],
  ]);
});

test('JSON is what JSON.parse takes, and nothing else', () => {
  const good = [
    '0',
    '-0',
    '1e5',
    '1E+5',
    '0.10',
    '""',
    '"\\/\\b"',
    '{}',
    '[]',
    '[[],{}]',
    '{"":{"":[]}}',
    ' \t\r\n1 ',
    '"\u2028\u202e"',
    '{"a":1,"a":2}',
    '"\\ud800"',
    '[true,false,null]',
  ];
  const bad = [
    '',
    ' ',
    '01',
    '1.',
    '.5',
    '-',
    '+1',
    '1e',
    '0x1',
    'NaN',
    'tru',
    'truex',
    'nullnull',
    '"',
    '"\\"',
    '"\\x"',
    '"\\u12g4"',
    '"\n"',
    '"\u0000"',
    '{',
    '[',
    ']',
    '{]',
    '[}',
    '{"a"}',
    '{"a":}',
    '{"a":1,}',
    '{,}',
    '{1:1}',
    '[1,]',
    '[,1]',
    '[1 2]',
    '{"a" 1}',
    '{"a":1 "b":2}',
    '1 2',
    '[1]]',
    "'a'",
    '\u00a01',
    '{"a"::1}',
    '[:]',
    '{"a":1]',
    '1a',
    '1-2',
    '[}]',
  ];
  for (const text of good) {
    JSON.parse(text);
    assert.equal(slice(text, whole(text)), text.trim(), text);
  }
  for (const text of bad) {
    assert.throws(() => JSON.parse(text), SyntaxError, text);
    assert.throws(() => whole(text), NotJson, text);
  }
});

test('random texts are JSON where JSON.parse says so', () => {
  const pieces = [
    '{',
    '}',
    '[',
    ']',
    ',',
    ':',
    '"a"',
    '"',
    '\\',
    '1',
    '-',
    '0',
    '.',
    'e',
    'true',
    'null',
    ' ',
    '\n',
    '"b":',
    '[1]',
    '{"c":2}',
  ];
  let seed = 7;
  const next = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
  let good = 0;
  for (let n = 0; n < 40_000; n++) {
    let text = '';
    for (let length = 1 + Math.floor(next() * 7); length > 0; length--) text += pieces[Math.floor(next() * pieces.length)];
    let isGood = true;
    try {
      JSON.parse(text);
    } catch {
      isGood = false;
    }
    good += Number(isGood);
    let found = true;
    try {
      whole(text);
    } catch (error) {
      assert.ok(error instanceof NotJson, text);
      found = false;
    }
    assert.equal(found, isGood, JSON.stringify(text));
  }
  assert.ok(good > 200, `${good} were JSON`);
});

test('keys keep their order and are there as often as they are', () => {
  const text = '{"b":1,"10":2,"a":3,"2":4,"b":5,"__proto__":6}';
  assert.deepEqual(
    [...members(text, whole(text))].map((one) => [nameOf(text, one.key), slice(text, one.value)]),
    [
      ['b', '1'],
      ['10', '2'],
      ['a', '3'],
      ['2', '4'],
      ['b', '5'],
      ['__proto__', '6'],
    ],
  );
  assert.equal(cut(text, whole(text)).b, '5');
  assert.equal(cut(text, whole(text))['__proto__'], '6');
});

test('members come one by one: the text behind them may be anything', () => {
  const text = `[1, {"a": [2]}, "x"${' '.repeat(5)}, 4]`;
  assert.deepEqual(
    [...members(text, whole(text))].map((one) => slice(text, one.value)),
    ['1', '{"a": [2]}', '"x"', '4'],
  );
  assert.deepEqual([...members('{ }', whole('{ }'))], []);
  assert.deepEqual([...members('5', whole('5'))], []);
});

test('no depth and no length is too much', () => {
  const deep = `${'['.repeat(200_000)}${']'.repeat(200_000)}`;
  assert.equal(whole(deep).end, deep.length);
  const long = `"${'x\\n'.repeat(1_000_000)}"`;
  assert.equal(whole(long).end, long.length);
  assert.equal(value(`[${'1,'.repeat(500_000)}1]`).kind, '[');
});

test('a job has the texts of what belongs to people', () => {
  const text =
    '{"jobs":[{"id":"A","payload":{"n":1.10, "n":12345678901234567890},"headers":{"b":1,"a":1.0},"errors":[{"payload":"not this"}]},' +
    '{"id":"B","payload":null,"payload_head":"{\\"a"}],"scanned":2}';
  const { jobs, scanned } = readJobs(text, 'jobs');
  assert.equal(scanned, 2);
  assert.equal(jobs[0].raw.payload, '{"n":1.10, "n":12345678901234567890}');
  assert.equal(jobs[0].raw.headers, '{"b":1,"a":1.0}');
  assert.equal(jobs[1].raw.payload, 'null');
  assert.equal(jobs[1].raw.payload_head, '"{\\"a"');
  assert.equal(jobs[1].raw.result, undefined);
  assert.equal(readJobs('{"id":"A","result":1e2}').raw.result, '1e2');
});

test('what cannot be seen is shown as an escape', () => {
  assert.equal(plain('a\u202eb\u0000c\u200bd\ufeff\u0085\u2028'), 'a\\u202eb\\u0000c\\u200bd\\ufeff\\u0085\\u2028');
  assert.equal(plain('\ud800x\u{e0041}'), '\\ud800x\\u{e0041}');
  assert.equal(plain('Grüße, 世界 👍 עברית'), 'Grüße, 世界 👍 עברית');
  assert.deepEqual(visible('a\n\tb\r', true), [
    { text: 'a\n\tb', escape: false },
    { text: '\\u000d', escape: true },
  ]);
  assert.deepEqual(visible(''), []);
  assert.ok(hasUnseen('a\u2066') && hasUnseen('a\u2066') && !hasUnseen('abc'));
});

test('JSON with escapes means the same', () => {
  const text = '{"a\u202e": "\u{e0041}\ufeffx",\n\t"b": 1.10}';
  const escaped = unseenEscaped(text);
  assert.equal(escaped, '{"a\\u202e": "\\udb40\\udc41\\ufeffx",\n\t"b": 1.10}');
  assert.deepEqual(JSON.parse(escaped), JSON.parse(text));
});

test('an error says where', () => {
  assert.throws(() => whole('{"a": 1,\n "b": x}'), /line 2, column 7: "x}"/);
  assert.throws(() => whole('{"a": '), /ends too early/);
});
