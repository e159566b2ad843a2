/** The approval card: the exact calls of an approval request, and one decision for all of them. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { argumentFields, firstViolation, readArguments, withoutPattern } from '../forms.mjs';
import { explain, known, locale, t } from '../strings.mjs';
import { formatDuration } from '../text.mjs';
import { toolIcon } from './icons.mjs';
import { Diff } from './diff.mjs';
import { Exact, Icon, html, memo, useStore } from './ui.mjs';

export const ApprovalCard = memo(function ApprovalCard({ approval }) {
  return approval.resolved ? html`<${Resolved} approval=${approval} />` : html`<${Pending} approval=${approval} />`;
});

function Resolved({ approval }) {
  const { outcome, by, decisions = [], remember } = approval.resolved;
  const byCall = new Map(decisions.map((decision) => [decision.tool_call_id, decision]));
  return html`<section class=${`approval resolved ${outcome}`} role="group" aria-label=${t('approval.decided')}>
    <p class="approval-outcome">
      <${Icon} name=${outcome === 'approved' ? 'check' : outcome === 'mixed' ? 'shield' : 'close'} size=${16} />
      <strong>${known(`approval.outcome.${outcome}`, outcome)}</strong>
      ${by && html`<span>${t('approval.by', { user: by })}</span>`}
      ${remember && html`<span>${known(`approval.remembered.${remember}`, '')}</span>`}
    </p>
    <ul class="approval-trace">
      ${approval.items.map((item) => html`<${Trace} item=${item} decision=${byCall.get(item.tool_call_id)} />`)}
    </ul>
  </section>`;
}

function Trace({ item, decision }) {
  const shown = decision?.arguments ?? item.arguments;
  return html`<li class=${decision?.decision ?? ''}>
    <span class="tool-name">${item.name}</span> <code><${Exact} text=${shown.command ?? shown.path ?? shown.url ?? JSON.stringify(shown)} /></code>
    ${decision?.arguments && html`<em>${t('approval.edited')}</em>`}
    ${decision?.reason && html`<q>${decision.reason}</q>`}
  </li>`;
}

function Pending({ approval }) {
  const store = useStore();
  const card = useRef(null);
  const [choices, setChoices] = useState({});
  const [edits, setEdits] = useState({});
  const [remember, setRemember] = useState('');
  const [reason, setReason] = useState(null);
  const [sending, setSending] = useState(false);
  const [error, setError] = useState(null);
  const items = approval.items;
  const invalid = items.some((item) => edits[item.tool_call_id]?.problem);
  const count = (decision) => items.filter((item) => choices[item.tool_call_id] === decision).length;
  const chosen = count('approve') + count('reject');

  const submit = async (decisionOf) => {
    if (sending || invalid) return;
    setSending(true);
    setError(null);
    try {
      await store.inbox.decide(approval.id, replyFor(items, decisionOf, { edits, reason, remember }));
    } catch (failure) {
      setError(withoutPattern(explain(failure)));
      setSending(false);
    }
  };
  const approveAll = () => submit(() => 'approve');
  const rejectAll = () => submit(() => 'reject');
  const toggleEdit = (item) => setEdits(toggled(edits, item));
  const editFocused = () => {
    const id = document.activeElement?.closest?.('[data-call]')?.dataset.call;
    toggleEdit(items.find((item) => item.tool_call_id === id && item.editable !== false) ?? items.find((item) => item.editable !== false) ?? items[0]);
  };
  useCardKeys(card, { a: approveAll, r: rejectAll, e: editFocused });

  return html`<section
    class="approval pending"
    role="group"
    aria-label=${titleOf(items)}
    tabindex="-1"
    ref=${card}
    data-approval=${approval.id}
    onKeyDown=${(event) => trapFocus(event, card.current)}
  >
    <header class="approval-head">
      <${Icon} name="shield" size=${18} />
      <h2>${titleOf(items)}</h2>
      <${Expiry} at=${approval.expiresAt} />
    </header>
    <ol class="approval-items">
      ${items.map(
        (item) => html`<${Item}
          key=${item.tool_call_id}
          item=${item}
          single=${items.length === 1}
          choice=${choices[item.tool_call_id]}
          onChoice=${(choice) => setChoices({ ...choices, [item.tool_call_id]: choice })}
          edit=${edits[item.tool_call_id]}
          onToggleEdit=${() => toggleEdit(item)}
          onEdit=${(draft) => setEdits({ ...edits, [item.tool_call_id]: readEdit(item, draft) })}
        />`,
      )}
    </ol>
    ${reason !== null &&
    html`<label class="approval-reason">
      <span>${t('approval.reason')}</span>
      <input type="text" maxlength="2000" value=${reason} onInput=${(event) => setReason(event.target.value)} />
    </label>`}
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    <footer class="approval-actions">
      ${chosen > 0 && items.length > 1
        ? html`<button
            type="button"
            class="button primary"
            disabled=${sending || invalid || chosen < items.length}
            onClick=${() => submit((item) => choices[item.tool_call_id])}
          >
            ${chosen < items.length ? t('approval.undecided', { count: items.length - chosen }) : t('approval.submit', { approved: count('approve'), rejected: count('reject') })}
          </button>`
        : html`<button type="button" class="button primary" disabled=${sending || invalid} onClick=${approveAll}>
              ${items.length > 1 ? t('approval.approveAll', { count: items.length }) : t('approval.approve')} <kbd>A</kbd>
            </button>
            <button type="button" class="button" disabled=${sending} onClick=${rejectAll}>
              ${t(items.length > 1 ? 'approval.rejectAll' : 'approval.reject')} <kbd>R</kbd>
            </button>`}
      ${reason === null && html`<button type="button" class="link" onClick=${() => setReason('')}>${t('approval.addReason')}</button>`}
      <label class="approval-remember">
        <span>${t('approval.remember')}</span>
        <select value=${remember} onChange=${(event) => setRemember(event.target.value)}>
          <option value="">${t('approval.rememberNot')}</option>
          <option value="run">${t('approval.rememberRun')}</option>
          <option value="conversation">${t('approval.rememberConversation')}</option>
        </select>
      </label>
    </footer>
  </section>`;
}

function titleOf(items) {
  return items.length === 1 ? t('approval.titleOne', { tool: items[0].name }) : t('approval.title', { count: items.length });
}

/** The shortest reply: `all` if no call is edited and no reason is given. It names the calls that were shown. */
function replyFor(items, decisionOf, { edits, reason, remember }) {
  const decisions = items.map((item) => decisionFor(item, decisionOf(item), edits[item.tool_call_id], reason));
  const plain = decisions.every((d) => d.decision === decisions[0].decision && !d.arguments && !d.reason);
  const body = plain ? { all: decisions[0].decision } : { decisions };
  const digests = items.map((item) => item.digest);
  return { ...body, ...(remember ? { remember } : {}), digests };
}

