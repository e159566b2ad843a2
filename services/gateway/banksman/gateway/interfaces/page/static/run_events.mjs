/** Fold the events of one run into its view: its status and its entries, in the order of the events. */

import { t } from './strings.mjs';
import { codePoints, contentText } from './text.mjs';

/** Maximum characters of live output that are stored for a running command; older ones are dropped. */
export const LIVE_OUTPUT_CHARACTERS = 100_000;

/** @param {string} id */
export function emptyRun(id) {
  return {
    id,
    status: 'queued',
    position: null,
    prompt: null,
    branch: null,
    /** Whether the run only compacts the conversation. */
    compact: false,
    requestedAt: null,
    startedAt: null,
    model: null,
    iteration: 0,
    maxIterations: null,
    cancelling: false,
    progress: null,
    /** The pause of the model request, with its end `until` by the clock of the browser in milliseconds; any later frame ends it. */
    waiting: null,
    entries: [],
    finished: null,
    finishedAt: null,
    /** Whether the log has an event of the run. */
    logged: false,
  };
}

/** Fold one event frame of a run. */
export function applyRunEvent(run, frame) {
  const step = RUN_EVENTS[frame.type];
  const seen = withIteration(run.waiting ? { ...run, waiting: null } : run, frame.iteration);
  return step ? step(seen, frame.data ?? frame, frame) : seen;
}

function withIteration(run, iteration) {
  return iteration && iteration > run.iteration ? { ...run, iteration } : run;
}

/** One function per event of a run: (run, data, frame) → run. Unknown types change nothing. */
const RUN_EVENTS = {
  'run.queued': (run, data, frame) =>
    withPrompt({ ...run, status: 'queued', position: data.position ?? null }, data, frame),
  'run.started': (run, data, frame) =>
    withPrompt(
      {
        ...run,
        status: 'running',
        position: null,
        startedAt: frame.ts ?? null,
        model: data.model ?? run.model,
        maxIterations: data.limits?.max_iterations ?? run.maxIterations,
      },
      data,
      frame,
    ),
  'run.cancel_requested': (run) => ({ ...run, cancelling: true }),
  'iteration.started': (run, data) => ({
    ...run,
    status: 'running',
    iteration: data.n,
    maxIterations: data.max ?? run.maxIterations,
  }),
  'message.delta': (run, data, frame) => addDelta(run, 'message', data, frame),
  'reasoning.delta': (run, data, frame) => addDelta(run, 'reasoning', data, frame),
  'reasoning.completed': addReasoning,
  'model.waiting': (run, data) => ({
    ...run,
    waiting: { reason: data.reason, until: Date.now() + data.next_attempt_s * 1000 },
  }),
  'message.completed': addMessage,
  'protocol.retry': (run, data, frame) =>
    addNotice(withoutDrafts(run), frame, 'warning', t('notice.protocolRetry', data), true),
  'model.notice': (run, data, frame) => addNotice(run, frame, 'warning', t('notice.model', data), false),
  'tool_call.requested': addCall,
  'tool_call.started': (run, data, frame) =>
    changeCall(run, data.tool_call_id, (call) => ({
      ...call,
      status: 'running',
      runner: data.runner,
      startedAt: frame.ts ?? null,
    })),
  'tool_call.output': (run, data) =>
    changeCall(run, data.tool_call_id, (call) => ({
      ...call,
      status: 'running',
      output: (call.output + data.text).slice(-LIVE_OUTPUT_CHARACTERS),
    })),
  'tool_call.completed': (run, data) => completeCall(run, data.result ?? data),
  'approval.requested': (run, data, frame) => addApproval(run, data, frame.iteration, frame.ts),
  'approval.resolved': resolveApproval,
  'workspace.changed': (run, data, frame) =>
    addEntry(run, {
      kind: 'changed',
      id: `changed-${frame.seq}`,
      paths: data.paths ?? [],
      more: data.more ?? 0,
    }),
  'workspace.restored': (run, data, frame) => addNotice(run, frame, 'warning', restoredText(data), false),
  'history.compacted': (run, data, frame) => addNotice(run, frame, 'info', compactedText(data), true),
  'workflow.progress': (run, data) => ({ ...run, status: 'running', progress: data }),
  'workflow.linked': (run, data, frame) =>
    addEntry(run, { kind: 'workflow', id: `workflow-${frame.seq}`, ...data }),
  // The step that waits for the value is recorded as a call without a tool.
  'input.requested': (run, data) => ({
    ...addEntry(withoutCall(run, data.tool_call_id), {
      kind: 'input',
      id: data.request_id,
      message: data.message,
      schema: data.schema,
      resolved: null,
    }),
    status: 'awaiting_input',
  }),
  'input.resolved': (run, data) => ({
    ...changeEntry(run, 'input', data.request_id, (entry) => ({ ...entry, resolved: data })),
    status: 'running',
  }),
  'run.finished': finish,
};

