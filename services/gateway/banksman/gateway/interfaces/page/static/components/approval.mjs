/** The approval card: the exact calls of an approval request, and one decision for all of them. */

import { useRef, useState } from 'preact/hooks';

import { AWAITING_SECOND, readEdit, replyFor, toggled } from '../decisions.mjs';
import { withoutPattern } from '../pattern_words.mjs';
import { explain, known, locale, t } from '../strings.mjs';
import { formatDuration } from '../text.mjs';
import { Call } from './approval/call.mjs';
import { trapFocus, useCardKeys } from './approval/keys.mjs';
import { Covered, First } from './approval/scope.mjs';
import { Exact, Icon, html, memo, useStore } from './ui.mjs';

export const ApprovalCard = memo(function ApprovalCard({ approval }) {
  return approval.resolved
    ? html`<${Resolved} approval=${approval} />`
    : html`<${Pending} approval=${approval} />`;
});

function Resolved({ approval }) {
  const { outcome, by, decisions = [], remember, first_by: firstBy } = approval.resolved;
  const byCall = new Map(decisions.map((decision) => [decision.tool_call_id, decision]));
  return html`<section
    class=${`approval resolved ${outcome}`}
    role="group"
    aria-label=${t('approval.decided')}
  >
    <p class="approval-outcome">
      <${Icon}
        name=${outcome === 'approved' ? 'check' : outcome === 'mixed' ? 'shield' : 'close'}
        size=${16}
      />
      <strong>${known(`approval.outcome.${outcome}`, outcome)}</strong>
      <span
        >${by && t('approval.by', { user: by })}${firstBy && t('approval.firstBy', { user: firstBy })}${remember && known(`approval.remembered.${remember}`, '')}</span
      >
    </p>
    <ul class="approval-trace">
      ${approval.items.map((item) => html`<${Trace} item=${item} decision=${byCall.get(item.tool_call_id)} />`)}
    </ul>
  </section>`;
}

