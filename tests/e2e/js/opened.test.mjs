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
function scene({ events: read = async () => [], namesMessage = false } = {}) {
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
    api: { events: read },
    subscriptions,
    currentId: signal('c1'),
    details,
    namesMessage: () => namesMessage,
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
    confirm: (epoch = 'e1', isDone = true, more = {}) => {
      const place = { conversation_id: 'c1', log_epoch: epoch };
      const id = sent.findLast(({ type }) => type === 'subscribe').id;
      subscriptions.receive({ type: 'subscribed', reply_to: id, ...place, ...more });
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

test('the newest runs are shown first, and what arrives while the earlier events are read is kept', async () => {
  const reads = [];
  const events = (id, options) =>
    new Promise((resolve, reject) => reads.push({ id, ...options, resolve, reject }));
  const { opened, state, sent, confirm, receive, texts } = scene({ events });
  assert.equal(sent[0].newest_runs, 20);
  confirm('e1', false, { after_seq: 2 });
  receive(message(3, 'three'), { type: 'replay.done', conversation_id: 'c1', seq: 3 });
  while (!reads.length) await shown();
  assert.deepEqual([texts(), state.value.earlier, state.value.replayed], [['three'], true, true]);
  receive({ ...message(4, 'four'), run_id: 'c1-r2' });
  await shown();
  opened.setTitle('c1', 'Renamed');
  opened.accepted('c1', { run_id: 'c1-r3', message_id: 'u3', content: 'Sent', ts: '2026-11-29T09:00:00Z' });
  assert.deepEqual(
    { ...reads[0], resolve: 0, reject: 0 },
    {
      id: 'c1',
      through: 2,
      detail: 'steps',
      resolve: 0,
      reject: 0,
    },
  );
  reads[0].resolve([message(1, 'one'), message(2, 'two')]);
  await shown();
  assert.deepEqual(
    [texts(), state.value.earlier, state.value.replayed, state.value.title, state.value.lastSeq],
    [['one', 'two', 'three', 'four'], false, true, 'Renamed', 4],
  );
  assert.equal(state.value.runs.at(-1).prompt.text, 'Sent');
});

test('earlier events of a log that was restored meanwhile are dropped', async () => {
  const reads = [];
  const events = () => new Promise((resolve) => reads.push(resolve));
  const { state, confirm, receive, texts } = scene({ events });
  confirm('e1', true, { after_seq: 2 });
  while (!reads.length) await shown();
  receive({ type: 'resync_required', conversation_id: 'c1' });
  await shown();
  confirm('e2');
  receive(message(1, 'restored', 'e2'));
  reads[0]([message(1, 'one'), message(2, 'two')]);
  await shown();
  assert.deepEqual([texts(), state.value.earlier], [['restored'], false]);
});

test('a conversation whose earlier events cannot be read shows the reason beside the newest runs', async () => {
  const events = async () => {
    throw Object.assign(new Error('No such conversation.'), { status: 404 });
  };
  const { opened, sent, state, confirm, receive, texts } = scene({ events });
  confirm('e1', false, { after_seq: 2 });
  receive(message(3, 'three'), { type: 'replay.done', conversation_id: 'c1', seq: 3 });
  while (!state.value.error) await shown();
  assert.deepEqual([texts(), state.value.error], [['three'], 'No such conversation.']);
  opened.subscribeAgain();
  assert.deepEqual(
    sent.map(({ type, after_seq: after }) => [type, after]),
    [
      ['subscribe', 0],
      ['unsubscribe', undefined],
      ['subscribe', 0],
    ],
  );
});

test('a conversation that is opened at a message is read as a whole', () => {
  const { sent } = scene({ namesMessage: true });
  assert.equal(sent[0].newest_runs, undefined);
});