function withPrompt(run, data, frame) {
  const content = data.compact ? t('conversation.compact') : (data.message ?? data.user_message);
  if (content === undefined) return run;
  const prompt = {
    id: data.message_id ?? content?.message_id ?? run.prompt?.id ?? null,
    text: contentText(content),
    content,
  };
  return {
    ...run,
    compact: data.compact ?? false,
    prompt,
    branch: data.branch ?? null,
    requestedAt: run.requestedAt ?? frame.ts ?? null,
  };
}

function addEntry(run, entry) {
  return { ...run, entries: [...run.entries, entry] };
}

function changeEntry(run, kind, id, change) {
  const at = run.entries.findIndex((entry) => entry.kind === kind && entry.id === id);
  if (at < 0) return run;
  return { ...run, entries: run.entries.with(at, change(run.entries[at])) };
}

/** Drop messages that a takeover or a malformed reply interrupted: the next message replaces them. */
function withoutDrafts(run, exceptId) {
  if (!run.entries.some((entry) => isDraft(entry) && entry.id !== exceptId)) return run;
  return { ...run, entries: run.entries.filter((entry) => !isDraft(entry) || entry.id === exceptId) };
}

function isDraft(entry) {
  return entry.kind === 'message' && !entry.complete;
}

function addDelta(run, kind, data, frame) {
  if (run.finished) return run;
  const existing = run.entries.find((entry) => entry.kind === kind && entry.id === data.message_id);
  if (existing?.complete) return run;
  if (!existing) {
    const open = kind === 'message' ? withoutDrafts(run, data.message_id) : run;
    return addEntry({ ...open, status: 'running' }, draft(kind, data, frame));
  }
  const change = continued(existing, data.offset, data.text);
  return change ? changeEntry(run, kind, existing.id, (entry) => ({ ...entry, ...change })) : run;
}

function draft(kind, data, frame) {
  return {
    kind,
    id: data.message_id,
    role: 'assistant',
    text: data.text,
    complete: false,
    skipped: data.offset ?? 0,
    iteration: frame.iteration ?? null,
  };
}

/**
 * Return the changes of a message by a delta, or null. Offsets count code points.
 *
 * Text is never appended after a gap, such as a restart of the gateway: the stored message replaces the whole
 * text. A delta whose offset was already received with another text replaces the rest: another model
 * continues, or the same model after an error.
 */
function continued({ text, skipped }, offset, addition) {
  const have = skipped + codePoints(text);
  if (offset === undefined || offset === null || offset === have) return { text: text + addition };
  if (offset > have) return { gap: true };
  if (offset === 0 && skipped > 0) return { text: addition, skipped: 0, gap: false };
  const known = [...text];
  const before = known.slice(0, Math.max(0, offset - skipped)).join('');
  const added = [...addition].slice(Math.max(0, skipped - offset)).join('');
  if (text.startsWith(before + added)) return null;
  return { text: before + added, ...(before ? {} : { gap: false }) };
}

/** The stored reasoning takes the place of its pieces. */
function addReasoning(run, data, frame) {
  const entry = {
    kind: 'reasoning',
    id: data.message_id,
    text: data.text,
    complete: true,
    more: data.characters > codePoints(data.text),
    seconds: data.duration_s,
    iteration: frame.iteration ?? null,
  };
  const known = run.entries.some((other) => other.kind === 'reasoning' && other.id === entry.id);
  return known ? changeEntry(run, 'reasoning', entry.id, () => entry) : addEntry(run, entry);
}

function addMessage(run, data, frame) {
  const entry = {
    kind: 'message',
    id: data.message_id,
    role: data.role ?? 'assistant',
    text: contentText(data.content),
    complete: true,
    finishReason: data.finish_reason ?? null,
    partial: data.partial ?? false,
    isResult: run.model?.startsWith('workflow:') ?? false,
    iteration: frame.iteration ?? null,
  };
  const clean = entry.role === 'assistant' ? withoutDrafts(run, entry.id) : run;
  const known = clean.entries.some((other) => other.kind === 'message' && other.id === entry.id);
  return known ? changeEntry(clean, 'message', entry.id, () => entry) : addEntry(clean, entry);
}

