/**
 * A certified OpenID Connect provider (the package oidc-provider) on a free port of the loopback interface.
 *
 * The name that a user enters in its form is the account. An account has the claims of the first argument, a JSON
 * object by name; the second is its client. The program prints its issuer. It then executes the lines of
 * stdin: `rotate` signs with a new key and withdraws the one before, `clock N` sets the clock N seconds ahead,
 * `lifetime N` lets tokens expire after N seconds, `disable NAME` gives an account no more tokens, `renewals` prints
 * how many refresh tokens were used, and `reuses` how many sign-ins ended since one was used twice.
 */

import { createServer } from 'node:http';
import { createInterface } from 'node:readline';

import Provider from 'oidc-provider';
import { createMemoryAdapter } from 'oidc-provider/lib/adapters/memory_adapter.js';

const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256' };
const [accounts, client] = process.argv.slice(2, 4).map((one) => JSON.parse(one));
const adapter = createMemoryAdapter();
const state = { lifetime: 600, renewals: 0, reuses: 0, disabled: new Set(), handle: null };
const now = Date.now;

async function signingKey() {
  const pair = await crypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify']);
  const { kty, crv, x, y, d } = await crypto.subtle.exportKey('jwk', pair.privateKey);
  return { kty, crv, x, y, d, use: 'sig', alg: 'ES256', kid: crypto.randomUUID() };
}

/** Serve with a new key. Sessions, codes and tokens of the provider before stay valid. */
async function rotate(issuer) {
  const provider = new Provider(issuer, {
    clients: [
      {
        id_token_signed_response_alg: 'ES256',
        application_type: 'native',
        grant_types: ['authorization_code', 'refresh_token'],
        ...client,
      },
    ],
    rotateRefreshToken: true,
    adapter,
    jwks: { keys: [await signingKey()] },
    cookies: { keys: ['a key of this test'] },
    claims: { openid: ['sub', 'tenant', 'roles'] },
    // Without this, the claims of scopes are in the response of the userinfo endpoint only.
    conformIdTokenClaims: false,
    ttl: {
      IdToken: () => state.lifetime,
      AccessToken: () => state.lifetime,
      RefreshToken: 600,
      Grant: 600,
      Session: 600,
      Interaction: 600,
    },
    features: {
      devInteractions: { enabled: false },
      // The pages that it has by default load fonts of another host.
      rpInitiatedLogout: {
        logoutSource: async (context, form) => {
          context.body = `${form}<button form="op.logoutForm" name="logout" value="yes">Sign out here too</button>`;
        },
        postLogoutSuccessSource: async (context) => {
          context.body = '<p>The session has ended.</p>';
        },
      },
    },
    interactions: { url: (_, { uid }) => `/form/${uid}` },
    loadExistingGrant: granted,
    findAccount: (_, id) =>
      state.disabled.has(id) ? undefined : { accountId: id, claims: () => ({ sub: id, ...accounts[id] }) },
  });
  provider.on('grant.success', ({ oidc }) => (state.renewals += oidc.params.grant_type === 'refresh_token'));
  provider.on('grant.revoked', ({ oidc }) => (state.reuses += Boolean(oidc.entities.RefreshToken?.consumed)));
  const handle = provider.callback();
  state.handle = (request, response) =>
    request.url.startsWith('/form/') ? form(provider, request, response) : handle(request, response);
}

/** Consent to everything that the client requests. */
async function granted({ oidc: { provider, client, session, params } }) {
  const grant = new provider.Grant({ clientId: client.clientId, accountId: session.accountId });
  grant.addOIDCScope(params.scope);
  await grant.save();
  return grant;
}

/** The form in which users sign in, and what it sends. */
async function form(provider, request, response) {
  const { prompt } = await provider.interactionDetails(request, response);
  if (prompt.name === 'consent') {
    await provider.interactionFinished(request, response, { consent: {} }, { mergeWithLastSubmission: true });
    return;
  }
  if (request.method !== 'POST') {
    response.setHeader('content-type', 'text/html');
    response.end(
      '<form method="post"><label>Account <input name="account"></label><button>Continue</button></form>',
    );
    return;
  }
  let body = '';
  for await (const piece of request) body += piece;
  const accountId = new URLSearchParams(body).get('account');
  await provider.interactionFinished(request, response, { login: { accountId } });
}

const commands = {
  rotate: () => rotate(issuer),
  clock: (seconds) => (Date.now = () => now() + Number(seconds) * 1000),
  lifetime: (seconds) => void (state.lifetime = Number(seconds)),
  disable: (name) => state.disabled.add(name),
  renewals: () => state.renewals,
  reuses: () => state.reuses,
};

const server = createServer((request, response) => state.handle(request, response));
await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
const issuer = `http://127.0.0.1:${server.address().port}`;
await rotate(issuer);
console.log(issuer);
for await (const line of createInterface({ input: process.stdin })) {
  const [command, argument] = line.split(' ');
  const found = await commands[command](argument);
  console.log(typeof found === 'number' ? found : 'done');
}
process.exit(0);
