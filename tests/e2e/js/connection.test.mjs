import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  Connection,
  RequestError,
  backoff,
  reactionTo,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/client/connection.mjs';

/** A clock that only the test advances. */
class Clock {
  now = 0;
  timers = new Set();
  /** How many timers were set. */
  set = 0;

  after = (seconds, action) => {
    this.set += 1;
    const timer = { at: this.now + seconds, action };
    this.timers.add(timer);
    return timer;
  };

  cancel = (timer) => this.timers.delete(timer);

  advance(seconds) {
    const end = this.now + seconds;
    for (;;) {
      const [next] = [...this.timers].filter((timer) => timer.at <= end).sort((a, b) => a.at - b.at);
      if (!next) break;
      this.timers.delete(next);
      this.now = next.at;
      next.action();
    }
    this.now = end;
  }
}

/** A socket whose other end is the test. */
class Peer {
  readyState = 0;
  sent = [];

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close() {
    this.readyState = 3;
  }

  accept() {
    this.readyState = 1;
    this.onopen();
  }

  receive(frame) {
    this.onmessage({ data: JSON.stringify(frame) });
  }

  drop(code) {
    this.readyState = 3;
    this.onclose({ code, reason: '' });
  }

  sentTypes() {
    return this.sent.map((frame) => frame.type);
  }
}

function scene({ random = () => 1, busy = () => false } = {}) {
  const clock = new Clock();
  const peers = [];
  const states = [];
  const welcomes = [];
  const frames = [];
  const connection = new Connection({
    open: () => (peers.push(new Peer()), peers.at(-1)),
    hello: () => ({ token: 'secret' }),
    onWelcome: (frame) => welcomes.push(frame),
    onFrame: (frame) => frames.push(frame),
    onState: (state) => states.push(state),
    clock,
    random,
    busy,
  });
  const online = () => {
    peers.at(-1).accept();
    peers.at(-1).receive({ type: 'welcome', heartbeat_s: 20 });
  };
  return { clock, peers, states, welcomes, frames, connection, online };
}

test('hello goes first and carries the token; welcome makes the connection ready', () => {
  const { connection, peers, states, online } = scene();
  connection.connect();
  online();
  assert.equal(peers[0].sent[0].type, 'hello');
  assert.equal(peers[0].sent[0].token, 'secret');
  assert.equal(states.at(-1).phase, 'online');
});

test('a request made while offline is sent after welcome, and again under the same id after a reconnection', async () => {
  const { connection, peers, online, clock } = scene();
  connection.connect();
  const answer = connection.request({ type: 'chat.send' });
  online();
  const first = peers[0].sent.find((frame) => frame.type === 'chat.send');
  peers[0].drop(1006);
  clock.advance(2);
  online();
  const second = peers[1].sent.find((frame) => frame.type === 'chat.send');
  assert.equal(second.id, first.id);
  peers[1].receive({ type: 'ack', reply_to: second.id, run_id: 'r' });
  assert.equal((await answer).run_id, 'r');
});

test('half of a character in a text is replaced, and whole ones are not', () => {
  const { connection, peers, online } = scene();
  connection.connect();
  online();
  connection.request({
    type: 'chat.send',
    content: [{ type: 'text', text: 'cut \ud83d, whole \ud83d\ude00' }],
  });
  assert.equal(peers[0].sent.at(-1).content[0].text, 'cut \ufffd, whole \ud83d\ude00');
});

test('a request without resend fails with the connection', async () => {
  const { connection, peers, online } = scene();
  connection.connect();
  online();
  const answer = connection.request({ type: 'subscribe' }, { resend: false });
  peers[0].drop(1012);
  await assert.rejects(answer, (error) => error instanceof RequestError && error.code === 'offline');
});

test('an error frame rejects the request with its code and message', async () => {
  const { connection, peers, online } = scene();
  connection.connect();
  online();
  const answer = connection.request({ type: 'approval.reply' });
  peers[0].receive({
    type: 'error',
    reply_to: peers[0].sent.at(-1).id,
    code: 'invalid_arguments',
    message: 'command must be a string',
    retryable: false,
  });
  await assert.rejects(answer, { code: 'invalid_arguments', message: 'command must be a string' });
});