function decisionFor(item, decision, edit, reason) {
  const base = { tool_call_id: item.tool_call_id, decision };
  if (decision === 'approve') return edit?.changed ? { ...base, arguments: edit.value } : base;
  return reason ? { ...base, reason } : base;
}

function toggled(edits, item) {
  if (item.editable === false) return edits;
  const { [item.tool_call_id]: open, ...rest } = edits;
  return open ? rest : { ...rest, [item.tool_call_id]: readEdit(item, { fields: argumentFields(item.arguments) }) };
}

/** Read edited arguments, a form or JSON: their value, or the problem with them. */
function readEdit(item, draft) {
  const read = draft.json === undefined ? readArguments(draft.fields) : readJson(draft.json);
  if (read.problem) return { draft, problem: read.problem };
  const problem = firstViolation(read.value, item.input_schema ?? schemaLike(item.arguments));
  return { draft, value: read.value, problem, changed: JSON.stringify(read.value) !== JSON.stringify(item.arguments) };
}

function readJson(text) {
  try {
    const value = JSON.parse(text);
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
    return isObject ? { value } : { problem: t('check.object') };
  } catch (error) {
    return { problem: t('check.json', { reason: error.message }) };
  }
}

/** Without the tool's schema, an argument must keep its type; the gateway checks the rest. */
function schemaLike(original) {
  const typed = Object.entries(original).map(([key, value]) => [key, typeOf(value)]);
  return { type: 'object', properties: Object.fromEntries(typed) };
}

function typeOf(value) {
  if (value === null) return {};
  return { type: Array.isArray(value) ? 'array' : typeof value };
}

function Item({ item, single, choice, onChoice, edit, onToggleEdit, onEdit }) {
  const shown = edit?.value && !edit.problem ? edit.value : item.arguments;
  const id = item.tool_call_id;
  return html`<li class=${`approval-item ${choice ?? ''}`} data-call=${id}>
    <div class="approval-item-head">
      <${Icon} name=${toolIcon(item.name)} size=${16} />
      <span class="tool-name">${item.name}</span>
      ${edit?.changed && html`<span class="badge">${t('approval.edited')}</span>`}
      ${!single &&
      html`<span class="choice" role="group" aria-label=${t('approval.decide', { tool: item.name })}>
        <button type="button" aria-pressed=${choice === 'approve'} onClick=${() => onChoice('approve')}>${t('approval.approve')}</button>
        <button type="button" aria-pressed=${choice === 'reject'} onClick=${() => onChoice('reject')}>${t('approval.reject')}</button>
      </span>`}
      ${item.editable !== false &&
      html`<button type="button" class="link edit" aria-expanded=${Boolean(edit)} onClick=${onToggleEdit}>
        ${t(edit ? 'approval.undoEdit' : 'approval.edit')} ${!edit && html`<kbd>E</kbd>`}
      </button>`}
    </div>
    <${Preview} item=${item} shown=${shown} />
    ${edit ? html`<${Editor} id=${id} edit=${edit} onEdit=${onEdit} />` : html`<${ExactArguments} item=${item} />`}
  </li>`;
}

