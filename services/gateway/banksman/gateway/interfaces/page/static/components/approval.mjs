/** The approval card: the exact calls of an approval request, and one decision for all of them. */

import { useRef, useState } from 'preact/hooks';

import { AWAITING_SECOND, readEdit, replyFor, toggled } from '../decisions.mjs';
import { withoutPattern } from '../pattern_words.mjs';
import { explain, known, locale, t } from '../strings.mjs';
import { formatDuration } from '../text.mjs';
import { Call } from './approval/call.mjs';
import { leaveOnEscape, useCardKeys } from './approval/keys.mjs';
import { EVERYONE, First, Scope } from './approval/scope.mjs';
import { useKept } from './requests.mjs';
import { Exact, Icon, LinkButton, html, memo, useStore } from './ui.mjs';

/** @typedef {import('../decisions.mjs').Draft} Draft */

export const ApprovalCard = memo(function ApprovalCard(
  /** @type {{approval: Approval | Waiting}} */ { approval },
) {
  return approval.resolved
    ? html`<${Resolved} items=${approval.items} resolved=${approval.resolved} />`
    : html`<${Pending} approval=${approval} />`;
});

/** @param {{items: ApprovalItem[], resolved: NonNullable<Asked['resolved']>}} properties */
function Resolved({ items, resolved }) {
  const { outcome, by, decisions = [], remember, first_by: firstBy } = resolved;
  const byCall = new Map(decisions.map((decision) => [decision.tool_call_id, decision]));
  return html`<section
    class=${`approval resolved ${outcome}`}
    role="group"
    aria-label=${t('approval.decided')}>
    <p class="approval-outcome wrap muted">
      <${Icon}
        name=${outcome === 'approved' ? 'check' : outcome === 'mixed' ? 'shield' : 'close'}
        size=${16} />
      <strong>${known(`approval.outcome.${outcome}`, outcome)}</strong>
      <span>
        ${by && t('approval.by', { user: by })} ${firstBy && t('approval.firstBy', { user: firstBy })}
        ${remember && known(`approval.remembered.${remember}`, '')}
      </span>
    </p>
    <ul class="approval-trace muted">
      ${items.map((item) => html`<${Trace} item=${item} decision=${byCall.get(item.tool_call_id)} />`)}
    </ul>
  </section>`;
}

/** @param {{item: ApprovalItem, decision?: NonNullable<NonNullable<Asked['resolved']>['decisions']>[number]}} properties */
function Trace({ item, decision }) {
  const shown = decision?.arguments ?? item.arguments;
  return html`<li class=${decision?.decision ?? ''}>
    <span class="tool-name"><${Exact} text=${item.name} /></span>
    <code><${Exact} text=${String(shown.command ?? shown.path ?? shown.url ?? JSON.stringify(shown))} /></code
    >${' '} ${decision?.arguments && html`<em>${t('approval.edited')}</em>`}
    ${decision?.reason && html`<q><${Exact} text=${decision.reason} /></q>`}
  </li>`;
}