export function addNotice(run, frame, tone, text, detail) {
  return addEntry(run, { kind: 'notice', id: `notice-${frame.seq}`, tone, text, detail });
}

function restoredText(data) {
  const lost = data.lost_calls?.length ?? 0;
  return lost ? t('notice.restoredLost', { count: lost }) : t('notice.restored');
}

function compactedText(data) {
  const tokens = { before: data.tokens_before ?? '?', after: data.tokens_after ?? '?' };
  return t(data.how === 'summarised' ? 'notice.summarised' : 'notice.leftOut', tokens);
}

function addCall(run, data, frame) {
  const call = data.call ?? data;
  const id = call.tool_call_id ?? call.id;
  if (run.entries.some((entry) => entry.kind === 'call' && entry.id === id)) return run;
  return addEntry(run, {
    kind: 'call',
    id,
    name: call.name,
    arguments: call.arguments ?? {},
    terminate: call.terminate ?? false,
    requiresApproval: call.requires_approval ?? false,
    iteration: frame.iteration ?? run.iteration,
    status: 'requested',
    output: '',
    runner: null,
    result: null,
  });
}

function withoutCall(run, id) {
  return { ...run, entries: run.entries.filter((entry) => entry.kind !== 'call' || entry.id !== id) };
}

function changeCall(run, id, change) {
  return changeEntry(run, 'call', id, (call) => (call.result ? call : change(call)));
}

function completeCall(run, result) {
  return changeEntry(run, 'call', result.tool_call_id, (call) => ({
    ...call,
    result,
    runner: result.runner ?? call.runner,
    status: result.is_error ? 'failed' : 'done',
  }));
}

/** Add an approval request to a run. A repeated one changes nothing. */
export function addApproval(run, data, iteration, ts) {
  if (run.entries.some((entry) => entry.kind === 'approval' && entry.id === data.approval_id)) return run;
  const entry = {
    kind: 'approval',
    id: data.approval_id,
    first: data.first ?? null,
    terms: data.terms ?? null,
    on_reject: data.on_reject,
    items: data.items ?? [],
    expiresAt: data.expires_at ?? null,
    requestedAt: ts ?? null,
    iteration: iteration ?? null,
    resolved: null,
  };
  return { ...addEntry(run, entry), status: 'awaiting_approval' };
}

function resolveApproval(run, data) {
  const open = changeEntry(run, 'approval', data.approval_id, (entry) => ({ ...entry, resolved: data }));
  const edited = new Map(
    (data.decisions ?? []).filter((d) => d.arguments).map((d) => [d.tool_call_id, d.arguments]),
  );
  const entries = open.entries.map((entry) =>
    entry.kind === 'call' && edited.has(entry.id)
      ? { ...entry, arguments: edited.get(entry.id), edited: true }
      : entry,
  );
  return { ...open, entries, status: run.finished ? run.status : 'running' };
}

function finish(run, data, frame) {
  const kept = data.status === 'completed' ? withoutDrafts(run) : withPartialText(run, data.status);
  const open = {
    ...kept,
    status: data.status,
    finished: data,
    finishedAt: frame.ts ?? null,
    cancelling: false,
    progress: null,
  };
  const named = data.iterations
    ? { ...open, iteration: data.iterations, model: data.model ?? open.model }
    : open;
  return showsContent(named, data) ? named : addEntry(named, contentEntry(data, frame));
}

/** Keep text that was streamed before the run ended, even if the agent died before it stored the message. */
function withPartialText(run, status) {
  const entries = run.entries
    .filter((entry) => !isDraft(entry) || entry.text)
    .map((entry) => (isDraft(entry) ? { ...entry, complete: true, partial: true, unstored: true } : entry))
    .map((entry) => (entry.partial ? { ...entry, endedBy: status } : entry));
  return { ...run, entries };
}

/** Whether the content of `run.finished` is already shown: as a message, or as the error of the outcome. */
function showsContent(run, data) {
  if (!data.content || data.content === data.error?.message) return true;
  return run.entries.some(
    (entry) =>
      entry.kind === 'message' && entry.role === 'assistant' && entry.text.trim() === data.content.trim(),
  );
}

function contentEntry(data, frame) {
  return {
    kind: 'message',
    id: `content-${frame.seq}`,
    role: 'assistant',
    text: data.content,
    complete: true,
    isResult: data.status === 'completed',
  };
}
