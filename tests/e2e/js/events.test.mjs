import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  activity,
  emptyConversation,
  fold,
  foldAccepted,
  foldReplayDone,
  foldSubscribed,
  isBusy,
  openRun,
  outcomeOf,
  pendingApprovals,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/events.mjs';

const RUN = 'c1-r1';

/** Numbers durable frames in place of a gateway. */
function recorder() {
  let seq = 0;
  const frame = (type, data, extra = {}) => ({ type, data, run_id: RUN, conversation_id: 'c1', ...extra });
  return {
    live: frame,
    stored(type, data, extra = {}) {
      seq += 1;
      return {
        ...frame(type, data, extra),
        seq,
        prev_seq: seq - 1,
        log_epoch: 'e1',
        ts: `2030-01-01T00:00:0${seq % 10}Z`,
      };
    },
  };
}

const foldAll = (frames, from = emptyConversation('c1')) => frames.reduce(fold, from);
const started = (log) =>
  log.stored('run.started', {
    message_id: 'm1',
    message: 'hello',
    model: 'demo:x',
    limits: { max_iterations: 10 },
  });
const finished = (log, over = {}) =>
  log.stored('run.finished', {
    status: 'completed',
    content: 'done',
    iterations: 1,
    tool_calls: [],
    usage: {},
    ...over,
  });
const texts = (conversation) =>
  conversation.runs[0].entries.filter((entry) => entry.kind === 'message').map((entry) => entry.text);

test('a run shows the message of the user, the streamed reply once, and its outcome', () => {
  const log = recorder();
  const conversation = foldAll([
    started(log),
    log.stored('iteration.started', { n: 1, max: 10 }),
    log.live('message.delta', { message_id: 'a1', offset: 0, text: 'do' }),
    log.live('message.delta', { message_id: 'a1', offset: 2, text: 'ne' }),
    log.stored('message.completed', {
      message_id: 'a1',
      role: 'assistant',
      content: 'done',
      finish_reason: 'stop',
    }),
    finished(log),
  ]);
  const [run] = conversation.runs;
  assert.equal(run.prompt.text, 'hello');
  assert.deepEqual(texts(conversation), ['done']);
  assert.equal(run.status, 'completed');
  assert.equal(conversation.lastSeq, 4);
  assert.equal(isBusy(conversation), false);
});

test('repeated and overlapping deltas are not duplicated; offsets count code points', () => {
  const log = recorder();
  const conversation = foldAll([
    started(log),
    log.live('message.delta', { message_id: 'a1', offset: 0, text: '😀a' }),
    log.live('message.delta', { message_id: 'a1', offset: 0, text: '😀a' }),
    log.live('message.delta', { message_id: 'a1', offset: 1, text: 'ab😀' }),
    log.live('message.delta', { message_id: 'a1', offset: 4, text: '!' }),
  ]);
  assert.deepEqual(texts(conversation), ['😀ab😀!']);
});

test('a client that joins in the middle of a message shows its rest until the complete message replaces it', () => {
  const log = recorder();
  const joined = foldAll([
    started(log),
    log.live('message.delta', { message_id: 'a1', offset: 10, text: 'tail' }),
    log.live('message.delta', { message_id: 'a1', offset: 14, text: '!' }),
  ]);
  assert.deepEqual(texts(joined), ['tail!']);
  const whole = fold(
    joined,
    log.stored('message.completed', { message_id: 'a1', role: 'assistant', content: 'the whole tail!' }),
  );
  assert.deepEqual(texts(whole), ['the whole tail!']);
});

test('text is never appended over a gap: it is shown as missing until the stored message replaces it', () => {
  const log = recorder();
  const live = foldAll([
    started(log),
    log.live('message.delta', { message_id: 'a1', offset: 0, text: 'The load is ' }),
    log.live('message.delta', { message_id: 'a1', offset: 20, text: 'tonnes.' }),
  ]);
  const [message] = live.runs[0].entries;
  assert.deepEqual([message.text, message.gap], ['The load is ', true]);
  const stored = fold(
    live,
    log.stored('message.completed', {
      message_id: 'a1',
      role: 'assistant',
      content: 'The load is 40 tonnes.',
    }),
  );
  assert.deepEqual(
    [stored.runs[0].entries[0].text, stored.runs[0].entries[0].gap],
    ['The load is 40 tonnes.', undefined],
  );
});

test('a delta that differs from the shown text begins the rest again, as after a change of the model', () => {
  const log = recorder();
  const live = foldAll([
    started(log),
    log.live('message.delta', { message_id: 'a1', offset: 0, text: 'Good ' }),
    log.live('message.delta', { message_id: 'a1', offset: 5, text: 'morning' }),
    log.live('message.delta', { message_id: 'a1', offset: 0, text: 'Bonjour ' }),
    log.live('message.delta', { message_id: 'a1', offset: 8, text: 'le monde' }),
    log.live('message.delta', { message_id: 'a1', offset: 8, text: 'le monde' }),
  ]);
  assert.deepEqual(texts(live), ['Bonjour le monde']);
});

