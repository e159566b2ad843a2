/** The decision of a user on an approval request: the edited arguments of its calls, and the reply. Pure. */

import { argumentFields, readArguments } from './forms.mjs';
import { firstViolation } from './schema_checks.mjs';
import { t } from './strings.mjs';

/**
 * @typedef {object} Draft the fields of a call: one field for each argument, or all arguments as JSON
 * @property {{name: string, label: string, text: string, isText: boolean}[]} [fields]
 * @property {string} [json]
 */

/**
 * @typedef {object} Edit
 * @property {Draft} draft
 * @property {Json} [value] the edited arguments; absent if they cannot be read
 * @property {string | null} [problem] why they cannot be sent
 * @property {boolean} [changed] whether they differ from the arguments of the request
 */

/**
 * The shortest reply: `all` if no call is edited and no reason is given. It contains the digests of the shown calls.
 *
 * @param {ApprovalItem[]} items the calls of the request
 * @param {(item: ApprovalItem) => Decision} decisionOf
 * @param {{edits: Record<string, Edit>, reason: string | null, remember: string, onReject?: string}} said edits by the
 *   id of the call; `remember` is a scope, and after a space `begins` or `tool`
 */
export function replyFor(items, decisionOf, { edits, reason, remember, onReject }) {
  const [scope, covers] = remember === 'everyone' ? [''] : remember.split(' ');
  const decisions = items.map((item) =>
    decisionFor(item, decisionOf(item), edits[item.tool_call_id], { reason, covers }),
  );
  const plain = decisions.every((d) => d.decision === decisions[0].decision && Object.keys(d).length === 2);
  const body = plain ? { all: decisions[0].decision } : { decisions };
  const digests = items.map((item) => item.digest);
  return { ...body, ...(scope && { remember: scope }), ...(onReject && { on_reject: onReject }), digests };
}

export { AWAITING_SECOND } from './events.mjs';

/**
 * @param {ApprovalItem} item
 * @param {Decision} decision
 * @param {Edit | undefined} edit
 * @param {{reason: string | null, covers: string | undefined}} options
 */
function decisionFor(item, decision, edit, { reason, covers }) {
  const base = { tool_call_id: item.tool_call_id, decision, ...(covers && { covers }) };
  if (decision === 'approve') return edit?.changed ? { ...base, arguments: edit.value } : base;
  return reason ? { ...base, reason } : base;
}

/**
 * The edits after the edit of one call has begun or was undone.
 *
 * @param {Record<string, Edit>} edits by the id of the call
 * @param {ApprovalItem} item
 */
export function toggled(edits, item) {
  if (item.editable === false) return edits;
  const { [item.tool_call_id]: open, ...rest } = edits;
  return open
    ? rest
    : { ...rest, [item.tool_call_id]: readEdit(item, { fields: argumentFields(item.arguments) }) };
}

/**
 * Read edited arguments: their value, or the problem with them.
 *
 * @param {Draft} draft
 * @param {ApprovalItem} item
 * @returns {Edit}
 */
export function readEdit(item, draft) {
  const read = draft.json === undefined ? readArguments(draft.fields ?? []) : readJson(draft.json);
  if ('problem' in read) return { draft, problem: read.problem };
  const problem = firstViolation(read.value, schemaLike(item.arguments));
  return {
    draft,
    value: read.value,
    problem,
    changed: JSON.stringify(read.value) !== JSON.stringify(item.arguments),
  };
}

/** @param {string} text @returns {{value: Json} | {problem: string}} */
function readJson(text) {
  try {
    const value = JSON.parse(text);
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
    return isObject ? { value } : { problem: t('check.object') };
  } catch {
    return { problem: t('check.json') };
  }
}

/** Without the tool's schema, an argument must keep its type; the gateway checks the rest. @param {Json} original */
function schemaLike(original) {
  const typed = Object.entries(original).map(([key, value]) => [key, typeOf(value)]);
  return { type: 'object', properties: Object.fromEntries(typed) };
}

function typeOf(/** @type {unknown} */ value) {
  if (value === null) return {};
  return { type: Array.isArray(value) ? 'array' : typeof value };
}
