/** A conversation as Markdown. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { markdownOf } from '../../../services/gateway/banksman/gateway/interfaces/page/static/exporting.mjs';

const frame = (seq, type, run, data) => ({
  type,
  seq,
  prev_seq: seq - 1,
  log_epoch: 'e',
  run_id: run,
  conversation_id: 'c',
  data,
});
const reply = (id, text) => ({ message_id: id, role: 'assistant', content: text });

test('the shown path is exported with its calls, and fences hold the fences of a command', () => {
  const text = markdownOf({ conversation_id: 'c', title: 'Cranes' }, [
    frame(1, 'run.started', 'c-1', { message_id: 'u1', message: 'First', model: 'demo:demo' }),
    frame(2, 'message.completed', 'c-1', reply('a1', 'Left out')),
    frame(3, 'run.started', 'c-2', {
      message_id: 'u2',
      message: 'Edited',
      model: 'demo:demo',
      branch: { after: null },
    }),
    frame(4, 'tool_call.requested', 'c-2', {
      tool_call_id: 'k',
      name: 'bash',
      arguments: { command: 'echo ```' },
    }),
    frame(5, 'message.completed', 'c-2', reply('a2', 'Done.')),
  ]);
  assert.equal(
    text,
    '# Cranes\n\n## You\n\nEdited\n\n## Agent · demo:demo\n\n````\nbash: echo ```\n````\n\nDone.\n',
  );
});

test('a workflow that was started in the conversation is named', () => {
  const text = markdownOf({ conversation_id: 'c', title: 'Cranes' }, [
    frame(1, 'run.started', 'c-1', { message_id: 'u1', message: 'Announce it', model: 'demo:demo' }),
    frame(2, 'workflow.linked', 'c-1', {
      workflow: 'announce',
      workflow_run_id: 'w-1',
      workflow_conversation_id: 'w',
    }),
    frame(3, 'message.completed', 'c-1', reply('a1', 'Done.')),
  ]);
  assert.match(text, /\n\n> Started the workflow announce\n\nDone\.\n$/);
});

test('values of users and lost events are exported too', () => {
  const text = markdownOf({ conversation_id: 'c', title: 'Cranes' }, [
    frame(1, 'run.started', 'c-1', { message_id: 'u1', message: 'First', model: 'workflow:announce' }),
    frame(2, 'input.requested', 'c-1', { request_id: 'i1', message: 'Which crane?', schema: {} }),
    frame(3, 'input.resolved', 'c-1', { request_id: 'i1', value: 'north', by: 'ada' }),
    frame(4, 'run.finished', 'c-1', { status: 'completed', content: '' }),
    frame(5, 'history.cut', null, { first_missing: 5, set_aside: 0 }),
  ]);
  assert.match(text, /> Which crane\?\n\n```\n"north"\n```\n\n> A part of this conversation was lost: .*\n$/);
});