test('a cancel before the first other event of a run shows no run, and the run as stopping from its start', () => {
  const log = recorder();
  const early = foldAll([log.stored('run.cancel_requested', { by: 'user' })]);
  assert.deepEqual([early.runs, isBusy(early)], [[], false]);
  assert.equal(activity(fold(early, started(log)).runs[0]), 'Stopping');
});

test('a stopped run shows the stored part of its reply, and the cancellation once', () => {
  const log = recorder();
  const conversation = foldAll([
    started(log),
    log.live('message.delta', { message_id: 'a1', offset: 0, text: 'The first half' }),
    log.stored('run.cancel_requested', { by: 'user' }),
    log.stored('message.completed', {
      message_id: 'a1',
      role: 'assistant',
      content: 'The first half',
      partial: true,
    }),
    finished(log, {
      status: 'cancelled',
      content: 'The run was cancelled.',
      error: { code: 'cancelled', message: 'The run was cancelled.' },
    }),
  ]);
  const [run] = conversation.runs;
  assert.deepEqual(texts(conversation), ['The first half']);
  assert.deepEqual([run.entries[0].partial, run.entries[0].endedBy], [true, 'cancelled']);
  assert.deepEqual(outcomeOf(run.finished), { title: 'Stopped', text: '', detail: '', code: null });
});

test('text stays on the page also when the agent died before it could store it', () => {
  const log = recorder();
  const conversation = foldAll([
    started(log),
    log.live('message.delta', { message_id: 'a1', offset: 0, text: 'Only here' }),
    finished(log, {
      status: 'cancelled',
      content: 'No longer needed.',
      error: { code: 'cancelled', message: 'No longer needed.' },
    }),
  ]);
  const [message] = conversation.runs[0].entries;
  assert.deepEqual(
    [message.text, message.complete, message.partial, message.unstored],
    ['Only here', true, true, true],
  );
  assert.deepEqual(outcomeOf(conversation.runs[0].finished), {
    title: 'Stopped',
    text: 'No longer needed.',
    detail: '',
    code: null,
  });
});

test('an error is shown once, and not also as a message of the agent', () => {
  const log = recorder();
  const error = { code: 'provider_error', message: 'The model is overloaded.' };
  const conversation = foldAll([
    started(log),
    finished(log, { status: 'failed', content: error.message, error }),
  ]);
  assert.deepEqual(texts(conversation), []);
  assert.deepEqual(outcomeOf(conversation.runs[0].finished), {
    title: 'The run failed',
    text: error.message,
    detail: '',
    code: error.code,
  });
});

test('the next message replaces a message that a takeover cut off', () => {
  const log = recorder();
  const conversation = foldAll([
    started(log),
    log.live('message.delta', { message_id: 'a1', offset: 0, text: 'half of' }),
    log.live('message.delta', { message_id: 'a2', offset: 0, text: 'again' }),
  ]);
  assert.deepEqual(texts(conversation), ['again']);
});

test('deltas that arrive after the run has finished are dropped', () => {
  const log = recorder();
  const conversation = foldAll([
    started(log),
    finished(log),
    log.live('message.delta', { message_id: 'a9', offset: 0, text: 'late' }),
  ]);
  assert.deepEqual(texts(conversation), ['done']);
});

test('a compaction of the history is shown with details only', () => {
  const log = recorder();
  const compacted = { how: 'summarised', tokens_before: 90000, tokens_after: 9000, summary: 'They talked.' };
  const [run] = Object.values(foldAll([started(log), log.stored('history.compacted', compacted)]).runs);
  const [notice] = run.entries;
  assert.deepEqual([notice.kind, notice.tone, notice.detail], ['notice', 'info', true]);
  assert.match(notice.text, /is replaced by a summary.*90,000 → 9,000 tokens/);
});

test('a run that compacts shows the name of the command in place of the message, and its result', () => {
  const log = recorder();
  const asked = log.stored('run.started', {
    message_id: 'm1',
    message: 'Compact the conversation.',
    compact: true,
  });
  const conversation = foldAll([asked, finished(log, { content: 'There is nothing to compact: …' })]);
  assert.equal(conversation.runs[0].prompt.text, 'Summarise now');
  assert.equal(conversation.runs[0].compact, true);
  assert.deepEqual(texts(conversation), ['There is nothing to compact: …']);
});

