/** People: invite a colleague by a key, which is shown once, or with an account of a provider, and withdraw keys. */

import { useState } from 'preact/hooks';

import { Check, Choice, FormDialog, TextField } from '../components/fields.mjs';
import { Records } from '../components/operator/records.mjs';
import { Account, providerName } from '../components/people/account.mjs';
import { Line, Reachable, pageAddress } from '../components/people/sent.mjs';
import { Empty, Reading, useRead } from '../components/requests.mjs';
import { AddButton, Dialog, LinkButton, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { parts, t } from '../strings.mjs';
import { formatWhen } from '../text.mjs';

/** @type {Rights[]} */
const RIGHTS = ['chat', 'approve', 'admin', 'operator'];
/** @type {Key[]} */
const COLUMNS = ['people.user', 'people.rights', 'people.created', 'people.expires', 'operator.action'];
const DAYS = [7, 30, 90, 365, 0];
/** Days within which an invited person opens the link. */
const CLAIM_DAYS = 7;
const DAY_MS = 86_400_000;

export default function PeopleView() {
  const { api, session } = useStore();
  const listed = useRead(() => api.items('key.list'));
  // If the list cannot be read, people are invited with keys only.
  const { value: found } = useRead(() => api.items('identity_provider.list'));
  const [inviting, setInviting] = useState(false);
  const [starting, setStarting] = useState(false);
  const [withdrawn, setWithdrawn] = useState(/** @type {ApiKey | null} */ (null));
  const { value: keys, read } = listed;
  const providers = (found ?? []).filter((one) => one.on_page);
  const invite = () => (session.token ? setInviting : setStarting)(true);
  const isEmpty = keys?.length === 0;
  const actions = html`<${AddButton} label=${t('people.invite')} onClick=${invite} />`;
  return html`<${Frame} title=${t('people.title')} actions=${!isEmpty && actions}>
    <p class="muted">${t('people.intro')}</p>
    <${Reading} of=${listed} />
    ${!session.token && html`<p class="notice info" role="note">${t('people.withoutKey')}</p>`}
    ${isEmpty && html`<${Empty} text=${t('people.none')}>${actions}<//>`}
    ${keys && keys.length > 0 && html`<${KeyTable} keys=${keys} onWithdraw=${setWithdrawn} />`}
    ${
      inviting && html`<${Invitation} providers=${providers} onClose=${() => (setInviting(false), read())} />`
    }
    ${
      starting &&
      html`<${FirstKey}
        onClose=${() => setStarting(false)}
        onCreated=${() => (setStarting(false), setInviting(true), read())} />`
    }
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
    html`<${LinkButton}
      aria-label=${t('people.withdrawOf', { user: entry.user })}
      onClick=${() => onWithdraw(entry)}>
      ${t('people.withdraw')}
    <//>`,
  ]);
  return html`<${Records}
    title=${t('people.keys')}
    columns=${COLUMNS}
    rows=${rows}
    keys=${keys.map((entry) => entry.id)}
    empty="" />`;
}

/**
 * The key of the first person, who has all rights. From then on, everyone needs a key.
 *
 * @param {{onClose: () => void, onCreated: () => void}} properties
 */
function FirstKey({ onClose, onCreated }) {
  const { api, session } = useStore();
  const [user, setUser] = useState('');
  const [created, setCreated] = useState(/** @type {Replies['key.create'] | null} */ (null));
  const submit = async () => {
    const rights = session.welcome.value?.rights ?? RIGHTS;
    const entry = await api.call('key.create', {}, { user: user.trim(), rights });
    // Used at once: the next request without the key would lead to the sign-in, and the key would never be shown.
    session.login(entry.key);
    setCreated(entry);
  };
  if (created) {
    return html`<${Dialog} title=${t('people.ownCreated')} onClose=${onCreated}>
      <div class="dialog-body">
        <p>${t('people.ownOnce')}</p>
        <${Line} label=${t('app.key')} text=${created.key} />
        <div class="dialog-actions">
          <button type="button" class="button primary" onClick=${onCreated}>${t('people.continue')}</button>
        </div>
      </div>
    <//>`;
  }
  return html`<${FormDialog}
    title=${t('people.own')}
    label=${t('people.ownCreate')}
    disabled=${!user.trim()}
    onSubmit=${submit}
    onClose=${onClose}>
    <p>${t('people.ownText')}</p>
    <${Name} label=${t('people.ownName')} value=${user} onChange=${setUser} />
  <//>`;
}

