/** The invitation of a person who signs in with an account at an identity provider. */

import { locale, t } from '../../strings.mjs';
import { CopyButton, html } from '../ui.mjs';
import { Address, Line, pageAddress } from './sent.mjs';

/** The issuer without its scheme. @param {{issuer: string}} options */
export const providerName = ({ issuer }) => issuer.replace(/^https?:\/\//, '');

/**
 * The roles that an account needs for exactly the chosen rights. Submitting the form stores nothing.
 *
 * @param {{provider: Provider, rights: Rights[]}} properties
 */
export function Account({ provider, rights }) {
  const roles = rolesFor(provider, rights);
  const claims = roles && claimsFor(provider, roles);
  return html`${roles && html`<${Needs} provider=${provider} roles=${roles} claims=${claims} />`}
    ${!roles && rights.length > 0 && html`<${NoRole} provider=${provider} />`}
    <div class="dialog-actions">
      ${
        roles &&
        html`<${CopyButton} text=${messageOf(provider, claims ?? [])} label=${t('people.copyInvitation')} />`
      }
      <button class="button primary">${t('people.done')}</button>
    </div>`;
}

/** @param {{provider: Provider, roles: string[], claims: Claim[]}} properties */
function Needs({ provider, roles, claims }) {
  const name = providerName(provider);
  return html`${
      !roles.length &&
      html`<p>${t('people.noRoleNeeded', { provider: name, claim: provider.rights_claim })}</p>`
    }
    ${claims.length > 0 && html`<p>${t('people.accountNeeds', { provider: name })}</p>`}
    ${claims.map(
      ({ kind, value, claim }) =>
        html`<${Line} key=${kind + value} label=${t(`people.needs.${kind}`, { claim })} text=${value} />`,
    )} <${Address} />`;
}

function NoRole(/** @type {{provider: Provider}} */ { provider }) {
  return html`<p class="notice info" role="note">
      ${t('people.noRole', { provider: providerName(provider) })}
    </p>
    <ul>
      ${provider.roles.map(
        ({ value, rights }) =>
          html`<li><code>${value}</code>: ${listed(rights.map((right) => t(`right.${right}`)))}</li>`,
      )}
    </ul>`;
}

/**
 * The roles that together grant exactly the given rights: a single role if possible; an empty list if accounts
 * without the claim have these rights. Null if no roles grant them, or if no rights are given.
 *
 * @param {Provider} provider
 * @param {Rights[]} rights
 */
function rolesFor({ roles, default_rights: defaults }, rights) {
  if (!rights.length) return null;
  const within = roles.filter((role) => role.rights.every((right) => rights.includes(right)));
  /** @type {string[]} */
  const chosen = [];
  const missing = new Set(rights);
  for (const role of within.sort((one, other) => other.rights.length - one.rights.length)) {
    if (!role.rights.some((right) => missing.has(right))) continue;
    chosen.push(role.value);
    role.rights.forEach((right) => missing.delete(right));
  }
  if (!missing.size) return chosen;
  return defaults.length === rights.length && defaults.every((right) => rights.includes(right)) ? [] : null;
}

function claimsFor(/** @type {Provider} */ provider, /** @type {string[]} */ roles) {
  /** @type {Claim} */
  const tenant = { kind: 'tenant', value: provider.tenant, claim: provider.tenant_claim };
  const claims = roles.map((value) => ({
    kind: /** @type {const} */ ('role'),
    value,
    claim: provider.rights_claim,
  }));
  return provider.default_tenant ? claims : [...claims, tenant];
}

function messageOf(/** @type {Provider} */ provider, /** @type {Claim[]} */ claims) {
  const values = { address: pageAddress(), provider: providerName(provider) };
  if (!claims.length) return t('people.accountMessage', values);
  const needed = claims.map(({ kind, value, claim }) => t(`people.given.${kind}`, { value, claim }));
  return t('people.claimsMessage', { ...values, claims: listed(needed) });
}

const listed = (/** @type {string[]} */ texts) => new Intl.ListFormat(locale()).format(texts);