test('a notice about the model is one line that is always shown', () => {
  const log = recorder();
  const [run] = Object.values(
    foldAll([started(log), log.stored('model.notice', { kind: 'repaired', text: 'A fence was removed.' })])
      .runs,
  );
  const [notice] = run.entries;
  assert.deepEqual([notice.kind, notice.tone, notice.detail], ['notice', 'warning', false]);
  assert.equal(notice.text, 'Note on the model: A fence was removed.');
});

test('the activity states why the model waits and for how long, until the next frame of the run', () => {
  const log = recorder();
  const waiting = log.live('model.waiting', {
    message_id: 'a1',
    reason: 'overloaded',
    error: '529',
    attempt: 1,
    next_attempt_s: 12,
  });
  const before = foldAll([started(log), log.stored('iteration.started', { n: 1, max: 10 }), waiting]);
  assert.match(activity(before.runs[0]), /^The model is overloaded; next attempt in 1[12] s$/);
  const newer = foldAll([{ ...waiting, data: { ...waiting.data, reason: 'a newer one' } }], before);
  assert.match(activity(newer.runs[0]), /^The model request failed; next attempt in/);
  const after = foldAll([log.live('message.delta', { message_id: 'a1', offset: 0, text: 'd' })], before);
  assert.doesNotMatch(activity(after.runs[0]), /next attempt/);
});

test('a call collects its arguments, live output and result', () => {
  const log = recorder();
  const conversation = foldAll([
    started(log),
    log.stored(
      'tool_call.requested',
      { tool_call_id: 't1', name: 'bash', arguments: { command: 'ls' } },
      { iteration: 1 },
    ),
    log.live('tool_call.started', { tool_call_id: 't1', runner: 'r1' }),
    log.live('tool_call.output', { tool_call_id: 't1', stream: 'stdout', text: 'a\n' }),
    log.live('tool_call.output', { tool_call_id: 't1', stream: 'stdout', text: 'b\n' }),
  ]);
  const [call] = conversation.runs[0].entries;
  assert.equal(call.output, 'a\nb\n');
  assert.equal(call.status, 'running');
  const done = fold(
    conversation,
    log.stored('tool_call.completed', {
      tool_call_id: 't1',
      is_error: true,
      error_kind: 'timeout',
      content: {},
      duration_ms: 5,
    }),
  );
  assert.equal(done.runs[0].entries[0].status, 'failed');
  assert.equal(done.runs[0].entries[0].result.duration_ms, 5);
});

test('an approval is pending until it is resolved, and an edited call shows the edited arguments', () => {
  const log = recorder();
  const waiting = foldAll([
    started(log),
    log.stored('tool_call.requested', { tool_call_id: 't1', name: 'bash', arguments: { command: 'rm x' } }),
    log.stored('approval.requested', {
      approval_id: 'p1',
      expires_at: null,
      items: [{ tool_call_id: 't1', name: 'bash', arguments: { command: 'rm x' } }],
    }),
  ]);
  assert.equal(pendingApprovals(waiting).length, 1);
  assert.equal(activity(openRun(waiting)), 'Waiting for your approval');
  const decisions = [{ tool_call_id: 't1', decision: 'approve', arguments: { command: 'ls x' } }];
  const resolved = fold(
    waiting,
    log.stored('approval.resolved', { approval_id: 'p1', outcome: 'approved', by: 'ada', decisions }),
  );
  assert.equal(pendingApprovals(resolved).length, 0);
  assert.deepEqual(resolved.runs[0].entries[0].arguments, { command: 'ls x' });
  assert.equal(resolved.runs[0].entries[1].resolved.by, 'ada');
});

test('a pending approval that only `subscribed` names is shown once, after the replay', () => {
  const log = recorder();
  const approval = { approval_id: 'p1', run_id: RUN, items: [], expires_at: null };
  const subscribed = { pending_approvals: [approval], log_epoch: 'e1', active_run: RUN };
  const alone = foldReplayDone(foldSubscribed(emptyConversation('c1'), subscribed));
  assert.equal(pendingApprovals(alone).length, 1);
  const replayed = foldReplayDone(
    foldAll(
      [started(log), log.stored('approval.requested', approval)],
      foldSubscribed(emptyConversation('c1'), subscribed),
    ),
  );
  assert.equal(pendingApprovals(replayed).length, 1);
});

test('the indicator counts iterations against their limit', () => {
  const log = recorder();
  const conversation = foldAll([started(log), log.stored('iteration.started', { n: 3, max: 10 })]);
  assert.equal(activity(openRun(conversation)), 'The agent is working (iteration 3 of at most 10)');
});

test('the result of a terminating call is shown once as the reply', () => {
  const log = recorder();
  const conversation = foldAll([started(log), finished(log, { content: '{"success": true}' })]);
  assert.deepEqual(texts(conversation), ['{"success": true}']);
});

