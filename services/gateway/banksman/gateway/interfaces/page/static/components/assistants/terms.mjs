/** The terms of approval: whether one or two users decide, and to whom open requests are escalated. */

import { t } from '../../strings.mjs';
import { html } from '../ui.mjs';

const MINUTE_S = 60;
/** @typedef {NonNullable<Policy['approvals']['escalation']>} Escalation */

/** @type {Escalation} */
const NONE = { after_s: null, when_set_aside: false, users: [] };

/** @param {{terms?: Policy['approvals'], onChange: (terms: Policy['approvals']) => void}} properties */
export function Terms({ terms, onChange }) {
  const given = terms ?? { approvers: 1, escalation: null };
  const escalation = given.escalation ?? NONE;
  const escalate = (/** @type {Partial<Escalation>} */ fields) => {
    const next = { ...escalation, ...fields };
    onChange({ ...given, escalation: next.after_s || next.when_set_aside ? next : null });
  };
  return html`<fieldset class="assistant-part">
    <legend>${t('terms.title')}</legend>
    <div class="form-field check">
      <label
        ><input
          type="checkbox"
          checked=${given.approvers === 2}
          onChange=${(event) => onChange({ ...given, approvers: event.target.checked ? 2 : 1 })}
        />${t('terms.two')}</label
      >
    </div>
    <label class="form-field"
      ><span>${t('terms.after')}</span>
      <input
        type="number"
        min="1"
        max="43200"
        step="1"
        placeholder=${t('terms.never')}
        value=${escalation.after_s ? escalation.after_s / MINUTE_S : ''}
        onInput=${(event) => escalate({ after_s: Number(event.target.value) * MINUTE_S || null })}
      />
    </label>
    <div class="form-field check">
      <label
        ><input
          type="checkbox"
          checked=${escalation.when_set_aside}
          onChange=${(event) => escalate({ when_set_aside: event.target.checked })}
        />${t('terms.aside')}</label
      >
    </div>
    ${
      given.escalation &&
      html`<label class="form-field"
        ><span>${t('terms.users')}</span>
        <input
          maxlength="2000"
          placeholder=${t('terms.everyone')}
          value=${escalation.users.join(', ')}
          onChange=${(event) =>
            escalate({
              users: event.target.value
                .split(',')
                .map((name) => name.trim())
                .filter(Boolean),
            })}
        />
      </label>`
    }
  </fieldset>`;
}
