/** People: invite a colleague by a key, which is shown once, or with an account of a provider, and withdraw keys. */

import { useEffect, useState } from 'preact/hooks';

import { Records } from '../components/operator/records.mjs';
import { Account, providerName } from '../components/people/account.mjs';
import { Line, Reachable, pageAddress } from '../components/people/sent.mjs';
import { Dialog, Icon, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { explain, parts, t } from '../strings.mjs';
import { formatWhen } from '../text.mjs';

/** @type {Rights[]} */
const RIGHTS = ['chat', 'approve', 'admin', 'operator'];
const DAYS = [7, 30, 90, 365, 0];
/** Days within which an invited person opens the link. */
const CLAIM_DAYS = 7;
const DAY_MS = 86_400_000;

export default function PeopleView() {
  const store = useStore();
  const [keys, setKeys] = useState(/** @type {ApiKey[] | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const [providers, setProviders] = useState(/** @type {Provider[]} */ ([]));
  const [inviting, setInviting] = useState(false);
  const [starting, setStarting] = useState(false);
  const [withdrawn, setWithdrawn] = useState(/** @type {ApiKey | null} */ (null));
  const read = () =>
    store.api.keys().then(
      (items) => (setKeys(items), setError(null)),
      (failure) => setError(explain(failure)),
    );
  useEffect(() => {
    read();
    // If the list cannot be read, people are invited with keys only.
    store.api.identityProviders().then(
      (items) => setProviders(items.filter((one) => one.on_page)),
      () => {},
    );
  }, []);
  const actions = html`<button
    type="button"
    class="button primary"
    onClick=${() => (store.token ? setInviting : setStarting)(true)}
  >
    <${Icon} name="plus" size=${16} />${t('people.invite')}
  </button>`;
  return html`<${Frame} title=${t('people.title')} actions=${actions}>
    <p class="muted">${t('people.intro')}</p>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!keys && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
    ${!store.token && html`<p class="notice info" role="note">${t('people.withoutKey')}</p>`}
    ${keys?.length === 0 && html`<p class="empty">${t('people.none')}</p>`}
    ${keys && keys.length > 0 && html`<${KeyTable} keys=${keys} onWithdraw=${setWithdrawn} />`}
    ${inviting && html`<${Invitation} providers=${providers} onClose=${() => (setInviting(false), read())} />`}
    ${starting && html`<${FirstKey} onClose=${() => setStarting(false)} onCreated=${() => (setStarting(false), setInviting(true), read())} />`}
    ${withdrawn && html`<${Withdrawal} entry=${withdrawn} onClose=${() => (setWithdrawn(null), read())} />`}
  <//>`;
}

function KeyTable(/** @type {{keys: ApiKey[], onWithdraw: (key: ApiKey) => void}} */ { keys, onWithdraw }) {
  const rows = keys.map((entry) => [
    html`<strong>${entry.user}</strong>${entry.name && html` <span class="muted">${entry.name}</span>`}`,
    entry.rights.map((right) => html`<span class="badge">${t(`right.${right}`)}</span> `),
    t('people.createdBy', { when: formatWhen(entry.created_at), user: entry.created_by }),
    entry.claim_by
      ? t('people.invitedUntil', { when: formatWhen(entry.claim_by) })
      : entry.expires_at
        ? formatWhen(entry.expires_at)
        : t('people.never'),
    html`<button
      type="button"
      class="link"
      aria-label=${t('people.withdrawOf', { user: entry.user })}
      onClick=${() => onWithdraw(entry)}
    >
      ${t('people.withdraw')}
    </button>`,
  ]);
  const columns = [
    t('people.user'),
    t('people.rights'),
    t('people.created'),
    t('people.expires'),
    t('operator.action'),
  ];
  return html`<${Records}
    title=${t('people.keys')}
    columns=${columns}
    rows=${rows}
    keys=${keys.map((entry) => entry.id)}
    empty=""
  />`;
}

/**
 * The key of the first person, who has all rights. From then on, everyone needs a key.
 *
 * @param {{onClose: () => void, onCreated: () => void}} properties
 */
function FirstKey({ onClose, onCreated }) {
  const store = useStore();
  const [user, setUser] = useState('');
  const [created, setCreated] = useState(/** @type {Replies['key.create'] | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const submit = async (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    try {
      const entry = await store.api.createKey({
        user: user.trim(),
        rights: store.welcome.value?.rights ?? RIGHTS,
      });
      // Used at once: the next request without the key would lead to the sign-in, and the key would never be shown.
      store.login(entry.key);
      setCreated(entry);
    } catch (failure) {
      setError(explain(failure));
    }
  };
  if (created) {
    return html`<${Dialog} title=${t('people.ownCreated')} onClose=${onCreated}>
      <div class="dialog-body">
        <p>${t('people.ownOnce')}</p>
        <${Line} label=${t('people.key')} text=${created.key} />
        <div class="dialog-actions">
          <button type="button" class="button primary" onClick=${onCreated}>${t('people.continue')}</button>
        </div>
      </div>
    <//>`;
  }
  return html`<${Dialog} title=${t('people.own')} onClose=${onClose}>
    <form class="dialog-body" onSubmit=${submit}>
      <p>${t('people.ownText')}</p>
      <label class="form-field"
        ><span>${t('people.ownName')}</span
        ><input
          required
          maxlength="200"
          autofocus
          value=${user}
          onInput=${(event) => setUser(event.target.value)}
      /></label>
      ${error && html`<p class="form-error" role="alert">${error}</p>`}
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('app.cancel')}</button>
        <button class="button primary" disabled=${!user.trim()}>${t('people.ownCreate')}</button>
      </div>
    </form>
  <//>`;
}

function Invitation(/** @type {{providers: Provider[], onClose: () => void}} */ { providers, onClose }) {
  const store = useStore();
  const [provider, setProvider] = useState(/** @type {Provider | null} */ (null));
  const [user, setUser] = useState('');
  const [rights, setRights] = useState(/** @type {Rights[]} */ (['chat', 'approve']));
  const [days, setDays] = useState(90);
  const [created, setCreated] = useState(/** @type {Replies['key.create'] | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const own = store.welcome.value?.rights ?? RIGHTS;
  const toggle = (/** @type {Rights} */ right) =>
    setRights(rights.includes(right) ? rights.filter((one) => one !== right) : [...rights, right]);
  const submit = async (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    if (provider) return onClose();
    const after = (/** @type {number} */ count) => new Date(Date.now() + count * DAY_MS).toISOString();
    const expiry = days ? { expires_at: after(days) } : {};
    try {
      const claim = { claim_by: after(CLAIM_DAYS) };
      setCreated(await store.api.createKey({ user: user.trim(), rights, ...expiry, ...claim }));
    } catch (failure) {
      setError(explain(failure));
    }
  };
  if (created) return html`<${Created} entry=${created} onClose=${onClose} />`;
  return html`<${Dialog} title=${t('people.invite')} onClose=${onClose}>
    <form class="dialog-body" onSubmit=${submit}>
      ${providers.length > 0 && html`<${Means} providers=${providers} chosen=${provider} onChoose=${setProvider} />`}
      ${!provider && html`<label class="form-field"><span>${t('people.name')}</span><input required maxlength="200" autofocus value=${user} onInput=${(event) => setUser(event.target.value)} /></label>`}
      <fieldset class="form-field rights">
        <legend>${t('people.may')}</legend>
        ${RIGHTS.filter((right) => own.includes(right)).map(
          (right) =>
            html`<div class="form-field check">
              <label
                ><input
                  type="checkbox"
                  checked=${rights.includes(right)}
                  onChange=${() => toggle(right)}
                />${t(`right.${right}.text`)}</label
              >
            </div>`,
        )}
      </fieldset>
      ${
        provider
          ? html`<${Account} provider=${provider} rights=${rights} />`
          : html`<${Expiry} days=${days} onChange=${setDays} />
              ${error && html`<p class="form-error" role="alert">${error}</p>`}
              <div class="dialog-actions">
                <button type="button" class="button" onClick=${onClose}>${t('app.cancel')}</button>
                <button class="button primary" disabled=${!user.trim() || !rights.length}>
                  ${t('people.create')}
                </button>
              </div>`
      }
    </form>
  <//>`;
}

/**
 * The means of sign-in: a key, or an account at a provider.
 *
 * @param {{providers: Provider[], chosen: Provider | null, onChoose: (provider: Provider | null) => void}} properties
 */
function Means({ providers, chosen, onChoose }) {
  const choose = (/** @type {PageEvent} */ event) =>
    onChoose(providers.find((one) => one.issuer === event.target.value) ?? null);
  return html`<label class="form-field"
    ><span>${t('people.means')}</span>
    <select value=${chosen?.issuer ?? ''} onChange=${choose}>
      <option value="">${t('people.byKey')}</option>
      ${providers.map((one) => html`<option value=${one.issuer}>${t('people.byAccount', { provider: providerName(one) })}</option>`)}
    </select>
  </label>`;
}

function Expiry(/** @type {{days: number, onChange: (days: number) => void}} */ { days, onChange }) {
  return html`<label class="form-field"
    ><span>${t('people.expires')}</span>
    <select value=${String(days)} onChange=${(event) => onChange(Number(event.target.value))}>
      ${DAYS.map((count) => html`<option value=${String(count)}>${count ? t('people.days', { count }) : t('people.never')}</option>`)}
    </select>
  </label>`;
}

/**
 * The link, whose text is not stored and shown only here. It opens the page once.
 *
 * @param {{entry: Replies['key.create'], onClose: () => void}} properties
 */
function Created({ entry, onClose }) {
  return html`<${Dialog} title=${t('people.createdTitle', { user: entry.user })} onClose=${onClose}>
    <div class="dialog-body">
      <p>${t('people.once', { count: CLAIM_DAYS })}</p>
      <${Reachable} />
      <${Line} label=${t('people.link')} text=${`${pageAddress()}#/invitation/${entry.key}`} />
      <div class="dialog-actions">
        <button type="button" class="button primary" onClick=${onClose}>${t('people.done')}</button>
      </div>
    </div>
  <//>`;
}

function Withdrawal(/** @type {{entry: ApiKey, onClose: () => void}} */ { entry, onClose }) {
  const store = useStore();
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const confirm = () => store.api.revokeKey(entry.id).then(onClose, (failure) => setError(explain(failure)));
  return html`<${Dialog} title=${t('people.withdrawTitle')} onClose=${onClose}>
    <div class="dialog-body">
      <p>${parts('people.withdrawQuestion', { user: html`<strong>${entry.user}</strong>` })}</p>
      ${error && html`<p class="form-error" role="alert">${error}</p>`}
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('app.cancel')}</button>
        <button type="button" class="button danger" onClick=${confirm}>${t('people.withdraw')}</button>
      </div>
    </div>
  <//>`;
}
