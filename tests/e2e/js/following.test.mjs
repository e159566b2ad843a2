import assert from 'node:assert/strict';
import { test } from 'node:test';

import { RequestError } from '../../../services/gateway/banksman/gateway/interfaces/page/static/client/connection.mjs';
import {
  LogRestored,
  Subscriptions,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/client/following.mjs';

const event = (seq, { prev = seq - 1, type = 'message.completed', epoch = 'e1' } = {}) => ({
  type,
  seq,
  prev_seq: prev,
  log_epoch: epoch,
  conversation_id: 'c1',
  data: {},
});
const delta = { type: 'message.delta', conversation_id: 'c1', data: {} };
const refusal = (retryable) =>
  new RequestError({ code: 'unavailable', message: 'No broker.', retryable, retry_after_s: 3 });

/** Subscriptions over a connection whose other end is the test. */
function scene() {
  const sent = [];
  const timers = [];
  const connection = {
    ready: true,
    clock: { after: (seconds, action) => timers.push({ seconds, action }) },
    request: (frame, { id } = {}) =>
      new Promise((resolve, reject) => sent.push({ ...frame, id, resolve, reject })),
  };
  const subscriptions = new Subscriptions(connection);
  const requests = () => sent.filter(({ type }) => type === 'subscribe');
  return {
    connection,
    subscriptions,
    sent,
    timers,
    requests,
    follow: (options) => subscriptions.follow('c1', { afterSeq: 0, detail: 'steps', live: true, ...options }),
    receive: (...frames) => frames.forEach((frame) => subscriptions.receive(frame)),
    confirm: (epoch = 'e1', { id } = requests().at(-1), more = {}) =>
      subscriptions.receive({
        type: 'subscribed',
        reply_to: id,
        conversation_id: 'c1',
        log_epoch: epoch,
        ...more,
      }),
  };
}

/** The frames that a follower delivers without waiting. */
const numbers = (follower) => follower.buffer.splice(0).map(({ seq, type }) => seq ?? type);

test('a repeated event is dropped, and a lower detail leaves events out', () => {
  const { follow, confirm, receive, requests } = scene();
  const follower = follow({ afterSeq: 4 });
  confirm();
  receive(delta, event(5), event(5), event(4), event(9, { prev: 5 }));
  assert.deepEqual(numbers(follower), ['message.delta', 5, 9]);
  assert.equal(requests().length, 1);
});

test('a missing event is requested once and then delivered in order', () => {
  const { follow, confirm, receive, requests } = scene();
  const follower = follow();
  confirm();
  receive(event(1), event(3), event(4));
  assert.deepEqual(
    requests().map(({ after_seq: after }) => after),
    [0, 1],
  );
  confirm();
  receive(event(2), event(3), event(4));
  assert.deepEqual(numbers(follower), [1, 2, 3, 4]);
});

test('a log without its first events is read from the oldest stored event', () => {
  const { follow, confirm, receive, requests } = scene();
  const follower = follow();
  confirm();
  receive(event(8, { prev: 0 }), event(9));
  assert.deepEqual(numbers(follower), [8, 9]);
  assert.equal(requests().length, 1);
});

test('a restored log ends the follower, and the next one begins with the restored log', async () => {
  const { follow, confirm, receive, requests } = scene();
  const follower = follow();
  confirm();
  receive(event(1));
  assert.equal((await follower.next()).value.seq, 1);
  receive(event(2, { epoch: 'e2' }));
  await assert.rejects(follower.next(), LogRestored);
  const next = follow();
  receive(event(2), delta);
  confirm('e2');
  receive(event(1, { epoch: 'e2' }));
  assert.deepEqual(numbers(next), [1]);
  assert.deepEqual(
    requests().map(({ log_epoch: epoch }) => epoch),
    [undefined, undefined],
  );
});

test('another detail loses and repeats nothing, although the earlier subscription still sends frames', () => {
  const { follow, confirm, receive, requests } = scene();
  const follower = follow();
  confirm();
  receive(event(1));
  follower.subscribe('full');
  receive(event(2), delta);
  confirm();
  receive(event(2, { prev: 1 }), event(3));
  assert.deepEqual(numbers(follower), [1, 2, 'message.delta', 3]);
  assert.deepEqual(
    requests().map(({ detail, after_seq: after }) => [detail, after]),
    [
      ['steps', 0],
      ['full', 1],
    ],
  );
});

test('a second follower takes no frame of the subscription before its own', () => {
  const { follow, confirm, receive } = scene();
  const first = follow({ afterSeq: 2, detail: 'final', live: false });
  confirm();
  const second = follow();
  receive(event(3), delta);
  confirm();
  receive(event(1), event(2, { type: 'iteration.started' }), event(3), event(4));
  assert.deepEqual(numbers(first), [3, 4]);
  assert.deepEqual(numbers(second), [1, 2, 3, 4]);
});

test('a slow follower receives dropped events once it has read the earlier ones', async () => {
  const { follow, confirm, receive, requests } = scene();
  const follower = follow();
  confirm();
  for (let seq = 1; seq <= 1001; seq += 1) receive(event(seq));
  for (let seq = 1; seq <= 1000; seq += 1) assert.equal((await follower.next()).value.seq, seq);
  assert.equal(requests().at(-1).after_seq, 1000);
  confirm();
  receive(event(1001));
  assert.deepEqual(numbers(follower), [1001]);
});

test('the begin and the end of the stored events are delivered in order on request', () => {
  const { follow, confirm, receive } = scene();
  const follower = follow({ marks: true });
  const other = follow();
  confirm();
  receive(event(1), { type: 'replay.done', conversation_id: 'c1', seq: 1 }, event(2));
  assert.deepEqual(numbers(follower), ['subscribed', 1, 1, 2]);
  assert.deepEqual(numbers(other), [1, 2]);
});

test('a temporary refusal is reported and the subscription requested again; another refusal ends the follower', async () => {
  const { follow, requests, timers } = scene();
  const retries = [];
  const follower = follow({ onRetry: (error) => retries.push(error.code) });
  const ended = assert.rejects(follower.next(), { code: 'unavailable' });
  requests()[0].reject(refusal(true));
  await Promise.resolve();
  await Promise.resolve();
  assert.deepEqual([retries, timers.map(({ seconds }) => seconds)], [['unavailable'], [3]]);
  timers[0].action();
  requests()[1].reject(refusal(false));
  await ended;
});

test('a follower may begin with the newest runs, and reads on after them', () => {
  const { follow, confirm, receive, requests, subscriptions } = scene();
  const follower = follow({ newestRuns: 20 });
  assert.equal(requests()[0].newest_runs, 20);
  confirm('e1', requests()[0], { after_seq: 900 });
  subscriptions.resume();
  assert.deepEqual([requests()[1].after_seq, requests()[1].newest_runs], [900, undefined]);
  confirm();
  receive(event(901), event(902));
  assert.deepEqual(numbers(follower), [901, 902]);
  const whole = follow();
  assert.deepEqual([requests()[2].after_seq, requests()[2].newest_runs], [0, undefined]);
  confirm();
  receive(event(1));
  assert.deepEqual([numbers(follower), numbers(whole)], [[], [1]]);
});
