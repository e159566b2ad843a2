/** What the page shows: the view and conversation of its address, and what is open over or beside them. */

import { batch, signal } from '@preact/signals';

import { VIEWS, routeOf } from '../router.mjs';

export class Navigation {
  route = signal(routeOf('', VIEWS));
  currentId = signal(/** @type {string | null} */ (null));
  panel = signal(/** @type {'files' | null} */ (null));
  sidebar = signal(false);
  /** What a key opened over the page: the command palette or the keyboard map. */
  shortcut = signal(/** @type {'palette' | 'map' | null} */ (null));

  /** Follow the address of the page. @param {(id: string) => void} onConversation is called with the one it names */
  follow(onConversation) {
    const read = () =>
      batch(() => {
        this.route.value = routeOf(location.hash, VIEWS);
        const { conversationId } = this.route.value;
        this.currentId.value = conversationId;
        this.sidebar.value = false;
        if (conversationId) onConversation(conversationId);
      });
    addEventListener('hashchange', read);
    read();
  }

  /** Open the palette, instead of the list from which it may have been opened on a phone. */
  openPalette() {
    this.sidebar.value = false;
    this.shortcut.value = 'palette';
  }

  /** Show a conversation; null begins one. @param {string | null} id */
  open(id) {
    location.hash = id ? `#/c/${id}` : '#/';
  }
}