test('silence for one heartbeat sends a ping, for two drops the connection', () => {
  const { connection, peers, online, clock, states } = scene();
  connection.connect();
  online();
  clock.advance(19);
  assert.equal(peers[0].sentTypes().includes('ping'), false);
  clock.advance(2);
  assert.equal(peers[0].sentTypes().includes('ping'), true);
  clock.advance(18.5);
  assert.equal(states.at(-1).phase, 'online');
  clock.advance(0.5);
  assert.equal(states.at(-1).phase, 'offline');
  assert.equal(peers[0].readyState, 3);
});

test('the frames of a replay do not set a timer each', () => {
  const { connection, peers, online, clock } = scene();
  connection.connect();
  online();
  clock.advance(10);
  const before = clock.set;
  for (let seq = 1; seq <= 1000; seq += 1) peers[0].receive({ type: 'run.started', seq, data: {} });
  assert.equal(clock.set - before, 1);
  clock.advance(19);
  assert.equal(peers[0].sentTypes().includes('ping'), false);
  clock.advance(1);
  assert.equal(peers[0].sentTypes().includes('ping'), true);
});

test('a pong keeps the connection', () => {
  const { connection, peers, online, clock, states } = scene();
  connection.connect();
  online();
  clock.advance(21);
  peers[0].receive({ type: 'pong' });
  clock.advance(19);
  assert.equal(states.at(-1).phase, 'online');
});

test('a socket that does not open is dropped', () => {
  const { connection, clock, states } = scene();
  connection.connect();
  clock.advance(15);
  assert.equal(states.at(-1).phase, 'offline');
});

test('back-off stays within 2 seconds while a gateway restarts, later within 30, and is jittered over the whole range', () => {
  assert.equal(
    backoff(0, () => 0),
    0.5,
  );
  for (const attempt of [0, 1, 6, 11])
    assert.equal(
      backoff(attempt, () => 1),
      2,
    );
  assert.equal(
    backoff(12, () => 1),
    4,
  );
  assert.equal(
    backoff(14, () => 1),
    16,
  );
  assert.equal(
    backoff(50, () => 1),
    30,
  );
  assert.equal(
    backoff(50, () => 0),
    0.5,
  );
});

test('a draining server sets the delay', () => {
  const { connection, peers, online, states } = scene();
  connection.connect();
  online();
  peers[0].receive({ type: 'server.draining', reconnect_after_s: 2.5 });
  peers[0].drop(1012);
  assert.deepEqual(states.at(-1), { phase: 'offline', retryInS: 2.5 });
});

test('a close code selects retry, login, reload or stop', () => {
  assert.equal(reactionTo(4401), 'unauthorized');
  assert.equal(reactionTo(4426), 'outdated');
  assert.deepEqual([1000, 1009, 4400, 4403, 4409].map(reactionTo), Array(5).fill('stopped'));
  const again = [1001, 1005, 1006, 1011, 1012, 1013, 1014, 4408, 4429, 4508];
  assert.deepEqual(again.map(reactionTo), Array(10).fill('retry'));
});

test('a gateway that answers nothing is lost within five seconds while a reply is expected', () => {
  for (const [expects, begin] of [
    [false, (connection) => void connection.request({ type: 'chat.send' })],
    [true, (connection, peer) => peer.receive({ type: 'run.started' })],
    [false, (connection) => connection.probe()],
  ]) {
    const { connection, peers, clock, online, states } = scene({ busy: () => expects });
    connection.connect();
    online();
    begin(connection, peers[0]);
    clock.advance(4.6);
    assert.ok(states.some(({ phase }) => phase === 'offline'));
  }
});

test('an idle connection is not probed before its heartbeat', () => {
  const { connection, peers, clock, online } = scene();
  connection.connect();
  online();
  clock.advance(19);
  assert.deepEqual(
    peers[0].sent.filter((frame) => frame.type === 'ping'),
    [],
  );
});

test('a rate-limited client waits at least five seconds', () => {
  const { connection, peers, online, states } = scene({ random: () => 0 });
  connection.connect();
  online();
  peers[0].drop(4429);
  assert.equal(states.at(-1).retryInS, 5);
});

test('a request from onWelcome is sent once', () => {
  const { connection, peers, online } = scene();
  connection.onWelcome = () => connection.request({ type: 'subscribe' }, { resend: false }).catch(() => {});
  connection.connect();
  online();
  assert.deepEqual(peers[0].sentTypes(), ['hello', 'subscribe']);
});
