/** Rules: which calls of all assistants wait for approval, and the decisions that are remembered. */

import { Policy } from '../components/assistants/policy.mjs';
import { coverageWords } from '../components/approval/scope.mjs';
import { Registries } from '../components/assistants/registries.mjs';
import { Terms } from '../components/assistants/terms.mjs';
import { bound } from '../components/fields.mjs';
import { FormError, useKept, useRead } from '../components/requests.mjs';
import { Exact, Icon, LinkButton, Loading, SmallButton, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { addressOf } from '../router.mjs';
import { parts, t } from '../strings.mjs';
import { formatWhen } from '../text.mjs';

export default function RulesView() {
  return html`<${Frame} title=${t('rules.title')}>
    <p class="muted">${t('rules.intro')}</p>
    <${TenantPolicy} />
    <${AssistantRules} />
    <${Remembered} />
  <//>`;
}

/** The rules of the tenant, which administrators change. */
function TenantPolicy() {
  const { api, session, toasts } = useStore();
  const { value: stored, error, read, show, fail } = useRead(() => api.call('policy.read'));
  /** @type {ReturnType<typeof useKept<Partial<Policy>>>} */
  const [changes, setChanges] = useKept('rules');
  const draft = stored && { ...stored, ...changes };
  const change = (/** @type {Partial<Policy>} */ fields) =>
    setChanges((before) => ({ revision: stored?.revision, ...before, ...fields }));
  const mayChange = session.welcome.value?.rights?.some((right) => right === 'admin' || right === 'operator');
  const save = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    if (!draft) return;
    const { rules, approvals, registries, revision } = draft;
    api.call('policy.update', {}, { rules, approvals, registries, revision }).then((policy) => {
      show(policy);
      setChanges((now) => (now === changes ? null : { ...now, revision: policy.revision }));
      toasts.show(t('rules.saved'), 'info');
    }, fail);
  };
  const reload = () => (setChanges(null), read());
  const changed = JSON.stringify(draft) !== JSON.stringify(stored);
  return html`<form class="assistant" aria-label=${t('rules.all')} onSubmit=${save}>
    ${!draft && !error && html`<${Loading} />`}
    ${
      draft &&
      html`<fieldset class="plain" disabled=${!mayChange}>
        <${Policy} title=${t('rules.all')} ...${bound(draft, change)('rules')} />
        <${Terms} ...${bound(draft, change)('approvals')} />
        <${Registries} ...${bound(draft, change)('registries')} />
      </fieldset>`
    }
    <${FormError} error=${error}>
      <${LinkButton} onClick=${reload}>${t('assistant.reload')}<//>
    <//>
    ${draft && !mayChange && html`<p class="muted">${t('rules.readOnly')}</p>`}
    ${
      draft &&
      mayChange &&
      html`<div class="assistant-actions bar">
        <button class="button primary" disabled=${!changed}>${t('app.save')}</button>
      </div>`
    }
  </form>`;
}

function AssistantRules() {
  const { api } = useStore();
  const { value: assistants } = useRead(() => api.assistants());
  const ruled = (assistants ?? []).filter((one) => one.approval_policy?.length || one.approvals);
  if (!ruled.length) return null;
  return html`<section class="assistant-part stack">
    <h2>${t('rules.assistants')}</h2>
    <ul class="assistants">
      ${ruled.map(
        (one) =>
          html`<li class="wrap card" key=${one.id}>
            <a href=${addressOf('assistants', one.id)}>
              <strong>${one.name || one.id}</strong>
              <span class="muted text-s"
                >${t('rules.count', { count: one.approval_policy.length })}${
                  one.approvals?.approvers === 2 ? ` · ${t('rules.two')}` : ''
                }</span
              >
            </a>
          </li>`,
      )}
    </ul>
  </section>`;
}

function Remembered() {
  const { api } = useStore();
  const { value: items, error, read, fail } = useRead(() => api.items('remembered.list'));
  const withdraw = (/** @type {Item<'remembered.list'>} */ one) =>
    api.call('remembered.withdraw', { approval_id: one.approval_id }).then(read, fail);
  return html`<section class="assistant-part stack" aria-label=${t('rules.remembered')}>
    <h2>${t('rules.remembered')}</h2>
    <p class="muted text-s">${t('rules.rememberedText')}</p>
    <${FormError} error=${error} />
    ${items?.length === 0 && html`<p class="muted text-s">${t('rules.noneRemembered')}</p>`}
    <ul class="assistants">
      ${items?.map(
        (one) =>
          html`<${RememberedItem} key=${one.approval_id} one=${one} onWithdraw=${() => withdraw(one)} />`,
      )}
    </ul>
  </section>`;
}

/** @param {{one: Item<'remembered.list'>, onWithdraw: () => void}} properties */
function RememberedItem({ one, onWithdraw }) {
  const title = one.title || t('conversation.untitled');
  const about = {
    user: one.by,
    when: formatWhen(one.at),
    conversation: html`<a class="inline" href=${`#/c/${one.conversation_id}`}>${title}</a>`,
  };
  return html`<li class="remembered wrap card">
    <div>
      ${one.calls.map(
        (call) =>
          html`<p>
              <span class="badge">${t(`rules.${call.decision}`)}</span>
              <span class="tool-name"><${Exact} text=${call.tool} /></span>
              <code class="anywhere"><${Exact} text=${textOf(call.arguments)} /></code>
            </p>
            <p class="muted text-s"><${Exact} text=${coverageWords({ ...call, name: call.tool })} /></p>`,
      )}
      <p class="muted text-s">${parts(`rules.by.${one.scope}`, about)}</p>
    </div>
    <${SmallButton}
      aria-label=${t('rules.withdrawOf', { call: textOf(one.calls[0]?.arguments ?? {}) })}
      onClick=${onWithdraw}>
      <${Icon} name="trash" size=${14} />${t('rules.withdraw')}
    <//>
  </li>`;
}

/** The most important argument of a call. @param {Json} given */
const textOf = (given) => String(given.command ?? given.path ?? given.url ?? JSON.stringify(given));