/** @param {{label: string, value: string, onChange: (user: string) => void}} properties */
const Name = (properties) => html`<${TextField} ...${properties} required maxlength="200" autofocus />`;

function Invitation(/** @type {{providers: Provider[], onClose: () => void}} */ { providers, onClose }) {
  const { api, session } = useStore();
  const [provider, setProvider] = useState(/** @type {Provider | null} */ (null));
  const [user, setUser] = useState('');
  const [rights, setRights] = useState(/** @type {Rights[]} */ (['chat', 'approve']));
  const [days, setDays] = useState(90);
  const [created, setCreated] = useState(/** @type {Replies['key.create'] | null} */ (null));
  const own = session.welcome.value?.rights ?? RIGHTS;
  const toggle = (/** @type {Rights} */ right) =>
    setRights(rights.includes(right) ? rights.filter((one) => one !== right) : [...rights, right]);
  const submit = async () => {
    const after = (/** @type {number} */ count) => new Date(Date.now() + count * DAY_MS).toISOString();
    const expiry = days ? { expires_at: after(days) } : {};
    const claim = { claim_by: after(CLAIM_DAYS) };
    setCreated(await api.call('key.create', {}, { user: user.trim(), rights, ...expiry, ...claim }));
  };
  if (created) return html`<${Created} entry=${created} onClose=${onClose} />`;
  const means = providers.map((one) => [one.issuer, t('people.byAccount', { provider: providerName(one) })]);
  return html`<${FormDialog}
    title=${t('people.invite')}
    label=${t('people.create')}
    disabled=${!user.trim() || !rights.length}
    actions=${provider && html`<${Account} provider=${provider} rights=${rights} />`}
    onSubmit=${provider ? onClose : submit}
    onClose=${onClose}>
    ${
      providers.length > 0 &&
      html`<${Choice}
        label=${t('people.means')}
        value=${provider?.issuer ?? ''}
        onChange=${(/** @type {string} */ issuer) =>
          setProvider(providers.find((one) => one.issuer === issuer) ?? null)}
        options=${[['', t('people.byKey')], ...means]} />`
    }
    ${!provider && html`<${Name} label=${t('people.name')} value=${user} onChange=${setUser} />`}
    <fieldset class="form-field rights">
      <legend>${t('people.may')}</legend>
      ${RIGHTS.filter((right) => own.includes(right)).map(
        (right) =>
          html`<${Check}
            label=${t(`right.${right}.text`)}
            value=${rights.includes(right)}
            onChange=${() => toggle(right)} />`,
      )}
    </fieldset>
    ${
      !provider &&
      html`<${Choice}
        label=${t('people.expires')}
        value=${String(days)}
        onChange=${(/** @type {string} */ count) => setDays(Number(count))}
        options=${DAYS.map((count) => [
          String(count),
          count ? t('people.days', { count }) : t('people.never'),
        ])} />`
    }
  <//>`;
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
  const { api } = useStore();
  return html`<${FormDialog}
    title=${t('people.withdrawTitle')}
    label=${t('people.withdraw')}
    danger
    onSubmit=${() => api.call('key.revoke', { key_id: entry.id }).then(onClose)}
    onClose=${onClose}>
    <p>${parts('people.withdrawQuestion', { user: html`<strong>${entry.user}</strong>` })}</p>
  <//>`;
}
