/**
 * The sign-in of an account lasts: before its token expires, one tab gets another one for all. The provider's refresh
 * token is in a cookie that no script can read. Loaded where a user signed in with such an account.
 */

import { RENEWABLE, TOKEN } from './session.mjs';

const LOCK = 'banksman.renewal';
const BEFORE_MS = 60_000;
const LEAST_MS = 1_000;
const MOST_MS = 3_600_000;
const RETRY_MS = 5_000;
/** A token that is refused so soon after it was given is not renewed: another one would be refused too. */
const FRESH_MS = 30_000;

export class Renewal {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #renewedAt = -Infinity;
  #running = false;

  /** @param {{api: Api, preferences: Storage, onToken: (token: string) => void, onEnd: () => void}} options */
  constructor({ api, preferences, onToken, onEnd }) {
    this.api = api;
    this.preferences = preferences;
    this.onToken = onToken;
    this.onEnd = onEnd;
  }

  get #token() {
    return this.preferences.getItem(TOKEN);
  }

  /** Whether the user signed in with an account whose provider lets the gateway renew its token. */
  get isOffered() {
    return this.preferences.getItem(RENEWABLE) === 'yes' && Boolean(this.#token);
  }

  /** Renew the token in time; also called after the page was hidden, when timers are late. */
  plan() {
    clearTimeout(this.#timer);
    const left = expiryOf(this.#token) - Date.now();
    if (!this.isOffered || Number.isNaN(left)) return;
    const wait = Math.max(left - BEFORE_MS, left / 2, LEAST_MS);
    // A later one may be beyond the limit of timers.
    this.#timer = setTimeout(() => (wait > MOST_MS ? this.plan() : this.#renew()), Math.min(wait, MOST_MS));
  }

  /** Renew a token that was refused; return whether that is worth a try. */
  afterRefusal() {
    if (this.#running) return true;
    if (!this.isOffered || Date.now() - this.#renewedAt < FRESH_MS) return false;
    this.#renew();
    return true;
  }

  /** Whether two tokens are of one account. @param {string | null} one @param {string | null} other */
  isSameAccount(one, other) {
    const [a, b] = [claimsOf(one), claimsOf(other)];
    return a.sub !== undefined && a.sub === b.sub && a.iss === b.iss;
  }

  end() {
    clearTimeout(this.#timer);
    this.preferences.removeItem(RENEWABLE);
  }

  async #renew() {
    if (this.#running) return;
    this.#running = true;
    const before = this.#token;
    try {
      const token = await alone(() => this.#another(before));
      this.#renewedAt = Date.now();
      this.onToken(token);
      this.plan();
    } catch (error) {
      this.#failed(/** @type {{status?: number}} */ (error).status ?? 0);
    } finally {
      this.#running = false;
    }
  }

  /** The token of another tab, if it was faster, or a new one. @param {string | null} before */
  async #another(before) {
    const now = this.#token;
    if (now && now !== before) return now;
    const { token } = await this.api.call('sign_in.renew');
    this.preferences.setItem(TOKEN, token);
    return token;
  }

  #failed(/** @type {number} */ status) {
    clearTimeout(this.#timer);
    if (status >= 400 && status < 429) {
      this.preferences.removeItem(RENEWABLE);
      this.onEnd();
    } else this.#timer = setTimeout(() => this.#renew(), RETRY_MS);
  }
}

/** Let one tab act at a time. @param {() => Promise<string>} action @returns {Promise<string>} */
const alone = async (action) => (navigator.locks ? navigator.locks.request(LOCK, action) : action());

/** When a JSON Web Token expires, in milliseconds; NaN for other tokens. @param {string | null} token */
function expiryOf(token) {
  return (claimsOf(token).exp ?? NaN) * 1000;
}

/** The claims of a JSON Web Token; none of another token. @param {string | null} token @returns {{exp?: number, sub?: string, iss?: string}} */
function claimsOf(token) {
  try {
    const payload = (token ?? '').split('.')[1] ?? '';
    return JSON.parse(atob(payload.replaceAll('-', '+').replaceAll('_', '/')));
  } catch {
    return {};
  }
}
