/** The terms of approval: whether one or two users decide, and to whom open requests are escalated. */

import { t } from '../../strings.mjs';
import { Check, TextField, namesIn } from '../fields.mjs';
import { html } from '../ui.mjs';

const MINUTE_S = 60;
/** @typedef {NonNullable<Policy['approvals']['escalation']>} Escalation */

/** @type {Escalation} */
const NONE = { after_s: null, when_set_aside: false, users: [] };

/** @param {{value?: Policy['approvals'], onChange: (terms: Policy['approvals']) => void}} properties */
export function Terms({ value, onChange }) {
  const given = value ?? { approvers: 1, escalation: null };
  const escalation = given.escalation ?? NONE;
  const escalate = (/** @type {Partial<Escalation>} */ fields) => {
    const next = { ...escalation, ...fields };
    onChange({ ...given, escalation: next.after_s || next.when_set_aside ? next : null });
  };
  return html`<fieldset class="assistant-part stack">
    <legend>${t('terms.title')}</legend>
    <${Check}
      label=${t('terms.two')}
      value=${given.approvers === 2}
      onChange=${(/** @type {boolean} */ two) => onChange({ ...given, approvers: two ? 2 : 1 })} />
    <${TextField}
      label=${t('terms.after')}
      value=${escalation.after_s ? escalation.after_s / MINUTE_S : ''}
      onChange=${(/** @type {string} */ minutes) => escalate({ after_s: Number(minutes) * MINUTE_S || null })}
      type="number"
      min="1"
      max="43200"
      step="1"
      placeholder=${t('terms.never')} />
    <${Check}
      label=${t('terms.aside')}
      value=${escalation.when_set_aside}
      onChange=${(/** @type {boolean} */ aside) => escalate({ when_set_aside: aside })} />
    ${
      given.escalation &&
      html`<${TextField}
        label=${t('terms.users')}
        value=${escalation.users.join(', ')}
        onChange=${(/** @type {string} */ users) => escalate({ users: namesIn(users) })}
        late
        maxlength="2000"
        placeholder=${t('terms.everyone')} />`
    }
  </fieldset>`;
}