function Pending(/** @type {{approval: Approval | Waiting}} */ { approval }) {
  const { inbox, session } = useStore();
  const card = useRef(/** @type {HTMLElement | null} */ (null));
  const [choices, setChoices] = useState(/** @type {Record<string, Decision>} */ ({}));
  /** @type {ReturnType<typeof useKept<Record<string, Edit>>>} */
  const [written, setEdits] = useKept(`edits ${approval.id}`);
  const edits = written ?? {};
  const [remember, setRemember] = useState('');
  /** @type {ReturnType<typeof useKept<string>>} */
  const [reason, setReason] = useKept(`reason ${approval.id}`);
  const [sending, setSending] = useState(false);
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const [refused, setRefused] = useState(/** @type {Asked | null} */ (null));
  // The request as it is now: the first of two users may have changed what will run.
  const sent = refused ?? inbox.state.value.items.find((one) => one.id === approval.id) ?? approval;
  const { first, terms } = sent;
  // An edit would send the numbers as this browser reads them.
  const items = sent.items.map((item) => (item.exact ? { ...item, editable: false } : item));
  const waitsForOthers = first?.by === session.welcome.value?.user;
  const invalid = items.some((item) => edits[item.tool_call_id]?.problem);
  const chosen = (/** @type {Decision} */ decision) =>
    items.filter((item) => choices[item.tool_call_id] === decision);
  const undecided = items.length - chosen('approve').length - chosen('reject').length;
  const several = undecided < items.length;
  const rejections = sent.on_reject === 'feedback' ? ['feedback', 'abort'] : ['abort', 'feedback'];

  /** @param {(item: ApprovalItem) => Decision} decisionOf @param {string} [onReject] */
  const submit = async (decisionOf, onReject) => {
    if (sending || invalid) return;
    const said = first ? { edits: {}, remember: '' } : { edits, remember };
    setSending(true);
    setError(null);
    try {
      const reply = replyFor(items, decisionOf, { ...said, reason, onReject });
      const ack = await inbox.decide(approval.id, reply);
      if (said.remember === EVERYONE && !ack.already_resolved)
        await inbox.addRule(items[0], decisionOf(items[0]));
      if (ack.outcome === AWAITING_SECOND) setSending(false);
    } catch (failure) {
      const current = /** @type {{details?: {approval?: Asked}}} */ (failure).details?.approval;
      if (current) setRefused(current);
      setError(current ? t('approval.contentChanged') : withoutPattern(explain(failure)));
      setSending(false);
    }
  };
  const approveAll = () => waitsForOthers || submit(() => 'approve');
  const reject = (/** @type {string} */ onReject) =>
    submit(several ? (item) => choices[item.tool_call_id] : () => 'reject', onReject);
  const toggleEdit = (/** @type {ApprovalItem} */ item) => first || setEdits(toggled(edits, item));
  const editFocused = () => {
    const id = document.activeElement?.closest('[data-call]')?.getAttribute('data-call');
    const editable = items.filter((item) => item.editable !== false);
    toggleEdit(editable.find((item) => item.tool_call_id === id) ?? editable[0] ?? items[0]);
  };
  useCardKeys(card, { a: approveAll, r: () => several || reject(rejections[0]), e: editFocused });

  const edited = items.map((item) => asEdited(item, edits[item.tool_call_id]));
  const mayRule = session.welcome.value?.rights?.some((right) => right === 'admin' || right === 'operator');
  return html`<section
    class="approval pending"
    role="group"
    aria-label=${titleOf(items)}
    tabindex="-1"
    ref=${card}
    data-approval=${approval.id}
    onKeyDown=${leaveOnEscape}>
    <header class="approval-head bar">
      <${Icon} name="shield" size=${18} />
      <div class="approval-title">
        <h2><${Exact} text=${titleOf(items)} /></h2>
        <${Expiry} at=${approval.expiresAt} />
      </div>
    </header>
    <div class="approval-body" tabindex="0" role="group" aria-label=${t('approval.content')}>
      <ol class="approval-items">
        ${items.map(
          (item) =>
            html`<${Call}
              key=${item.tool_call_id}
              item=${first ? { ...item, editable: false } : item}
              single=${items.length === 1}
              choice=${choices[item.tool_call_id]}
              onChoice=${(/** @type {Decision} */ choice) =>
                setChoices({ ...choices, [item.tool_call_id]: choice })}
              edit=${first ? undefined : edits[item.tool_call_id]}
              onToggleEdit=${() => toggleEdit(item)}
              onEdit=${(/** @type {Draft} */ draft) =>
                setEdits({ ...edits, [item.tool_call_id]: readEdit(item, draft) })} />`,
        )}
      </ol>
      ${
        first
          ? html`<${First} first=${first} items=${items} />`
          : terms?.approvers === 2 && html`<p class="approval-first">${t('approval.needsTwo')}</p>`
      }
      ${
        reason !== null &&
        html`<label class="approval-reason">
          <span class="muted">${t('approval.reason')}</span>
          <input
            type="text"
            maxlength="2000"
            value=${reason}
            onInput=${(event) => setReason(event.target.value)} />
        </label>`
      }
      <div class="approval-more wrap text-s">
        ${
          !first &&
          html`<${Scope} items=${edited} value=${remember} onChange=${setRemember} mayRule=${mayRule} />`
        }
        ${
          reason === null &&
          html`<${LinkButton} onClick=${() => setReason('')}>${t('approval.addReason')}<//>`
        }
      </div>
    </div>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    <footer class="approval-actions wrap" onClickCapture=${onlyFirstClick}>
      ${
        !several &&
        html`<button
          type="button"
          class="button primary"
          disabled=${sending || invalid || waitsForOthers}
          onClick=${approveAll}>
          ${items.length > 1 ? t('approval.approveAll', { count: items.length }) : t('approval.approve')}
          <kbd aria-hidden="true">A</kbd>
        </button>`
      }
      ${
        several &&
        (undecided > 0 || !chosen('reject').length) &&
        html`<button
          type="button"
          class="button primary"
          disabled=${sending || invalid || undecided > 0}
          onClick=${() => submit(() => 'approve')}>
          ${
            undecided > 0
              ? t('approval.undecided', { count: undecided })
              : t('approval.approveAll', { count: items.length })
          }
        </button>`
      }
      ${
        (several ? undecided === 0 && chosen('reject').length > 0 : true) &&
        rejections.map(
          (onReject, at) =>
            html`<button
              key=${onReject}
              type="button"
              class=${`button consequence ${several && at === 0 ? 'primary' : ''}`}
              disabled=${sending || invalid}
              onClick=${() => reject(onReject)}>
              <strong
                >${t(/** @type {Key} */ (`approval.reject.${onReject}`))}
                ${at === 0 && !several && html`<kbd aria-hidden="true">R</kbd>`}</strong
              >
              <small>${consequence(onReject, items, chosen('approve'))}</small>
            </button>`,
        )
      }
    </footer>
  </section>`;
}

/** The second click of a double click meets the request that has moved to this place. @param {MouseEvent} event */
const onlyFirstClick = (event) => event.detail > 1 && event.stopPropagation();

/**
 * What a rejection means for the run and for the calls of the request.
 *
 * @param {string} onReject `feedback` or `abort`
 * @param {ApprovalItem[]} items
 * @param {ApprovalItem[]} approved
 */
function consequence(onReject, items, approved) {
  const runs = onReject === 'feedback' ? approved : items;
  const calls = [...new Set(runs.map((item) => item.name))].join(', ');
  return calls
    ? t(/** @type {Key} */ (`approval.then.${onReject}`), { calls })
    : t('approval.then.continues');
}

const asEdited = (/** @type {ApprovalItem} */ item, /** @type {Edit | undefined} */ edit) =>
  edit?.changed ? { ...item, arguments: edit.value ?? {}, edited: true } : item;

function titleOf(/** @type {ApprovalItem[]} */ items) {
  return items.length === 1
    ? t('approval.titleOne', { tool: items[0].name })
    : t('approval.title', { count: items.length });
}

export function Expiry(/** @type {{at: string | null}} */ { at }) {
  if (!at) return null;
  const left = Date.parse(at) - Date.now();
  const days = Math.round(left / 86_400_000);
  const words =
    left <= 0
      ? t('approval.expired')
      : days >= 1
        ? t('approval.expiresDays', { count: days })
        : t('approval.expires', { duration: formatDuration(left) });
  return html`<span class="expiry muted text-xs" title=${new Date(at).toLocaleString(locale())}
    >${words}</span
  >`;
}
