/** What a remembered decision covers, and what the first of two users approved. */

import { known, t } from '../../strings.mjs';
import { Diff } from '../diff.mjs';
import { Exact, html } from '../ui.mjs';

/** The calls that a decision covers if it is remembered, in words. @param {object} call the call, with its arguments as they run */
export function coverageWords({ name, covers, arguments: given, edited }) {
  const by = covers?.by ?? 'arguments';
  const kind = by === 'path' && name !== 'read_file' ? 'write' : edited && name === 'bash' ? 'edited' : by;
  const key = `approval.covers.${kind}`;
  return known(key, null) === null
    ? covers.words
    : t(key, { tool: name, value: by === 'host' ? hostOf(given.url) : given.path });
}

/** @param {{calls: object[], scope: string}} properties `scope` is `run` or `conversation` */
export function Covered({ calls, scope }) {
  return html`<div class="approval-covers">
    <p>${t(`approval.covered.${scope}`)}</p>
    <ul>
      ${calls.map((call) => html`<li><${Exact} text=${coverageWords(call)} /></li>`)}
    </ul>
  </div>`;
}

/** The arguments that the first of two users changed. */
export function Changes({ item }) {
  const { requested, arguments: edited } = item;
  const names = [...new Set([...Object.keys(requested), ...Object.keys(edited)])].filter(
    (name) => textOf(requested[name]) !== textOf(edited[name]),
  );
  return html`<div class="approval-changes" role="note">
    <p>${t('approval.changedByFirst')}</p>
    ${names.map((name) => html`<${Diff} key=${name} path=${name} before=${textOf(requested[name])} after=${textOf(edited[name])} />`)}
  </div>`;
}

/** What the first of two users approved. The second user must approve exactly the same. */
export function First({ first, items }) {
  const refused = new Set(
    first.decisions.filter((one) => one.decision === 'reject').map((one) => one.tool_call_id),
  );
  return html`<div class="approval-first" role="note">
    <p>${t('approval.first', { user: first.by })}</p>
    ${items.filter((item) => refused.has(item.tool_call_id)).map((item) => html`<p>${t('approval.firstRejected', { tool: item.name })}</p>`)}
    ${first.remember && html`<${Covered} calls=${items} scope=${first.remember} />`}
  </div>`;
}

const textOf = (value) =>
  typeof value === 'string' ? value : value === undefined ? '' : JSON.stringify(value, null, 2);

function hostOf(url) {
  return URL.canParse(url) ? new URL(url).hostname : String(url);
}
