/** Import of a file in several requests. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { imported } from '../../../services/gateway/banksman/gateway/interfaces/page/static/importing.mjs';

const item = (title) => ({
  title,
  product: 'claude',
  conversation_id: 'c',
  runs: 1,
  left_out: {},
  error: null,
});

test('a file is sent until all of its conversations are imported', async () => {
  const starts = [];
  const api = {
    async importFile(file, start) {
      starts.push(start);
      return start ? { items: [item('two')], next: null } : { items: [item('one')], next: 1 };
    },
  };
  const items = await imported(api, new File(['[]'], 'conversations.json'));
  assert.deepEqual(
    [starts, items.map(({ title }) => title)],
    [
      [0, 1],
      ['one', 'two'],
    ],
  );
});

test('a file above the limit is refused before it is sent', async () => {
  await assert.rejects(imported({}, { size: 65 * 1024 * 1024 }), /at most 64 MB/);
});
