import assert from 'node:assert/strict';
import { test } from 'node:test';

import { signal } from '@preact/signals';

import { RequestError } from '../../../services/gateway/banksman/gateway/interfaces/page/static/client/connection.mjs';
import { Subscriptions } from '../../../services/gateway/banksman/gateway/interfaces/page/static/client/following.mjs';
import { OpenConversations } from '../../../services/gateway/banksman/gateway/interfaces/page/static/stores/opened.mjs';

globalThis.document ??= { hidden: false };
globalThis.requestAnimationFrame = (action) => setImmediate(action);

const shown = () => new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
const message = (seq, content, epoch = 'e1') => ({
  type: 'message.completed',
  seq,
  prev_seq: seq - 1,
  log_epoch: epoch,
  conversation_id: 'c1',
  run_id: 'c1-r1',
  data: { message_id: `m${seq}`, content },
});

/** An open conversation over a connection whose other end is the test. */
function scene() {
  const sent = [];
  const timers = [];
  const connection = {
    ready: true,
    clock: { after: (_, action) => timers.push(action) },
    request: (frame, { id } = {}) =>
      new Promise((resolve, reject) => sent.push({ ...frame, id, resolve, reject })),
  };
  const subscriptions = new Subscriptions(connection);
  const events = [];
  const details = signal(false);
  const opened = new OpenConversations({
    api: {},
    subscriptions,
    currentId: signal('c1'),
    details,
    listed: () => ({ title: 'Cranes' }),
    onEvent: (id, { seq }) => events.push(seq),
  });
  const state = opened.follow('c1');
  return {
    opened,
    state,
    events,
    details,
    sent,
    timers,
    texts: () => state.value.runs.flatMap(({ entries }) => entries.map(({ text }) => text)),
    confirm: (epoch = 'e1', isDone = true) => {
      const place = { conversation_id: 'c1', log_epoch: epoch };
      const id = sent.findLast(({ type }) => type === 'subscribe').id;
      subscriptions.receive({ type: 'subscribed', reply_to: id, ...place });
      if (isDone) subscriptions.receive({ type: 'replay.done', ...place });
    },
    receive: (...frames) => frames.forEach((frame) => subscriptions.receive(frame)),
  };
}

test('events are folded once and in order, and all at once when the replay is done', async () => {
  const { state, events, confirm, receive, texts } = scene();
  confirm('e1', false);
  receive(message(1, 'one'), message(1, 'one'), message(2, 'two'));
  await shown();
  assert.deepEqual([texts(), events, state.value.replayed], [[], [], false]);
  receive({ type: 'replay.done', conversation_id: 'c1', seq: 2 });
  await shown();
  assert.deepEqual(
    [texts(), events, state.value.replayed, state.value.title],
    [['one', 'two'], [1, 2], true, 'Cranes'],
  );
});

test('a restored log is read from its first event under the same title', async () => {
  const { state, confirm, receive, texts } = scene();
  confirm();
  receive(message(1, 'one'), message(2, 'two'));
  await shown();
  receive({ type: 'resync_required', conversation_id: 'c1' });
  await shown();
  assert.deepEqual([texts(), state.value.title], [[], 'Cranes']);
  confirm('e2');
  receive(message(1, 'restored', 'e2'));
  await shown();
  assert.deepEqual(texts(), ['restored']);
});

test('a refused subscription shows its error until the conversation is read', async () => {
  const { state, confirm, sent, timers } = scene();
  sent[0].reject(new RequestError({ code: 'unavailable', message: 'No broker.', retryable: true }));
  await shown();
  assert.equal(state.value.replayed, true);
  assert.ok(state.value.error);
  timers[0]();
  confirm();
  await shown();
  assert.equal(state.value.error, null);
});

test('a conversation that cannot be read is requested again on the next connection', async () => {
  const { opened, state, sent } = scene();
  sent[0].reject(new RequestError({ code: 'not_found', message: 'No such conversation.' }));
  await shown();
  assert.ok(state.value.error);
  opened.subscribeAgain();
  assert.deepEqual(
    sent.map(({ type }) => type),
    ['subscribe', 'unsubscribe', 'subscribe'],
  );
});

test('live output is received with details or with an open terminal', async () => {
  const { opened, details, sent, confirm } = scene();
  confirm();
  const end = opened.followOutput();
  end();
  details.value = true;
  opened.subscribeAgain();
  assert.deepEqual(
    sent.map(({ detail }) => detail),
    ['steps', 'full', 'steps', 'full'],
  );
});
