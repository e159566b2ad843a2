/** Fold the events of one run into its view: its status and its entries, in the order of the events. */

import { t } from './strings.mjs';
import { codePoints, contentText } from './text.mjs';

/** @typedef {FrameOf<'message.delta' | 'reasoning.delta'>} Delta */
/** @template {Entry['kind']} Kind @typedef {Extract<Entry, {kind: Kind}>} EntryOf */

/** Maximum characters of live output that are stored for a running command; older ones are dropped. */
export const LIVE_OUTPUT_CHARACTERS = 100_000;

/** @param {string} id @returns {Run} */
export function emptyRun(id) {
  return {
    id,
    status: 'queued',
    position: null,
    prompt: null,
    branch: null,
    compact: false,
    requestedAt: null,
    startedAt: null,
    /** Whether a file states it: nothing here decided or ran what it shows. */
    imported: false,
    model: null,
    iteration: 0,
    maxIterations: null,
    cancelling: false,
    progress: null,
    waiting: null,
    entries: [],
    finished: null,
    finishedAt: null,
    logged: false,
  };
}

/** Fold one event frame of a run. @param {Run} run @param {EventFrame} frame @returns {Run} */
export function applyRunEvent(run, frame) {
  const step = /** @type {Fold<EventType> | undefined} */ (RUN_EVENTS[frame.type]);
  const seen = withIteration(run.waiting ? { ...run, waiting: null } : run, iterationOf(frame));
  return step ? step(seen, frame.data, frame) : seen;
}

function iterationOf(/** @type {EventFrame} */ frame) {
  return ('iteration' in frame && frame.iteration) || null;
}

function withIteration(/** @type {Run} */ run, /** @type {number | null} */ iteration) {
  return iteration && iteration > run.iteration ? { ...run, iteration } : run;
}

/**
 * @template {EventType} Type
 * @typedef {(run: Run, data: FrameOf<Type>['data'], frame: FrameOf<Type>) => Run} Fold
 */

