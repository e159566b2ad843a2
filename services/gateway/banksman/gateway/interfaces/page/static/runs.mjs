/** Totals and order of the steps of a run. Pure. */

/** Kinds of steps that have a usage. @param {Step} step */
const isModel = (step) => step.kind === 'model' || step.kind === 'compaction';
/** @param {Step} step */
const isWait = (step) => step.kind === 'approval' || step.kind === 'input' || step.kind === 'queue';

/** Sums over the steps of a run. `cost` is null if no price is known. @param {StoredRun} run @param {Step[]} steps */
export function totalsOf(run, steps) {
  const models = steps.filter(isModel);
  const usages = models.map((step) => step.usage).filter((usage) => usage !== null);
  /** @param {'input_tokens' | 'output_tokens' | 'cached_tokens'} name */
  const sum = (name) => usages.reduce((total, usage) => total + (usage[name] ?? 0), 0);
  const costs = usages.map((usage) => usage.cost_usd).filter((cost) => cost !== null);
  const end = run.finished_at ?? steps.at(-1)?.ended_at ?? run.started_at;
  return {
    status: run.status,
    model: run.model,
    cost: costs.length ? costs.reduce((total, cost) => total + cost, 0) : null,
    tokensIn: sum('input_tokens'),
    tokensOut: sum('output_tokens'),
    cached: sum('cached_tokens'),
    requests: models.length,
    calls: steps.filter((step) => step.kind === 'tool').length,
    duration: run.started_at && end ? Date.parse(end) - Date.parse(run.started_at) : 0,
    waited: steps.filter(isWait).reduce((total, step) => total + (step.duration_ms ?? 0), 0),
  };
}

const costOf = (/** @type {Step} */ step) => step.usage?.cost_usd ?? 0;

/**
 * The most expensive step with its share of the cost; null if the share is not significant.
 *
 * @param {Step[]} steps
 * @param {number | null} cost
 */
export function mostExpensive(steps, cost) {
  const priced = steps.filter(costOf);
  if (!cost || priced.length < 2) return null;
  const step = priced.reduce((most, one) => (costOf(one) > costOf(most) ? one : most));
  const number = steps.filter((one) => one.kind === 'model').indexOf(step) + 1;
  return { step, number, share: costOf(step) / cost };
}

export function ordered(/** @type {Step[]} */ steps, /** @type {'time' | 'cost' | 'duration'} */ order) {
  if (order === 'time') return steps.toSorted((a, b) => beginOf(a) - beginOf(b));
  /** @param {Step} step */
  const weight = (step) => (order === 'cost' ? (step.usage?.cost_usd ?? -1) : (step.duration_ms ?? 0));
  return steps.toSorted((a, b) => weight(b) - weight(a));
}

/** The start of a step in milliseconds. For a call, this includes the wait for its decision. @param {Step} step */
function beginOf({ kind, began_at: began, ended_at: ended, duration_ms: took }) {
  return kind === 'tool' && ended && took !== null ? Date.parse(ended) - took : Date.parse(began);
}

/**
 * The position of a step in its run: fractions of the time from the start of the first step to the end of the last.
 *
 * @param {Step} step
 * @param {Step[]} steps
 */
export function placeOf(step, steps, now = Date.now()) {
  const begins = steps.map((one) => Date.parse(one.began_at));
  const ends = steps.map((one) => (one.ended_at ? Date.parse(one.ended_at) : now));
  const from = Math.min(...begins);
  const whole = Math.max(1, Math.max(...ends) - from);
  const end = step.ended_at ? Date.parse(step.ended_at) : now;
  // A call may wait for a decision first; the bar shows only its execution.
  const took =
    step.kind === 'tool' && step.duration_ms !== null ? step.duration_ms : end - Date.parse(step.began_at);
  const width = Math.min(1, Math.max(0, took / whole));
  return { start: Math.min(1 - width, Math.max(0, (end - took - from) / whole)), width };
}

/**
 * The data for repeating a run at its place: its message, and the message before it.
 *
 * @param {{messages: {message_id?: string | null, content: Content}[]}} request the first model request of the run
 * @param {string} messageId of the run's message
 */
export function repetitionOf(request, messageId) {
  const at = request.messages.findIndex((message) => message.message_id === messageId);
  if (at < 0) return null;
  const before = request.messages.slice(0, at).findLast((message) => message.message_id);
  return { content: request.messages[at].content, branch: { after: before?.message_id ?? null } };
}
