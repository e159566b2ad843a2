/** Requests of workflows and servers of tools for a value of a user, or for yes or no with one click. */

import { known, t } from '../strings.mjs';
import { Expiry } from './approval.mjs';
import { FormError, useAction } from './requests.mjs';
import { Exact, html, useStore } from './ui.mjs';
import { Value } from './value.mjs';
import { SchemaForm } from './workflows.mjs';

/** The hint of an approval step. */
const APPROVAL = 'approval';

export function InputCard(/** @type {{request: Wanted}} */ { request }) {
  const { runs } = useStore();
  const declining = useAction();
  const { message, schema, server, expiresAt, resolved } = request;
  if (resolved)
    return html`<section class="input-card resolved">
      <p><${Exact} text=${message} /></p>
      <${Submitted} schema=${schema} resolved=${resolved} />
    </section>`;
  const submit = (/** @type {unknown} */ value) => runs.replyToInput(request.id, { value });
  const decline = () => declining.run(() => runs.replyToInput(request.id, { decline: true }));
  const beside =
    server &&
    html`<button type="button" class="button" disabled=${declining.busy} onClick=${decline}>
      ${t('input.decline')}
    </button>`;
  return html`<section class="input-card" role="group" aria-label=${t('input.label')}>
    <h2><${Exact} text=${message} /></h2>
    ${
      server &&
      html`<p class="muted">${t('input.server', { server })}</p>
        <p class="muted"><${Expiry} at=${expiresAt} /></p>`
    }
    ${
      schema?.type === 'boolean'
        ? html`<${Choice} schema=${schema} onSubmit=${submit} />`
        : html`<${Form} schema=${schema} onSubmit=${submit} beside=${beside} />`
    }
    <${FormError} error=${declining.error} />
  </section>`;
}

/** @param {{schema: Schema, onSubmit: (value: unknown) => Promise<unknown>, beside: Shown}} properties */
function Form({ schema, onSubmit, beside }) {
  if (schema?.type === 'object')
    return html`<${SchemaForm}
      schema=${schema}
      submitLabel=${t('input.submit')}
      onSubmit=${onSubmit}
      beside=${beside} />`;
  const wrapped = {
    type: 'object',
    properties: { value: { title: t('app.value'), ...schema } },
    required: ['value'],
  };
  return html`<${SchemaForm}
    schema=${wrapped}
    submitLabel=${t('input.submit')}
    onSubmit=${(/** @type {{value: unknown}} */ { value }) => onSubmit(value)} />`;
}

/**
 * Two buttons instead of a checkbox: an overlooked checkbox would mean no.
 *
 * @param {{schema: Schema, onSubmit: (value: unknown) => Promise<unknown>}} properties
 */
function Choice({ schema, onSubmit }) {
  const { busy, error, run } = useAction();
  const approval = schema['x-hint'] === APPROVAL;
  const choose = (/** @type {boolean} */ value) => run(() => onSubmit(value));
  return html`<${FormError} error=${error} />
    <div class="button-row">
      <button type="button" class="button primary" disabled=${busy} onClick=${() => choose(true)}>
        ${t(approval ? 'approval.approve' : 'input.yes')}
      </button>
      <button type="button" class="button" disabled=${busy} onClick=${() => choose(false)}>
        ${t(approval ? 'approval.reject' : 'input.no')}
      </button>
    </div>`;
}

/** @param {{schema: Schema, resolved: NonNullable<Wanted['resolved']>}} properties */
function Submitted({ schema, resolved: { by, value, outcome } }) {
  if (outcome) return html`<p class="muted">${known(`approval.outcome.${outcome}`, outcome)}</p>`;
  if (schema?.['x-hint'] === APPROVAL) {
    return html`<p class="muted">
      <strong>${t(value ? 'approval.outcome.approved' : 'approval.outcome.rejected')}</strong>
      ${by && t('approval.by', { user: by })}
    </p>`;
  }
  return html`<p class="muted">${by ? t('input.submittedBy', { user: by }) : t('input.submitted')}</p>
    <${Value} value=${value} />`;
}
