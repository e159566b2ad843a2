/** The files of the open conversation's workspace. */

import { signal } from '@preact/signals';

import { stored } from '../attachments.mjs';

export class Workspace {
  /** Counts the changes of workspaces, whose files are then read again. */
  version = signal(0);

  /**
   * @param {object} options
   * @param {import('../client/api.mjs').Api} options.api
   * @param {import('../client/connection.mjs').Connection} options.socket
   * @param {import('./navigation.mjs').Navigation} options.navigation
   */
  constructor({ api, socket, navigation }) {
    this.api = api;
    this.socket = socket;
    this.navigation = navigation;
  }

  changed() {
    this.version.value += 1;
  }

  /**
   * Store a file in the workspace of the open conversation, or of a new one; return its path.
   *
   * @param {File} file
   * @throws {RequestError}
   */
  async storeFile(file) {
    const { currentId } = this.navigation;
    const id =
      currentId.value ??
      /** @type {string} */ ((await this.socket.request({ type: 'conversation.create' })).conversation_id);
    const path = await stored(this.api, id, file);
    if (currentId.value === null) this.navigation.open(id);
    return path;
  }
}
