/** The user's own sign-ins at servers of tools, for runs that act for this user. */

import { addressOf } from '../router.mjs';
import { t } from '../strings.mjs';
import { formatWhen } from '../text.mjs';
import { FormError, useAction, useRead } from './requests.mjs';
import { Exact, Icon, html, useStore } from './ui.mjs';

/** @typedef {Item<'mcp_account.list'>} Account */

/** @param {{path: string[]}} properties the server of a sign-in from which the browser returned, and `ended` or `failed` */
export function Accounts({ path: [returned, outcome] }) {
  const { api } = useStore();
  const { value: accounts, read } = useRead(() => api.items('mcp_account.list'));
  if (!accounts?.length) return null;
  return html`<section class="settings" aria-labelledby="accounts-title">
    <h2 id="accounts-title">${t('accounts.title')}</h2>
    <p class="muted">${t('accounts.text')}</p>
    ${
      (outcome === 'ended' || outcome === 'failed') &&
      html`<p class="notice warning" role="alert">
        <${Icon} name="warning" size=${15} /><span>${t(`accounts.${outcome}`, { name: returned })}</span>
      </p>`
    }
    ${accounts.map(
      (account) => html`<${AccountRow} key=${account.id} account=${account} onChange=${read} />`,
    )}
  </section>`;
}

/** @param {{account: Account, onChange: () => void}} properties */
function AccountRow({ account: { id, description, needs_sign_in: needs, signed_in: last }, onChange }) {
  const signedIn = needs ? null : last;
  const { api } = useStore();
  const { busy, error, run } = useAction();
  const begin = () =>
    run(async () => {
      const gateway = new URL('./', document.baseURI).href;
      const asked = { gateway_url: gateway, to_page: true };
      location.assign((await api.call('mcp_account.sign_in', { server_id: id }, asked)).url);
    });
  const end = () => run(() => api.call('mcp_account.sign_out', { server_id: id }).then(onChange));
  return html`<div role="group" aria-label=${id}>
    <strong><${Exact} text=${id} /></strong>
    ${description && html`<div>${description}</div>`}
    <p class="muted">
      ${signedIn ? t('accounts.signedIn', { when: formatWhen(signedIn.at) }) : t('accounts.none')}
    </p>
    <${FormError} error=${error} />
    <div class="row-actions">
      <button type="button" class=${needs ? 'button primary' : 'button'} disabled=${busy} onClick=${begin}>
        ${t(last ? 'accounts.again' : 'login.submit')}
      </button>
      ${
        signedIn &&
        html`<button type="button" class="button" disabled=${busy} onClick=${end}>
          ${t('sidebar.signOut')}
        </button>`
      }
    </div>
  </div>`;
}

/** Which of some calls failed because their user has not signed in. @param {{calls: Call[]}} properties */
export function SignInNeeded({ calls }) {
  const ids = calls
    .filter(({ result }) => result?.is_error && result.content?.sign_in === true)
    .map(({ name }) => name.split('__')[0]);
  return [...new Set(ids)].map(
    (name) =>
      html`<p class="notice info" role="note" key=${name}>
        <${Icon} name="plug" size=${15} />
        <span>
          ${t('accounts.needed', { name })}${' '}<a href=${addressOf('settings', 'mcp', name)}
            >${t('accounts.open')}</a
          >
        </span>
      </p>`,
  );
}
