import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  readEdit,
  replyFor,
  toggled,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/decisions.mjs';

const WRITE = { tool_call_id: 'w', digest: 'dw', arguments: { path: 'a.txt', content: 'one', mode: null } };
const RUN = { tool_call_id: 'r', digest: 'dr', arguments: { command: 'ls' } };
const NOTHING = { edits: {}, reason: null, remember: '' };

/** The edit of a call after one of its fields was written. */
const edited = (item, name, text) => {
  const { draft } = toggled({}, item)[item.tool_call_id];
  return readEdit(item, {
    fields: draft.fields.map((field) => (field.name === name ? { ...field, text } : field)),
  });
};

test('one decision for all calls names the calls that were shown', () => {
  assert.deepEqual(
    replyFor([WRITE, RUN], () => 'approve', { ...NOTHING, remember: 'run' }),
    { all: 'approve', remember: 'run', digests: ['dw', 'dr'] },
  );
});

test('an edited call is approved with its arguments, and a rejected one states the reason', () => {
  const edits = { w: edited(WRITE, 'content', 'two'), r: edited(RUN, 'command', 'ls -l') };
  const reply = replyFor([WRITE, RUN], (item) => (item === WRITE ? 'approve' : 'reject'), {
    ...NOTHING,
    edits,
    reason: 'too long',
  });
  assert.deepEqual(reply.decisions, [
    { tool_call_id: 'w', decision: 'approve', arguments: { path: 'a.txt', content: 'two', mode: null } },
    { tool_call_id: 'r', decision: 'reject', reason: 'too long' },
  ]);
});

test('one decision with edited arguments or a reason names each call', () => {
  const edits = { r: edited(RUN, 'command', 'ls -l') };
  assert.deepEqual(replyFor([RUN], () => 'approve', { ...NOTHING, edits }).decisions, [
    { tool_call_id: 'r', decision: 'approve', arguments: { command: 'ls -l' } },
  ]);
  assert.deepEqual(replyFor([RUN], () => 'reject', { ...NOTHING, reason: 'no' }).decisions, [
    { tool_call_id: 'r', decision: 'reject', reason: 'no' },
  ]);
});

test('an edit that changes nothing is not sent', () => {
  const edits = { w: edited(WRITE, 'content', 'one') };
  assert.deepEqual(
    replyFor([WRITE], () => 'approve', { ...NOTHING, edits }),
    { all: 'approve', digests: ['dw'] },
  );
});

test('without the schema of its tool an argument keeps its type', () => {
  assert.ok(readEdit(WRITE, { json: '{"path": 1, "content": "one"}' }).problem);
  assert.ok(readEdit(WRITE, { json: '[]' }).problem);
  assert.ok(readEdit(WRITE, { json: '{' }).problem);
  assert.equal(readEdit(WRITE, { json: '{"path": "b", "content": "one", "mode": 1}' }).problem, null);
});

test('an edit is begun and undone, unless the call may not be edited', () => {
  const begun = toggled({}, RUN);
  assert.deepEqual(begun.r.value, RUN.arguments);
  assert.deepEqual(toggled(begun, RUN), {});
  assert.deepEqual(toggled({}, { ...RUN, editable: false }), {});
});
