/** The connection to the gateway, and who uses it: sign-in, renewal of the token, sign-out. */

import { signal } from '@preact/signals';

import { Connection } from '../client/connection.mjs';

const VERSION = '1';

export const TOKEN = 'banksman.token';
/** Whether the token can be renewed. */
export const RENEWABLE = 'banksman.renewable';

export class Session {
  /**
   * @param {object} options
   * @param {import('../client/api.mjs').Api} options.api
   * @param {Storage} options.preferences
   * @param {() => boolean} options.isBusy whether a frozen gateway must be noticed within seconds
   * @param {(frame: Welcome) => void} options.onWelcome
   * @param {(frame: import('../client/types.d.ts').Frame) => void} options.onFrame
   * @param {() => Promise<unknown>} options.onSignOut removes what this browser keeps for the user
   */
  constructor({ api, preferences, isBusy, onWelcome, onFrame, onSignOut }) {
    this.api = api;
    this.preferences = preferences;
    this.onSignOut = onSignOut;
    /** Why a sign-in failed before the page was shown. @type {string | null | undefined} */
    this.signInError = null;
    this.connection = signal(/** @type {ConnectionState} */ ({ phase: 'connecting' }));
    this.welcome = signal(/** @type {Welcome | null} */ (null));
    this.socket = new Connection({
      open: (protocol) => new WebSocket(api.socketUrl(), protocol),
      hello: () => this.#hello(),
      onWelcome: (frame) => {
        this.welcome.value = frame;
        onWelcome(frame);
      },
      onFrame,
      onState: (state) => {
        if (state.phase === 'unauthorized') this.unauthorized();
        else this.connection.value = { ...state, since: Date.now() };
      },
      busy: isBusy,
    });
    /** @type {import('./renewal.mjs').Renewal | null} */
    this.renewal = null;
  }

  /** Connect, and stay connected and signed in. */
  async start() {
    addEventListener('online', () => this.reconnect());
    addEventListener(
      'storage',
      ({ key, oldValue, newValue }) => key === TOKEN && this.#signedElsewhere(oldValue, newValue),
    );
    await this.#staySignedIn();
    this.socket.connect();
  }

  /** The page is visible again: the system may have cut its connection without a word. */
  shown() {
    if (this.connection.value.phase === 'offline') this.reconnect();
    this.socket.probe();
    this.#staySignedIn();
  }

  reconnect() {
    if (this.connection.value.phase !== 'online') this.socket.connect();
  }

  get token() {
    return this.preferences.getItem(TOKEN);
  }

  login(/** @type {string} */ token) {
    this.preferences.removeItem(RENEWABLE);
    this.preferences.setItem(TOKEN, token);
    this.socket.connect();
  }

  /** Show the sign-in form to a user who works without a key. */
  signIn() {
    this.socket.close();
    this.connection.value = { phase: 'unauthorized', optional: true, since: Date.now() };
  }

  async logout() {
    const { token } = this;
    await this.onSignOut();
    this.renewal?.end();
    this.preferences.removeItem(TOKEN);
    // Read by `signin.mjs`, also in other tabs.
    this.preferences.setItem('banksman.signedOut', 'yes');
    this.#ended();
    if (token?.split('.').length !== 3) return;
    const { endSession } = await import('../signin.mjs');
    await endSession(this.api, token, location);
  }

  /** The gateway refused the token, which may have expired while the page was hidden. */
  unauthorized() {
    if (!this.renewal?.afterRefusal()) this.#showLogin();
  }

  #hello() {
    const { token } = this;
    return { client: { name: 'banksman-web', version: VERSION }, ...(token ? { token } : {}) };
  }

  /** Renew the token of an account in time; also after the page was hidden, when timers are late. */
  async #staySignedIn() {
    if (this.preferences.getItem(RENEWABLE) && !this.renewal) {
      const { Renewal } = await import('./renewal.mjs');
      this.renewal = new Renewal({
        api: this.api,
        preferences: this.preferences,
        onToken: (token) => this.#adopt(token),
        onEnd: () => this.#ended(),
      });
    }
    this.renewal?.plan();
  }

  /** Another tab signed in or out, or renewed the token: this one follows. @param {string | null} before @param {string | null} token */
  #signedElsewhere(before, token) {
    if (!token) return this.#ended();
    this.#staySignedIn();
    if (this.renewal?.isSameAccount(before, token)) this.#adopt(token);
    else this.socket.connect();
  }

  /** Continue with another token of the account. @param {string} token */
  #adopt(token) {
    if (this.connection.value.phase !== 'online') return this.socket.connect();
    const refresh = this.socket.request({ type: 'auth.refresh', token }, { resend: false });
    // After a lost connection the page says hello with the new token.
    return refresh.catch(() => {});
  }

  #ended() {
    this.welcome.value = null;
    this.socket.close();
    this.#showLogin();
  }

  #showLogin() {
    if (this.connection.value.phase !== 'unauthorized')
      this.connection.value = { phase: 'unauthorized', since: Date.now() };
  }
}
