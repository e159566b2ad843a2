import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  coloured,
  lastState,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/terminal.mjs';

test('colours become classes until they are reset', () => {
  assert.deepEqual(coloured('a \x1b[1;31mred\x1b[0m b'), [
    { text: 'a ', style: '' },
    { text: 'red', style: 'bold ansi-red' },
    { text: ' b', style: '' },
  ]);
  assert.deepEqual(coloured('\x1b[92mgreen\x1b[39m\x1b[4mplain'), [
    { text: 'green', style: 'ansi-green' },
    { text: 'plain', style: '' },
  ]);
  assert.deepEqual(coloured(''), []);
});

test('text that is still written shows the last state of each line', () => {
  assert.equal(lastState('10%\r20%\r30%'), '30%');
  assert.equal(lastState('10%\r'), '10%');
  assert.equal(lastState('one\r\ntwo\r\n'), 'one\ntwo\n');
  assert.equal(lastState('\x1b]0;title\x07a\x1b[2Kb\x1b[31mc'), 'ab\x1b[31mc');
});
