/**
 * The paths through a conversation with edited messages or repeated replies. Pure.
 *
 * A run follows the newest run, or the run of the message that its `branch` names. Runs that follow the same run
 * are versions of each other, of which one is shown.
 */

/** The key of the position before the first run. */
export const START = '';

/**
 * @typedef {object} Place
 * @property {Run} run
 * @property {string} parent the run before it, or `START`
 * @property {number} at number of this version, from 1
 * @property {string[]} versions ids of the runs in its place, oldest first
 */

/**
 * The runs that are shown: the path to the newest run, except where another version was chosen.
 *
 * While earlier runs are not received, the path begins with the first run whose place is certain.
 *
 * @param {{runs: Run[], earlier?: boolean}} conversation
 * @param {Record<string, string>} chosen the chosen run by the run before it
 * @returns {Place[]}
 */
export function pathOf({ runs, earlier = false }, chosen = {}) {
  // The usual case is fast, because a conversation may have thousands of runs.
  if (!runs.some((run) => run.branch))
    return runs.map((run, at) => ({ run, parent: at ? runs[at - 1].id : START, at: 1, versions: [run.id] }));
  const parents = parentsOf(runs, earlier);
  /** @type {Map<string | undefined, Run[]>} */
  const children = new Map();
  for (const run of runs)
    children.set(parents.get(run.id), [...(children.get(parents.get(run.id)) ?? []), run]);
  const newest = lineOf(runs.at(-1)?.id, parents);
  const path = [];
  for (let parent = START, following = children.get(parent); following; following = children.get(parent)) {
    const versions = following.map((run) => run.id);
    const run =
      following.find(({ id }) => id === chosen[parent]) ??
      following.find(({ id }) => newest.has(id)) ??
      following[following.length - 1];
    path.push({ run, parent, at: versions.indexOf(run.id) + 1, versions });
    parent = run.id;
  }
  return path;
}

/** The message after which a new message continues a path; null for the beginning. @param {Place[]} path */
export function endOf(path) {
  const last = path.at(-1);
  return last ? lastMessageOf(last.run) : null;
}

/**
 * The message before the message of a run; a new version of the message follows it, too.
 *
 * @param {Place[]} path
 * @param {string} runId
 */
export function before(path, runId) {
  const at = path.findIndex(({ run }) => run.id === runId);
  return path[at].run.branch ? path[at].run.branch.after : endOf(path.slice(0, at));
}

/**
 * Whether a path ends with the newest run, so that its next message needs no branch.
 *
 * @param {{runs: Run[]}} options
 * @param {Place[]} path
 */
export function isNewest({ runs }, path) {
  return path.at(-1)?.run === runs.at(-1);
}

/** The run with a message; undefined if there is none. @param {{runs: Run[]}} conversation @param {string} messageId */
export function runWith({ runs }, messageId) {
  return runs.find((run) => messagesOf(run).includes(messageId));
}

/**
 * The choices that show a run: each run before it, by the run before that one.
 *
 * @param {{runs: Run[], earlier?: boolean}} options
 * @param {string} runId
 */
export function choicesFor({ runs, earlier }, runId) {
  const parents = parentsOf(runs, earlier);
  return Object.fromEntries([...lineOf(runId, parents)].map((id) => [parents.get(id), id]));
}

function parentsOf(/** @type {Run[]} */ runs, earlier = false) {
  const owners = new Map(
    runs.flatMap((run) => messagesOf(run).map((id) => /** @type {const} */ ([id, run.id]))),
  );
  const previous = (/** @type {number} */ at) => (at ? runs[at - 1].id : START);
  return new Map(
    runs.map((run, at) => [run.id, parentOf(run, previous(at), owners, earlier ? START : previous(at))]),
  );
}

/**
 * If a summary replaced the message of a branch, the run follows the previous run.
 *
 * @param {Run} run
 * @param {string} previous
 * @param {Map<string, string>} owners
 * @param {string} unknown the run before it if no run has the message of its branch
 */
function parentOf(run, previous, owners, unknown) {
  if (!run.branch) return previous;
  return run.branch.after === null ? START : (owners.get(run.branch.after) ?? unknown);
}

function lineOf(/** @type {string | undefined} */ id, /** @type {Map<string, string>} */ parents) {
  /** @type {Set<string>} */
  const line = new Set();
  for (let one = id; one && !line.has(one); one = parents.get(one)) line.add(one);
  return line;
}

/** The ids of stored messages. @param {Run} run */
function messagesOf(run) {
  const stored = run.entries.filter(
    (entry) =>
      entry.kind === 'message' && entry.complete && !entry.unstored && !entry.id.startsWith('content-'),
  );
  return [run.prompt?.id, ...stored.map((entry) => entry.id)].filter((id) => typeof id === 'string');
}

function lastMessageOf(/** @type {Run} */ run) {
  return messagesOf(run).at(-1) ?? null;
}