function Trace({ item, decision }) {
  const shown = decision?.arguments ?? item.arguments;
  return html`<li class=${decision?.decision ?? ''}>
    <span class="tool-name"><${Exact} text=${item.name} /></span>
    <code><${Exact} text=${shown.command ?? shown.path ?? shown.url ?? JSON.stringify(shown)} /></code>${' '}
    ${decision?.arguments && html`<em>${t('approval.edited')}</em>`}
    ${decision?.reason && html`<q><${Exact} text=${decision.reason} /></q>`}
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
  const [refused, setRefused] = useState(null);
  // The request as it is now: the first of two users may have changed what will run.
  const sent = refused ?? store.inbox.state.value.items.find((one) => one.id === approval.id) ?? approval;
  const { items, first, terms } = sent;
  const waitsForOthers = first?.by === store.welcome.value?.user;
  const invalid = items.some((item) => edits[item.tool_call_id]?.problem);
  const count = (decision) => items.filter((item) => choices[item.tool_call_id] === decision).length;
  const chosen = count('approve') + count('reject');

  const submit = async (decisionOf) => {
    if (sending || invalid) return;
    const reply = replyFor(
      items,
      decisionOf,
      first ? { edits: {}, reason, remember: '' } : { edits, reason, remember },
    );
    setSending(true);
    setError(null);
    try {
      const ack = await store.inbox.decide(approval.id, reply);
      if (ack.outcome === AWAITING_SECOND) setSending(false);
    } catch (failure) {
      const current = failure.details?.approval;
      if (current) setRefused(current);
      setError(current ? t('approval.contentChanged') : withoutPattern(explain(failure)));
      setSending(false);
    }
  };
  const approveAll = () => waitsForOthers || submit(() => 'approve');
  const rejectAll = () => submit(() => 'reject');
  const toggleEdit = (item) => first || setEdits(toggled(edits, item));
  const editFocused = () => {
    const id = document.activeElement?.closest?.('[data-call]')?.dataset.call;
    toggleEdit(
      items.find((item) => item.tool_call_id === id && item.editable !== false) ??
        items.find((item) => item.editable !== false) ??
        items[0],
    );
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
      <h2><${Exact} text=${titleOf(items)} /></h2>
      <${Expiry} at=${approval.expiresAt} />
    </header>
    <ol class="approval-items">
      ${items.map(
        (item) =>
          html`<${Call}
            key=${item.tool_call_id}
            item=${first ? { ...item, editable: false } : item}
            single=${items.length === 1}
            choice=${choices[item.tool_call_id]}
            onChoice=${(choice) => setChoices({ ...choices, [item.tool_call_id]: choice })}
            edit=${first ? undefined : edits[item.tool_call_id]}
            onToggleEdit=${() => toggleEdit(item)}
            onEdit=${(draft) => setEdits({ ...edits, [item.tool_call_id]: readEdit(item, draft) })}
          />`,
      )}
    </ol>
    ${
      reason !== null &&
      html`<label class="approval-reason">
        <span>${t('approval.reason')}</span>
        <input
          type="text"
          maxlength="2000"
          value=${reason}
          onInput=${(event) => setReason(event.target.value)}
        />
      </label>`
    }
    ${first ? html`<${First} first=${first} items=${items} />` : terms?.approvers === 2 && html`<p class="approval-first">${t('approval.needsTwo')}</p>`}
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    <footer class="approval-actions">
      ${
        chosen > 0 && items.length > 1
          ? html`<button
              type="button"
              class="button primary"
              disabled=${sending || invalid || chosen < items.length}
              onClick=${() => submit((item) => choices[item.tool_call_id])}
            >
              ${chosen < items.length ? t('approval.undecided', { count: items.length - chosen }) : t('approval.submit', { approved: count('approve'), rejected: count('reject') })}
            </button>`
          : html`<button
                type="button"
                class="button primary"
                disabled=${sending || invalid || waitsForOthers}
                onClick=${approveAll}
              >
                ${items.length > 1 ? t('approval.approveAll', { count: items.length }) : t('approval.approve')}
                <kbd>A</kbd>
              </button>
              <button type="button" class="button" disabled=${sending} onClick=${rejectAll}>
                ${t(items.length > 1 ? 'approval.rejectAll' : 'approval.reject')} <kbd>R</kbd>
              </button>`
      }
      ${reason === null && html`<button type="button" class="link" onClick=${() => setReason('')}>${t('approval.addReason')}</button>`}
      ${
        !first &&
        html`<label class="approval-remember">
          <span>${t('approval.remember')}</span>
          <select value=${remember} onChange=${(event) => setRemember(event.target.value)}>
            <option value="">${t('approval.rememberNot')}</option>
            <option value="run">${t('approval.rememberRun')}</option>
            <option value="conversation">${t('approval.rememberConversation')}</option>
          </select>
        </label>`
      }
    </footer>
    ${!first && remember && html`<${Covered} calls=${items.map((item) => asEdited(item, edits[item.tool_call_id]))} scope=${remember} />`}
  </section>`;
}

const asEdited = (item, edit) =>
  edit?.changed ? { ...item, arguments: edit.value ?? {}, edited: true } : item;

function titleOf(items) {
  return items.length === 1
    ? t('approval.titleOne', { tool: items[0].name })
    : t('approval.title', { count: items.length });
}

function Expiry({ at }) {
  if (!at) return null;
  const left = Date.parse(at) - Date.now();
  const days = Math.round(left / 86_400_000);
  const words =
    left <= 0
      ? t('approval.expired')
      : days >= 1
        ? t('approval.expiresDays', { count: days })
        : t('approval.expires', { duration: formatDuration(left) });
  return html`<span class="expiry" title=${new Date(at).toLocaleString(locale())}>${words}</span>`;
}
