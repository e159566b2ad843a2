/**
 * The open approval requests of all conversations. The gateway sends a notice of each change, also to a hidden tab;
 * the list is then read again.
 */

import { computed, signal } from '@preact/signals';

import { AWAITING_SECOND } from '../events.mjs';
import { explain, t } from '../strings.mjs';

const READ_DELAY_MS = 150;
/** Clocks differ a little, so the list is read again this long after the escalation of a request. */
const ESCALATION_DELAY_MS = 2_000;
/** The maximum delay of a timer, one day. Browsers fire timers with more than 2^31 ms (24 days) at once. */
const MAX_TIMER_MS = 86_400_000;
const NOTIFY = 'banksman.notify';

/** A request as the approval card shows it. @param {Item<'approval.list'>} item @returns {Waiting} */
const entryOf = (item) => ({
  id: item.approval_id,
  conversationId: item.conversation_id,
  runId: item.run_id,
  title: item.title,
  requestedBy: item.requested_by,
  requestedAt: item.requested_at,
  expiresAt: item.expires_at,
  items: item.items,
  first: item.first ?? null,
  terms: item.terms ?? null,
  on_reject: item.on_reject,
  /** False for a request that the user set aside, and for one that will be escalated to the user later. */
  forYou: item.for_you,
  escalated: item.escalated ?? false,
  escalatesAt: item.escalates_at ?? null,
  resolved: null,
});

export class Inbox {
  /**
   * @param {object} options
   * @param {import('../client/api.mjs').Api} options.api
   * @param {(frame: import('../client/types.d.ts').Frame) => Promise<import('../client/types.d.ts').Ack>} options.request sends a frame over the websocket
   * @param {Storage} options.preferences
   * @param {() => void} options.show opens the view of the requests
   * @param {() => void} options.onDecided
   */
  constructor({ api, request, preferences, show, onDecided }) {
    this.api = api;
    this.request = request;
    this.preferences = preferences;
    this.show = show;
    this.onDecided = onDecided;
    this.state = signal(/** @type {Listed<Waiting>} */ ({ items: [], loading: true, error: null }));
    this.notifies = signal(
      preferences.getItem(NOTIFY) === 'on' && globalThis.Notification?.permission === 'granted',
    );
    /** Whether notifications arrive while the page is closed, too; null while this is unknown. */
    this.pushes = signal(/** @type {boolean | null} */ (null));
    /** When requests last moved because another person decided one. */
    this.movedAt = -Infinity;
    /** Requests that wait for the user now, oldest first. */
    this.waiting = computed(() => this.state.value.items.filter((item) => item.forYou));
    /** @type {Set<string> | null} */
    this.known = null;
    /** The id of a request, and the signed link that led the user to it. A link allows one decision. */
    /** @type {{id: string, link: string} | null} */
    this.link = null;
  }

  /** Follow the requests on a new connection. An older gateway refuses the unknown frame. */
  start() {
    this.request({ type: 'approvals.subscribe' }).catch(() => {});
    this.changed();
    if (this.notifies.value && this.pushes.value === null) this.#register();
  }

  changed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#read(), READ_DELAY_MS);
  }

  /**
   * @param {string} id
   * @param {Json} reply
   * @throws {import('../client/connection.mjs').RequestError} which the card shows
   */
  async decide(id, reply) {
    const through = this.link?.id === id ? { link: this.link.link } : {};
    const ack = await this.request({ type: 'approval.reply', approval_id: id, ...reply, ...through });
    if (ack.outcome !== AWAITING_SECOND) {
      this.state.value = {
        ...this.state.value,
        items: this.state.value.items.filter((item) => item.id !== id),
      };
      this.onDecided();
    }
    return ack;
  }

  /**
   * Let a rule for everyone decide the calls that are like this one.
   *
   * @param {ApprovalItem} item
   * @param {Decision} decision
   */
  async addRule(item, decision) {
    const { rulesFor, withRules } = await import('../decision_rules.mjs');
    const { rules, approvals, registries, revision } = await this.api.call('policy.read');
    const action = /** @type {Rule['action']} */ (decision === 'approve' ? 'auto' : 'deny');
    const added = (rulesFor(item) ?? []).map((rule) => ({ ...rule, action }));
    const changed = { rules: withRules(rules, added), approvals, registries, revision };
    await this.api.call('policy.update', {}, changed);
  }

  /** Take a request out of this inbox. It is not rejected, and others still see it. @param {string} id */
  async setAside(id) {
    await this.api.call('approval.aside', { approval_id: id });
    const items = this.state.value.items.map((item) => (item.id === id ? { ...item, forYou: false } : item));
    this.state.value = { ...this.state.value, items };
    this.changed();
  }

  /** Let this device notify the user; the browser requests the permission. @param {boolean} on */
  async setNotifies(on) {
    const allowed = on && (await Notification.requestPermission()) === 'granted';
    this.preferences.setItem(NOTIFY, allowed ? 'on' : 'off');
    this.notifies.value = allowed;
    if (allowed) await this.#register();
    else await this.endPush();
  }

  /** Stop notifications on this device while the page is closed, for example after a sign-out. */
  async endPush() {
    this.pushes.value = null;
    await (await import('../push.mjs')).remove(this.api, this.preferences);
  }

  async #register() {
    this.pushes.value = await (await import('../push.mjs')).register(this.api, this.preferences);
  }

  async #read() {
    try {
      const items = (await this.api.approvals()).map(entryOf);
      const open = new Set(items.map(({ id }) => id));
      if (this.state.value.items.some(({ id }) => !open.has(id))) this.movedAt = performance.now();
      this.state.value = { items, loading: false, error: null };
      this.#notify();
      this.#readWhenEscalated();
    } catch (error) {
      this.state.value = { ...this.state.value, loading: false, error: explain(error) };
    }
  }

  /** An escalation by time sends no notice, so a timer reads the list. */
  #readWhenEscalated() {
    const times = this.state.value.items
      .filter((item) => item.escalatesAt && !item.escalated)
      .map((item) => Date.parse(item.escalatesAt ?? '') - Date.now());
    clearTimeout(this.escalation);
    const delay = Math.max(0, Math.min(...times)) + ESCALATION_DELAY_MS;
    if (times.length) this.escalation = setTimeout(() => this.changed(), Math.min(delay, MAX_TIMER_MS));
  }

  /** Notify of requests that are new since the page was opened, while the user looks elsewhere. */
  #notify() {
    const ids = new Set(this.waiting.value.map((item) => item.id));
    const { known } = this;
    const fresh = known === null ? [] : this.waiting.value.filter((item) => !known.has(item.id));
    this.known = ids;
    if (!this.notifies.value || this.pushes.value || !document.hidden) return;
    for (const item of fresh) {
      const title =
        item.items.length === 1
          ? t('approval.titleOne', { tool: item.items[0].name })
          : t('approval.title', { count: item.items.length });
      const notification = new Notification(title, { body: item.title, tag: item.id });
      notification.onclick = () => {
        focus();
        this.show();
        notification.close();
      };
    }
  }
}
