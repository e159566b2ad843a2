import assert from 'node:assert/strict';
import { test } from 'node:test';

import { signal } from '@preact/signals';

import { Drafts } from '../../../services/gateway/banksman/gateway/interfaces/page/static/stores/drafts.mjs';
import { Outbox } from '../../../services/gateway/banksman/gateway/interfaces/page/static/stores/outbox.mjs';

globalThis.document ??= { getElementById: () => null };

const run = (id, message) => ({
  id,
  status: 'completed',
  prompt: { id: message, content: 'hi' },
  entries: [],
});
const placed = (runs) =>
  runs.map((one, at) => ({ run: one, parent: runs[at - 1]?.id ?? '', at: 1, versions: [one.id] }));

/** An outbox whose requests fail while `lost` is set. */
function outboxOf({ current = null } = {}) {
  const sent = [];
  const shown = [];
  const titles = {};
  const connection = { lost: false };
  const opened = {
    currentId: signal(current?.id ?? null),
    current: signal(current),
    path: signal(current ? placed(current.runs) : []),
    stateOf: () => undefined,
    follow: () => {},
    setTitle: (id, title) => (titles[id] = title),
    showNewest: (id) => shown.push(id),
    accepted: () => {},
  };
  const request = async (frame, { id }) => {
    sent.push({ ...frame, id });
    if (connection.lost && frame.type === 'chat.send')
      throw Object.assign(new Error('No connection.'), { code: 'offline' });
    return { conversation_id: 'c1', run_id: 'c1-r1' };
  };
  const outbox = new Outbox({
    api: {},
    socket: { request },
    opened,
    drafts: new Drafts({ preferences: {}, currentId: opened.currentId }),
    open: (id) => (opened.currentId.value = id),
    onSent: () => {},
    cancel: async () => {},
  });
  return { outbox, sent, shown, titles, connection };
}

test('a message that could not be sent stays, and is sent again under the same id in the same conversation', async () => {
  const { outbox, sent, titles, connection } = outboxOf();
  connection.lost = true;
  await outbox.send('Count the cranes\nof the port');
  const [entry] = outbox.entries.value;
  assert.ok(entry.error);
  connection.lost = false;
  await outbox.resend(entry.key);
  assert.deepEqual(outbox.entries.value, []);
  assert.deepEqual(
    sent.map(({ type }) => type),
    ['conversation.create', 'chat.send', 'chat.send'],
  );
  assert.equal(sent[1].id, sent[2].id);
  assert.deepEqual(titles, { c1: 'Count the cranes' });
});

test('a chosen assistant applies to one new conversation, a chosen model to the next messages', async () => {
  const { outbox, sent } = outboxOf();
  outbox.assistant.value = 'cranes';
  outbox.model.value = 'large';
  await outbox.send('one');
  await outbox.send('two');
  const [created, first, second] = sent;
  assert.deepEqual([created.assistant, outbox.assistant.value], ['cranes', null]);
  assert.deepEqual([first.overrides, second.overrides], [{ model: 'large' }, { model: 'large' }]);
});

test('a message follows the chosen run once, and then the newest one', async () => {
  const { outbox, sent, shown } = outboxOf({
    current: { id: 'c1', runs: [run('c1-r1', 'm1'), run('c1-r2', 'm2')] },
  });
  outbox.continueAfter('c1-r1');
  await outbox.send('from there');
  await outbox.send('from the end');
  assert.deepEqual(
    sent.map(({ branch }) => branch),
    [{ after: 'm1' }, undefined],
  );
  assert.deepEqual(shown, ['c1']);
});

test('another version of a message follows the same message as the first version', async () => {
  const { outbox, sent } = outboxOf({
    current: { id: 'c1', runs: [run('c1-r1', 'm1'), run('c1-r2', 'm2')] },
  });
  await outbox.sendVersion('c1-r1', 'another beginning');
  await outbox.sendVersion('c1-r2', 'another second');
  assert.deepEqual(
    sent.map(({ branch }) => branch),
    [{ after: null }, { after: 'm1' }],
  );
});
