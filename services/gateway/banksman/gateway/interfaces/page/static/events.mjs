/**
 * Fold the frames of one conversation into an immutable view.
 *
 * A conversation is a list of runs in the order of their requests. A run holds the user's message and its
 * entries (messages, reasoning, calls, approvals, input requests, notices) in the order of their events.
 */

import { addApproval, addNotice, applyRunEvent, completeMessage, emptyRun } from './run_events.mjs';
import { known, partsOf, t } from './strings.mjs';
import { contentText, formatMoment } from './text.mjs';

/** The outcome of the first of two approvals. */
export const AWAITING_SECOND = 'awaiting_second';

/**
 * @typedef {object} Accepted an acknowledged message
 * @property {string} run_id
 * @property {string | null} [message_id]
 * @property {Content} content
 * @property {string} ts
 * @property {boolean} [steer] whether it steers the open run
 * @property {Branch | null} [branch]
 */

/** @param {string} id @returns {Conversation} */
export function emptyConversation(id) {
  return {
    id,
    title: null,
    status: null,
    lastSeq: 0,
    error: null,
    replayed: false,
    earlier: false,
    deleted: false,
    runs: [],
    orphans: [],
    cuts: [],
    links: [],
    cancelledEarly: [],
    lastAt: null,
  };
}

/**
 * Fold one event frame. Durable events come once and in order; live ones have no number.
 *
 * @param {Conversation} conversation
 * @param {EventFrame} frame
 * @returns {Conversation}
 */
export function fold(conversation, frame) {
  if (!('seq' in frame)) return applyEvent(conversation, frame);
  const folded = isEarlyCancel(conversation, frame)
    ? { ...conversation, cancelledEarly: [...conversation.cancelledEarly, frame.run_id] }
    : applyEvent(inLogOrder(conversation, frame.run_id), frame);
  return { ...folded, lastSeq: frame.seq, lastAt: frame.ts ?? null };
}

/** Fold the whole event of a message that was received without its long text. @param {Conversation} conversation @param {EventFrame} frame */
export function foldWhole(conversation, frame) {
  if (frame.type !== 'message.completed') return conversation;
  return withRun(conversation, frame.run_id, (run) => completeMessage(run, frame.data));
}

/**
 * Fold the `subscribed` frame. Pending approvals wait as `orphans` until the replay shows whether their request is
 * among its events.
 *
 * @param {Conversation} conversation
 * @param {import('./client/types.d.ts').Subscribed} frame
 */
export function foldSubscribed(conversation, frame) {
  const orphans = /** @type {PendingApproval[]} */ (frame.pending_approvals ?? []);
  const earlier = conversation.earlier || Boolean(frame.after_seq);
  return { ...conversation, orphans, earlier, replayed: false, error: null };
}

/**
 * Fold `replay.done`: an approval that is still an orphan was requested before the replayed events.
 *
 * @param {Conversation} conversation
 */
export function foldReplayDone(conversation) {
  /** @type {Conversation} */
  let next = { ...conversation, replayed: true, orphans: [] };
  for (const approval of conversation.orphans) {
    if (!findApproval(next, approval.approval_id)) {
      next = withRun(next, approval.run_id, (run) => ({
        ...addApproval(run, approval, approval.iteration),
        logged: true,
      }));
    }
  }
  return next;
}

/**
 * Fold an acknowledged message. Its events may arrive before or after the acknowledgement.
 *
 * @param {Conversation} conversation
 * @param {Accepted} message
 */
export function foldAccepted(
  conversation,
  { run_id: runId, message_id: messageId, content, ts, steer, branch = null },
) {
  const run = runOf(conversation, runId);
  if (steer && run) return conversation;
  if (run?.prompt) return conversation;
  const prompt = { id: messageId ?? null, text: contentText(content), content };
  return withRun(conversation, runId, (open) => ({ ...open, prompt, branch, requestedAt: ts }));
}

/** The run that works or waits for the user; null if there is none. @param {Conversation} conversation */
export function openRun(conversation) {
  return conversation.runs.findLast((run) => !run.finished && run.status !== 'queued') ?? null;
}

/** True while a run of the conversation is open or queued. @param {Conversation} conversation */
export function isBusy(conversation) {
  return conversation.runs.some((run) => !run.finished);
}

/** Approval requests without a decision, oldest first. @param {Conversation} conversation */
export function pendingApprovals(conversation) {
  return conversation.runs.flatMap((run) =>
    run.finished ? [] : run.entries.filter((entry) => entry.kind === 'approval' && !entry.resolved),
  );
}

/**
 * One line about the present activity of a run.
 *
 * @param {Run} run
 * @param {(approval: {id: string}) => boolean} [isGiven] whether the user approved a request that another person must approve, too
 */
export function activity(run, isGiven = () => false) {
  if (run.status === 'queued')
    return run.position ? t('activity.queuedAt', { position: run.position }) : t('timeline.queued');
  if (run.cancelling) return t('activity.stopping');
  const asked = run.entries.filter((entry) => entry.kind === 'approval' && !entry.resolved);
  if (asked.length) return t(asked.every(isGiven) ? 'activity.otherApproval' : 'activity.approval');
  if (run.entries.some((entry) => entry.kind === 'input' && !entry.resolved)) return t('activity.input');
  if (run.waiting) return waitingText(run.waiting);
  if (run.progress)
    return t('activity.progress', {
      ...run.progress,
      message: run.progress.message || t('activity.working'),
    });
  if (!run.iteration) return t('activity.agent');
  const { iteration: n, maxIterations: max } = run;
  return max ? t('activity.iterationOf', { n, max }) : t('activity.iteration', { n });
}

