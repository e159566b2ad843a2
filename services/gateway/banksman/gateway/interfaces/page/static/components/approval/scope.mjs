/** What a remembered decision covers, and what the first of two users approved. */

import { useLayoutEffect } from 'preact/hooks';

import { ruleCovers, rulesFor } from '../../decision_rules.mjs';
import { addressOf } from '../../router.mjs';
import { known, parts, t } from '../../strings.mjs';
import { Diff } from '../diff.mjs';
import { Exact, html } from '../ui.mjs';

/**
 * @typedef {Pick<ApprovalItem, 'name' | 'arguments'> & {covers?: {by: string, words?: string} | null, begins?: string | null, edited?: boolean}} Covering
 *   a call with its arguments as they run
 */

/** The calls that a decision covers if it is remembered, in words. @param {Covering} call */
export function coverageWords({ name, covers, begins, arguments: given, edited }) {
  const by = covers?.by ?? 'arguments';
  const kind = by === 'path' && name !== 'read_file' ? 'write' : edited && name === 'bash' ? 'edited' : by;
  const key = `approval.covers.${kind}`;
  if (known(key, null) === null) return covers?.words ?? '';
  const value = by === 'host' ? hostOf(given.url) : by === 'begins' ? begins : given.path;
  return t(/** @type {Key} */ (key), { tool: name, value: String(value) });
}

/** The scope of an administrator's rule, as against the scopes `run` and `conversation` of a decision. */
export const EVERYONE = 'everyone';

/**
 * Which further calls the decision covers. The value is a scope, and after a space `begins` or `tool`.
 *
 * @param {{items: (ApprovalItem & {edited?: boolean})[], value: string, onChange: (value: string) => void, mayRule: boolean}} properties `items`
 *   with the arguments as they run
 */
export function Scope({ items, value, onChange, mayRule }) {
  const [scope, by] = value.split(' ');
  const option = (/** @type {string} */ name) => {
    const [place, wider] = name.split(' ');
    const what = [...new Set(items.map((item) => coverageWords(widened(item, place, wider))))].join('; ');
    return html`<option value=${name}>${t(/** @type {Key} */ (`approval.for.${place}`), { what })}</option>`;
  };
  const offered = scopesOf(items, mayRule);
  useLayoutEffect(() => {
    if (value && !offered.includes(value)) onChange('');
  });
  return html`<label class="approval-remember wrap muted">
      <span>${t('approval.remember')}</span>
      <select value=${value} onChange=${(event) => onChange(event.target.value)}>
        <option value="">${t('approval.for.this')}</option>
        ${offered.map(option)}
      </select>
    </label>
    ${value && html`<${Covered} calls=${items.map((item) => widened(item, scope, by))} scope=${scope} />`}`;
}

function scopesOf(
  /** @type {(ApprovalItem & {edited?: boolean})[]} */ items,
  /** @type {boolean} */ mayRule,
) {
  const plain = items.some((item) => item.covers?.by !== 'nothing') ? ['run', 'conversation'] : [];
  const begins = items.every((item) => item.begins && !item.edited);
  const everyone = mayRule && items.length === 1 && !items[0].edited && rulesFor(items[0]);
  return [
    ...plain,
    ...(begins ? ['run begins', 'conversation begins'] : []),
    'run tool',
    ...(everyone ? [EVERYONE] : []),
  ];
}

/** @param {ApprovalItem} item @param {string} scope @param {string} by @returns {Covering} */
function widened(item, scope, by) {
  const wider = scope === EVERYONE ? ruleCovers(item) : by;
  return wider ? { ...item, edited: false, covers: { by: wider } } : item;
}

/** @param {{calls: Covering[], scope: string}} properties `scope` is `run`, `conversation` or `everyone` */
export function Covered({ calls, scope }) {
  return html`<div class="approval-covers">
    <p>${t(/** @type {Key} */ (`approval.covered.${scope}`))}</p>
    <ul>
      ${calls.map((call) => html`<li><${Exact} text=${coverageWords(call)} /></li>`)}
    </ul>
    <p class="muted">
      ${parts('approval.listed', { rules: html`<a href=${addressOf('rules')}>${t('rules.title')}</a>` })}
    </p>
  </div>`;
}

/** The arguments that the first of two users changed. @param {{item: ApprovalItem}} properties */
export function Changes({ item }) {
  const { arguments: edited } = item;
  const requested = item.requested ?? {};
  const names = [...new Set([...Object.keys(requested), ...Object.keys(edited)])].filter(
    (name) => textOf(requested[name]) !== textOf(edited[name]),
  );
  return html`<div class="approval-changes" role="note">
    <p>${t('approval.changedByFirst')}</p>
    ${names.map(
      (name) =>
        html`<${Diff}
          key=${name}
          path=${name}
          before=${textOf(requested[name])}
          after=${textOf(edited[name])} />`,
    )}
  </div>`;
}

/**
 * What the first of two users approved. The second user must approve exactly the same.
 *
 * @param {{first: NonNullable<Asked['first']>, items: ApprovalItem[]}} properties
 */
export function First({ first, items }) {
  const refused = new Set(
    first.decisions.filter((one) => one.decision === 'reject').map((one) => one.tool_call_id),
  );
  return html`<div class="approval-first" role="note">
    <p>${t('approval.first', { user: first.by })}</p>
    ${items
      .filter((item) => refused.has(item.tool_call_id))
      .map((item) => html`<p>${t('approval.firstRejected', { tool: item.name })}</p>`)}
    ${first.remember && html`<${Covered} calls=${items} scope=${first.remember} />`}
  </div>`;
}

const textOf = (/** @type {unknown} */ value) =>
  typeof value === 'string' ? value : value === undefined ? '' : JSON.stringify(value, null, 2);

function hostOf(/** @type {unknown} */ url) {
  const text = String(url);
  return URL.canParse(text) ? new URL(text).hostname : text;
}
