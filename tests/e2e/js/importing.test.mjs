/** The messages that the page reads from an exported conversation. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { readExport } from '../../../services/gateway/banksman/gateway/interfaces/page/static/importing.mjs';

test('an export is reduced to its messages, and another file is refused with the reason', () => {
  const events = [
    {
      type: 'run.started',
      run_id: 'r',
      seq: 1,
      data: { message_id: 'u', message: 'Hi', model: 'demo:demo', limits: {} },
    },
    { type: 'tool_call.completed', run_id: 'r', data: { result: { content: 'x'.repeat(1000) } } },
    { type: 'run.finished', run_id: 'r', data: { status: 'completed', content: 'again', tool_calls: [{}] } },
  ];
  const read = readExport(JSON.stringify({ conversation: { title: 'Cranes' }, events }));
  assert.equal(read.title, 'Cranes');
  assert.deepEqual(
    read.events.map(({ type }) => type),
    ['run.started', 'run.finished'],
  );
  assert.deepEqual(Object.keys(JSON.parse(JSON.stringify(read.events[1].data))), ['status']);
  assert.throws(() => readExport('# Cranes'), /not JSON/);
  assert.throws(() => readExport('{"events": []}'), /not an exported conversation/);
});