/** One function per event of a run. Unknown types change nothing. @type {{[Type in EventType]?: Fold<Type>}} */
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
        imported: Boolean(frame.imported),
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
  'tool_call.completed': (run, data) => completeCall(run, data),
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
  // The step of a workflow that waits for the value is recorded as a call without a tool.
  'input.requested': (run, data) => ({
    ...addEntry(data.server ? run : withoutCall(run, data.tool_call_id), {
      kind: 'input',
      id: data.request_id,
      message: data.message,
      schema: data.schema,
      server: data.server ?? null,
      expiresAt: data.expires_at,
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

/** @param {Run} run @param {FrameOf<'run.queued' | 'run.started'>['data']} data @param {EventFrame} frame */
function withPrompt(run, data, frame) {
  const content = data.compact ? t('conversation.compact') : data.message;
  if (content === undefined) return run;
  const prompt = {
    id: data.message_id ?? run.prompt?.id ?? null,
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

/** @param {Run} run @param {Entry} entry @returns {Run} */
function addEntry(run, entry) {
  return { ...run, entries: [...run.entries, entry] };
}

/**
 * @template {Entry['kind']} Kind
 * @param {Run} run
 * @param {Kind} kind
 * @param {string} id
 * @param {(entry: EntryOf<Kind>) => Entry} change
 * @returns {Run}
 */
function changeEntry(run, kind, id, change) {
  const at = run.entries.findIndex((entry) => entry.kind === kind && entry.id === id);
  if (at < 0) return run;
  return { ...run, entries: run.entries.with(at, change(/** @type {EntryOf<Kind>} */ (run.entries[at]))) };
}

/**
 * Drop messages that a takeover or a malformed reply interrupted: the next message replaces them.
 *
 * @param {Run} run
 * @param {string} [exceptId]
 */
function withoutDrafts(run, exceptId) {
  if (!run.entries.some((entry) => isDraft(entry) && entry.id !== exceptId)) return run;
  return { ...run, entries: run.entries.filter((entry) => !isDraft(entry) || entry.id === exceptId) };
}

/** @param {Entry} entry @returns {entry is Message} */
function isDraft(entry) {
  return entry.kind === 'message' && !entry.complete;
}

/** @param {Run} run @param {Message['kind']} kind @param {Delta['data']} data @param {Delta} frame @returns {Run} */
function addDelta(run, kind, data, frame) {
  if (run.finished) return run;
  const existing = /** @type {Message | undefined} */ (
    run.entries.find((entry) => entry.kind === kind && entry.id === data.message_id)
  );
  if (existing?.complete) return run;
  if (!existing) {
    const open = kind === 'message' ? withoutDrafts(run, data.message_id) : run;
    return addEntry({ ...open, status: 'running' }, draft(kind, data, frame));
  }
  const change = continued(existing, data.offset, data.text);
  return change
    ? changeEntry(run, kind, existing.id, (/** @type {Message} */ entry) => ({ ...entry, ...change }))
    : run;
}

/** @param {Message['kind']} kind @param {Delta['data']} data @param {Delta} frame @returns {Message} */
function draft(kind, data, frame) {
  return {
    kind,
    id: data.message_id,
    role: 'assistant',
    text: data.text,
    complete: false,
    skipped: data.offset ?? 0,
    iteration: iterationOf(frame),
  };
}

/**
 * Return the changes of a message by a delta, or null. Offsets count code points.
 *
 * Text is never appended after a gap, such as a restart of the gateway: the stored message replaces the whole
 * text. A delta whose offset was already received with another text replaces the rest: another model
 * continues, or the same model after an error.
 *
 * @param {Message} message
 * @param {number | null | undefined} offset
 * @param {string} addition
 * @returns {Partial<Message> | null}
 */
function continued({ text, skipped = 0 }, offset, addition) {
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

/** The stored reasoning takes the place of its pieces. @type {Fold<'reasoning.completed'>} */
function addReasoning(run, data, frame) {
  /** @type {Message} */
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

/** @type {Fold<'message.completed'>} */
function addMessage(run, data, frame) {
  /** @type {Message} */
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
  const known = clean.entries.find((other) => other.kind === 'message' && other.id === entry.id);
  // What was streamed is longer than what is left of it here.
  if (known?.kind === 'message' && isCut(frame)) entry.text = known.text;
  return known ? changeEntry(clean, 'message', entry.id, () => entry) : addEntry(clean, entry);
}

/**
 * Whether an event is a message without its long text, which a read of the event returns.
 *
 * @param {EventFrame} frame
 * @returns {frame is FrameOf<'message.completed'>}
 */
export function isCut(frame) {
  return frame.type === 'message.completed' && 'truncated' in frame.data && frame.data.truncated === true;
}

/** Show the whole text of a message. @param {Run} run @param {FrameOf<'message.completed'>['data']} data */
export const completeMessage = (run, { message_id, content }) =>
  changeEntry(run, 'message', message_id, (/** @type {Message} */ entry) => ({
    ...entry,
    text: contentText(content),
  }));

/**
 * @param {Run} run
 * @param {{seq: number}} frame
 * @param {Notice['tone']} tone
 * @param {string} text
 * @param {boolean} detail whether it is shown with the details only
 */
export function addNotice(run, frame, tone, text, detail) {
  return addEntry(run, { kind: 'notice', id: `notice-${frame.seq}`, tone, text, detail });
}

function restoredText(/** @type {FrameOf<'workspace.restored'>['data']} */ data) {
  const lost = data.lost_calls?.length ?? 0;
  return lost ? t('notice.restoredLost', { count: lost }) : t('notice.restored');
}

function compactedText(/** @type {FrameOf<'history.compacted'>['data']} */ data) {
  const tokens = { before: data.tokens_before ?? '?', after: data.tokens_after ?? '?' };
  return t(data.how === 'summarised' ? 'notice.summarised' : 'notice.leftOut', tokens);
}

/** @type {Fold<'tool_call.requested'>} */
function addCall(run, call, frame) {
  const id = call.tool_call_id;
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

function withoutCall(/** @type {Run} */ run, /** @type {string} */ id) {
  return { ...run, entries: run.entries.filter((entry) => entry.kind !== 'call' || entry.id !== id) };
}

/** @param {Run} run @param {string} id @param {(call: Call) => Call} change */
function changeCall(run, id, change) {
  return changeEntry(run, 'call', id, (call) => (call.result ? call : change(call)));
}

function completeCall(/** @type {Run} */ run, /** @type {NonNullable<Call['result']>} */ result) {
  return changeEntry(run, 'call', result.tool_call_id, (call) => ({
    ...call,
    result,
    runner: result.runner ?? call.runner,
    status: result.is_error ? 'failed' : 'done',
  }));
}

/**
 * Add an approval request to a run. A repeated one changes nothing.
 *
 * @param {Run} run
 * @param {import('./client/types.d.ts').ApprovalRequested} data
 * @param {number} [iteration]
 * @param {string} [ts]
 * @returns {Run}
 */
export function addApproval(run, data, iteration, ts) {
  if (run.entries.some((entry) => entry.kind === 'approval' && entry.id === data.approval_id)) return run;
  /** @type {Approval} */
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

/** @type {Fold<'approval.resolved'>} */
function resolveApproval(run, data) {
  const open = changeEntry(run, 'approval', data.approval_id, (entry) => ({ ...entry, resolved: data }));
  const edited = new Map((data.decisions ?? []).map((d) => [d.tool_call_id, d.arguments]));
  const entries = open.entries.map((entry) => {
    const args = entry.kind === 'call' && edited.get(entry.id);
    return args ? { ...entry, arguments: args, edited: true } : entry;
  });
  return { ...open, entries, status: run.finished ? run.status : 'running' };
}

/** @type {Fold<'run.finished'>} */
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

/**
 * Keep text that was streamed before the run ended, even if the agent died before it stored the message.
 *
 * @param {Run} run
 * @param {string} status
 * @returns {Run}
 */
function withPartialText(run, status) {
  const entries = run.entries
    .filter((entry) => !isDraft(entry) || entry.text)
    .map((entry) => (isDraft(entry) ? { ...entry, complete: true, partial: true, unstored: true } : entry))
    .map((entry) => ('partial' in entry && entry.partial ? { ...entry, endedBy: status } : entry));
  return { ...run, entries };
}

/** Whether the content of `run.finished` is already shown: as a message, or as the error of the outcome. @param {Run} run @param {FrameOf<'run.finished'>['data']} data */
function showsContent(run, data) {
  if (!data.content || data.content === data.error?.message) return true;
  return run.entries.some(
    (entry) =>
      entry.kind === 'message' && entry.role === 'assistant' && entry.text.trim() === data.content.trim(),
  );
}

/** @param {FrameOf<'run.finished'>['data']} data @param {FrameOf<'run.finished'>} frame @returns {Message} */
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
