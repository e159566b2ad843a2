import assert from 'node:assert/strict';
import { test } from 'node:test';

import { lineRows } from '../../../services/gateway/banksman/gateway/interfaces/page/static/linediff.mjs';
import {
  codePoints,
  formatBytes,
  formatCost,
  formatDuration,
  reveal,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/text.mjs';

const shown = (text) =>
  reveal(text)
    .map((piece) => (piece.hidden ? `[${piece.text}]` : piece.text))
    .join('');

test('characters that hide or reorder text are named in place', () => {
  assert.equal(shown('rm \u202Etxt.exe'), 'rm [RLO]txt.exe');
  assert.equal(shown('a\u200Bb\u2066c\uFEFF'), 'a[ZWSP]b[LRI]c[BOM]');
  assert.equal(shown('\u001B[2J\r'), '[ESC][2J[CR]');
  assert.equal(shown('tag\u{E0041}\u00A0\u3164'), 'tag[U+E0041][NBSP][U+3164]');
});

test('ordinary text of any language stays as it is', () => {
  for (const text of ['ls -la\n\tcat x', 'naïve 日本語 עברית 😀', '']) assert.equal(shown(text), text);
});

test('offsets count code points', () => {
  assert.equal(codePoints('a😀é'), [...'a😀é'].length);
});

test('sizes, durations and costs are short; an unknown price is not zero', () => {
  assert.deepEqual([0, 1023, 1536, 5 * 1024 ** 2].map(formatBytes), ['0 B', '1023 B', '1.5 KiB', '5.0 MiB']);
  assert.deepEqual([12, 1840, 61_000, 3_660_000].map(formatDuration), [
    '12 ms',
    '1.8 s',
    '1 min 1 s',
    '1 h 1 min',
  ]);
  assert.deepEqual([59_700, 60_000, 119_700, 3_599_800, 7_200_000].map(formatDuration), [
    '1 min',
    '1 min',
    '2 min',
    '1 h',
    '2 h',
  ]);
  assert.deepEqual([null, 0, 0.00123, 1.5].map(formatCost), ['', '$0', '$0.0012', '$1.50']);
});

test('a diff keeps changed lines with their context and counts them', () => {
  const before = Array.from({ length: 20 }, (_, n) => `line ${n}`).join('\n');
  const { rows, added, removed } = lineRows(before, before.replace('line 10', 'line ten'));
  assert.deepEqual([added, removed], [1, 1]);
  assert.deepEqual(
    rows.map((row) => row.kind),
    ['skipped', 'same', 'same', 'same', 'removed', 'added', 'same', 'same', 'same', 'skipped'],
  );
  assert.equal(rows[0].text, '7 unchanged lines');
});

test('a new file has only additions', () => {
  const { rows, added, removed } = lineRows(null, 'a\nb\n');
  assert.deepEqual([rows.length, added, removed], [2, 2, 0]);
});
