/** What a user does with runs: stops them, answers their questions and starts workflows. */

import { signal } from '@preact/signals';

import { conversationOf } from '../client/following.mjs';

export class Runs {
  /** Whether the workflows are shown; an object for the form of one workflow with its initial values. */
  form = signal(/** @type {boolean | FilledForm} */ (false));

  /**
   * @param {object} options
   * @param {import('../client/api.mjs').Api} options.api
   * @param {import('../client/connection.mjs').Connection} options.socket
   * @param {import('./navigation.mjs').Navigation} options.navigation
   * @param {import('./toasts.mjs').Toasts} options.toasts
   * @param {() => void} options.onStarted
   */
  constructor({ api, socket, navigation, toasts, onStarted }) {
    this.api = api;
    this.socket = socket;
    this.navigation = navigation;
    this.toasts = toasts;
    this.onStarted = onStarted;
  }

  cancel(/** @type {string} */ runId) {
    return this.toasts.attempt(() => this.socket.request({ type: 'run.cancel', run_id: runId }));
  }

  /**
   * @throws {RequestError} which the form shows
   * @param {string} requestId
   * @param {{value?: unknown, decline?: boolean}} reply
   */
  replyToInput(requestId, reply) {
    return this.socket.request({ type: 'input.reply', request_id: requestId, ...reply });
  }

  /** @throws {RequestError} which the form shows @param {string} workflow its name @param {Json} parameters */
  async startWorkflow(workflow, parameters) {
    const conversationId = this.navigation.currentId.value;
    const frame = { type: 'workflow.start', workflow, parameters };
    const ack = await this.socket.request(
      conversationId ? { ...frame, conversation_id: conversationId } : frame,
    );
    this.onStarted();
    if (!conversationId) this.navigation.open(ack.conversation_id ?? conversationOf(ack.run_id ?? ''));
    return ack;
  }

  /** Show the filled form of the workflow that a command names. @param {string} text @returns {Promise<boolean>} whether it names one */
  async showCommand(text) {
    try {
      const { workflow, parameters, problems } = await this.api.call('workflow.parse', {}, { text });
      this.form.value = { name: workflow.name, parameters, problems };
      return true;
    } catch (error) {
      if (/** @type {Failure} */ (error).code === 'not_found') return false;
      throw error;
    }
  }
}