/** One field for each argument, so that the content of a file is edited as it is; JSON for a new argument. */
function Editor({ id, edit, onEdit }) {
  const root = useRef(null);
  const { draft } = edit;
  useEffect(() => longestOf([...root.current.querySelectorAll('textarea')])?.focus(), []);
  const asJson = () => onEdit({ json: JSON.stringify(edit.value ?? Object.fromEntries(draft.fields.map(({ name, text }) => [name, text])), null, 2) });
  const change = (name, text) => onEdit({ fields: draft.fields.map((field) => (field.name === name ? { ...field, text } : field)) });
  const area = (name, label, text, onChange) => html`<label for=${`edit-${id}-${name}`}>${label}</label>
    <textarea
      id=${`edit-${id}-${name}`}
      spellcheck=${false}
      rows=${Math.min(16, text.split('\n').length)}
      value=${text}
      aria-invalid=${Boolean(edit.problem)}
      aria-describedby=${`edit-${id}-problem`}
      onInput=${(event) => onChange(event.target.value)}
    />`;
  return html`<div class="approval-editor" ref=${root}>
    ${draft.json === undefined
      ? draft.fields.map(({ name, label, text, isText }) => area(name, isText ? label : t('approval.jsonField', { label }), text, (next) => change(name, next)))
      : area('json', t('approval.jsonArguments'), draft.json, (json) => onEdit({ json }))}
    <p class="form-error" id=${`edit-${id}-problem`} role="status">${edit.problem ?? ''}</p>
    ${draft.json === undefined && html`<button type="button" class="link" onClick=${asJson}>${t('approval.editJson')}</button>`}
  </div>`;
}

function longestOf(areas) {
  return areas.toSorted((one, other) => other.value.length - one.value.length)[0];
}

function ExactArguments({ item }) {
  const text = JSON.stringify(item.arguments, null, 2);
  return html`<details class="exact" open=${item.preview?.kind === 'text' || !item.preview}>
    <summary>${t('approval.exact')} <span class="digest" title=${item.digest}>${item.digest ? `#${item.digest.slice(0, 8)}` : ''}</span></summary>
    <pre tabindex="0"><${Exact} text=${text} /></pre>
  </details>`;
}

function Preview({ item, shown }) {
  const preview = item.preview ?? {};
  switch (preview.kind) {
    case 'command':
      return html`<pre class="preview command" tabindex="0"><${Exact} text=${String(shown.command ?? preview.command ?? '')} /></pre>`;
    case 'url':
      return html`<p class="preview url"><${Exact} text=${String(shown.url ?? preview.url ?? '')} /></p>`;
    case 'diff':
      return html`<${Diff} path=${String(shown.path ?? preview.path ?? '')} before=${preview.old ?? null} after=${String(shown.content ?? preview.new ?? '')} />`;
    default:
      return preview.text ? html`<pre class="preview" tabindex="0"><${Exact} text=${preview.text} /></pre>` : null;
  }
}

function Expiry({ at }) {
  if (!at) return null;
  const left = Date.parse(at) - Date.now();
  const days = Math.round(left / 86_400_000);
  const words = left <= 0 ? t('approval.expired') : days >= 1 ? t('approval.expiresDays', { count: days }) : t('approval.expires', { duration: formatDuration(left) });
  return html`<span class="expiry" title=${new Date(at).toLocaleString(locale())}>${words}</span>`;
}

/**
 * Handle A, R and E while the focus is in the card, which never takes it by itself: a key that was meant for
 * something else decides nothing. A and R decide every call, so all of them must be visible; otherwise the key
 * shows the first one that is not.
 */
function useCardKeys(card, actions) {
  const latest = useRef(actions);
  latest.current = actions;
  useEffect(() => {
    const onKey = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.target.matches?.('input, textarea, select')) return;
      const key = event.key.toLowerCase();
      const action = latest.current[key];
      if (!action || !card.current.contains(document.activeElement)) return;
      event.preventDefault();
      const hidden = key === 'e' ? null : firstHidden(card.current);
      if (hidden) hidden.scrollIntoView({ block: 'start' });
      else action();
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
}

/** The first call of a card that is not completely in view; undefined if all are. */
function firstHidden(card) {
  const view = card.closest('.scroller').getBoundingClientRect();
  return [...card.querySelectorAll('[data-call]')].find((call) => {
    const { top, bottom } = call.getBoundingClientRect();
    return top < view.top - 1 || bottom > view.bottom + 1;
  });
}

/** Keep Tab in the card; Escape moves the focus to the composer. */
function trapFocus(event, card) {
  if (event.key === 'Escape') {
    document.querySelector('.composer textarea, h1[tabindex]')?.focus();
    return;
  }
  if (event.key !== 'Tab') return;
  const stops = [...card.querySelectorAll('button:not(:disabled), input, select, textarea, summary, [tabindex="0"]')].filter((stop) => stop.offsetParent);
  const first = stops[0];
  const last = stops.at(-1);
  const leaving = event.shiftKey ? [first, card].includes(document.activeElement) : document.activeElement === last;
  if (!leaving) return;
  event.preventDefault();
  (event.shiftKey ? last : first)?.focus();
}