test('an acknowledged message is shown before its events, which do not duplicate it', () => {
  const log = recorder();
  const early = foldAccepted(emptyConversation('c1'), {
    run_id: RUN,
    message_id: 'm1',
    content: 'hello',
    ts: null,
  });
  assert.equal(early.runs[0].prompt.text, 'hello');
  assert.equal(fold(early, started(log)).runs.length, 1);
});

test('messages of two clients are shown in the order of the log, whatever arrives first', () => {
  const log = recorder();
  const own = { run_id: 'c1-r3', message_id: 'm3', content: 'mine', ts: null };
  const acknowledged = foldAccepted(foldAll([started(log), finished(log)]), own);
  const queued = fold(acknowledged, log.live('run.queued', { position: 1 }, { run_id: 'c1-r4' }));
  const theirs = fold(
    queued,
    log.stored('run.started', { message_id: 'm2', message: 'theirs' }, { run_id: 'c1-r2' }),
  );
  assert.deepEqual(
    theirs.runs.map((run) => run.id),
    [RUN, 'c1-r2', 'c1-r3', 'c1-r4'],
  );
  const both = fold(
    theirs,
    log.stored('run.started', { message_id: 'm4', message: 'first' }, { run_id: 'c1-r4' }),
  );
  assert.deepEqual(
    both.runs.map((run) => run.id),
    [RUN, 'c1-r2', 'c1-r4', 'c1-r3'],
  );
});

test('a steering message is shown inside the run that it steers', () => {
  const log = recorder();
  const conversation = foldAll([
    started(log),
    log.stored('message.completed', { message_id: 'u2', role: 'user', content: 'use tabs' }),
  ]);
  const steered = foldAccepted(conversation, {
    run_id: RUN,
    message_id: 'u2',
    content: 'use tabs',
    ts: null,
    steer: true,
  });
  assert.equal(steered.runs.length, 1);
  assert.equal(steered.runs[0].entries[0].role, 'user');
});

test('unknown event types count as read and change nothing else', () => {
  const log = recorder();
  const conversation = foldAll([started(log), log.stored('quota.warned', { left: 3 })]);
  assert.equal(conversation.lastSeq, 2);
  assert.equal(conversation.runs[0].entries.length, 0);
});

test('an input step is an input request with its reply, and no call', () => {
  const log = recorder();
  const step = { tool_call_id: 'w1', name: 'request_input', arguments: { message: 'Which crane?' } };
  const conversation = foldAll([
    started(log),
    log.stored('tool_call.requested', step),
    log.stored('input.requested', {
      request_id: 'i1',
      message: 'Which crane?',
      schema: { type: 'string' },
      tool_call_id: 'w1',
    }),
    log.stored('input.resolved', { request_id: 'i1', value: 'north', by: 'ada' }),
    log.stored('tool_call.completed', {
      tool_call_id: 'w1',
      content: { success: true, value: 'north' },
      is_error: false,
    }),
  ]);
  assert.deepEqual(
    conversation.runs[0].entries.map(({ kind, message, resolved }) => [kind, message, resolved.value]),
    [['input', 'Which crane?', 'north']],
  );
});

test('a workflow that a user started is shown behind the newest run, also without one', () => {
  const log = recorder();
  const link = { workflow: 'publish', workflow_run_id: 'c2-r1', workflow_conversation_id: 'c2' };
  const linked = () => log.stored('workflow.linked', link, { run_id: null });
  const { runs, links } = foldAll([linked(), started(log), finished(log), linked()]);
  assert.deepEqual(
    links.map(({ after, workflow }) => [after, workflow]),
    [
      [null, 'publish'],
      [RUN, 'publish'],
    ],
  );
  assert.deepEqual(
    runs.map(({ id }) => id),
    [RUN],
  );
});

test('a log that was cut states where and since when, and which events were set aside', () => {
  const log = recorder();
  const cut = (aside) => log.stored('history.cut', { first_missing: 4, set_aside: aside }, { run_id: null });
  const ended = foldAll([started(log), finished(log), cut(2)]);
  const [{ after, text }] = ended.cuts;
  assert.equal(after, RUN);
  assert.match(
    text,
    /was lost: what happened after .*2030.* is missing, here and for the agent\. .* 2 later entries in a file\.$/,
  );

  const open = foldAll([started(recorder()), { ...cut(0), seq: 9, prev_seq: 1 }]);
  assert.deepEqual(open.cuts, []);
  assert.deepEqual(
    open.runs[0].entries.map(({ kind, detail }) => [kind, detail]),
    [['notice', false]],
  );
  assert.doesNotMatch(open.runs[0].entries[0].text, /in a file/);

  const bare = foldAll([{ ...cut(1), seq: 1, prev_seq: 0 }]);
  assert.deepEqual(
    bare.cuts.map(({ after }) => after),
    [null],
  );
});
