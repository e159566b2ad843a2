/** The completion of commands and files in the message box. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  completed,
  filesIn,
  fitting,
  wantedAt,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/completion.mjs';

test('a command begins the message, and a file follows an @ at the beginning of a word', () => {
  assert.deepEqual(wantedAt('/rel', 4), { kind: 'workflow', query: 'rel', from: 0 });
  assert.equal(wantedAt('see /rel', 8), null);
  assert.equal(wantedAt('/release version', 16), null);
  assert.deepEqual(wantedAt('read @src/lo and', 12), { kind: 'file', query: 'src/lo', from: 5 });
  assert.equal(wantedAt('ann@example.org', 15), null);
});

test('the chosen option replaces the word at the caret', () => {
  const wanted = wantedAt('read @lo now', 8);
  assert.deepEqual(completed('read @lo now', 8, wanted, 'src/load.py'), {
    text: 'read @src/load.py now',
    caret: 18,
  });
  const options = [
    { name: 'upload', text: '' },
    { name: 'load', text: '' },
  ];
  assert.deepEqual(
    fitting(options, 'load').map(({ name }) => name),
    ['load', 'upload'],
  );
});

test('named files are read from the text that is sent', () => {
  assert.deepEqual(filesIn('compare @a.txt, @src/b.py and @c or ann@a.txt', ['a.txt', 'src/b.py', 'd']), [
    'a.txt',
    'src/b.py',
  ]);
});