function waitingText(/** @type {NonNullable<Run['waiting']>} */ { reason, until }) {
  const seconds = Math.max(0, Math.ceil((until - Date.now()) / 1000));
  const key = `activity.waiting.${reason}`;
  return t(/** @type {Key} */ (known(key, null) ? key : 'activity.waiting.failed'), { seconds });
}

/**
 * The outcome of a run as shown after its messages; null if the run completed.
 *
 * @param {{status: string, error?: {code: string, message: string} | null}} options
 * @returns {{title: string, text: string, detail: string, code: string | null} | null} `text` adds to the title, or
 *   is empty; `detail` is what a service wrote in another language
 */
export function outcomeOf({ status, error }) {
  const title = known(`outcome.${status}`, null);
  if (!title) return null;
  const plain = !error || (status === 'cancelled' && error.message === 'The run was cancelled.');
  return {
    title,
    ...(plain ? { text: '', detail: '' } : partsOf(`reason.${error.code}`, error.message)),
    code: status === 'failed' ? (error?.code ?? null) : null,
  };
}

/**
 * A request to cancel shows no run: the run may be queued still, or not exist.
 *
 * @param {Conversation} conversation
 * @param {EventFrame} frame
 */
function isEarlyCancel(conversation, frame) {
  return frame.type === 'run.cancel_requested' && !runOf(conversation, frame.run_id);
}

function newRun(/** @type {Conversation} */ { cancelledEarly }, /** @type {string} */ runId) {
  return { ...emptyRun(runId), cancelling: cancelledEarly.includes(runId) };
}

function runOf(/** @type {Conversation} */ conversation, /** @type {string | null} */ runId) {
  return conversation.runs.findLast((run) => run.id === runId) ?? null;
}

function findApproval(/** @type {Conversation} */ conversation, /** @type {string} */ approvalId) {
  return conversation.runs.some((run) =>
    run.entries.some((entry) => entry.kind === 'approval' && entry.id === approvalId),
  );
}

/** @param {Conversation} conversation @param {string | null} runId @param {(run: Run) => Run} change */
function withRun(conversation, runId, change) {
  if (!runId) return conversation;
  const at = conversation.runs.findLastIndex((run) => run.id === runId);
  const before = at < 0 ? newRun(conversation, runId) : conversation.runs[at];
  const after = change(before);
  if (after === before && at >= 0) return conversation;
  const runs = at < 0 ? [...conversation.runs, after] : conversation.runs.with(at, after);
  return { ...conversation, runs };
}

/**
 * Move a run to its position in the log when its first durable event arrives.
 *
 * Acknowledgements and queue positions arrive in a different order at each client.
 *
 * @param {Conversation} conversation
 * @param {string | null} runId
 */
function inLogOrder(conversation, runId) {
  if (!runId) return conversation;
  const known = runOf(conversation, runId);
  if (known?.logged) return conversation;
  const run = known ?? newRun(conversation, runId);
  const others = known ? conversation.runs.filter((other) => other !== known) : conversation.runs;
  const at = others.findLastIndex((other) => other.logged) + 1;
  return { ...conversation, runs: others.toSpliced(at, 0, { ...run, logged: true }) };
}

function applyEvent(/** @type {Conversation} */ conversation, /** @type {EventFrame} */ frame) {
  if (frame.type === 'conversation.updated') return applyConversation(conversation, frame.data);
  if (frame.type === 'history.cut') return applyCut(conversation, frame);
  if (frame.type === 'workflow.linked' && !frame.run_id) return withLink(conversation, frame);
  return withRun(conversation, frame.run_id, (run) => applyRunEvent(run, frame));
}

/** @param {Conversation} conversation @param {FrameOf<'conversation.updated'>['data']} data */
function applyConversation(conversation, data) {
  return {
    ...conversation,
    title: data.title ?? conversation.title,
    status: data.status ?? conversation.status,
    deleted: conversation.deleted || data.status === 'deleted',
  };
}

/**
 * A workflow that was started in the conversation has a run in its own log.
 *
 * @param {Conversation} conversation
 * @param {FrameOf<'workflow.linked'>} options
 */
function withLink(conversation, { seq, data }) {
  const link = { id: `workflow-${seq}`, after: conversation.runs.at(-1)?.id ?? null, ...data };
  return { ...conversation, links: [...conversation.links, link] };
}

/**
 * Show lost events where they were: in the open run, or after the last run.
 *
 * @param {Conversation} conversation
 * @param {FrameOf<'history.cut'>} frame
 */
function applyCut(conversation, frame) {
  const text = cutText(conversation, frame.data);
  const open = openRun(conversation);
  if (open) return withRun(conversation, open.id, (run) => addNotice(run, frame, 'warning', text, false));
  return {
    ...conversation,
    cuts: [...conversation.cuts, { after: conversation.runs.at(-1)?.id ?? null, text }],
  };
}

/** @param {Conversation} conversation @param {FrameOf<'history.cut'>['data']} cut */
function cutText({ lastAt }, { set_aside: aside }) {
  const lost = lastAt ? t('notice.cut', { when: formatMoment(lastAt) }) : t('notice.cutUnknown');
  return aside ? `${lost} ${t('notice.cutAside', { count: aside })}` : lost;
}

/** The cost of all ended runs of a conversation, also of versions that are not shown. @param {{runs: Run[]}} conversation */
export function costOf({ runs }) {
  return runs.reduce((sum, run) => sum + (run.finished?.usage?.cost_usd ?? 0), 0);
}
