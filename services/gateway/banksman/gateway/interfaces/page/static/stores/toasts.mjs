/** Short messages to the user, at the edge of the page. */

import { signal } from '@preact/signals';

import { newId } from '../client/connection.mjs';
import { explain } from '../strings.mjs';

const SHOWN_MS = 6000;

export class Toasts {
  items = signal(/** @type {Toast[]} */ ([]));

  show(/** @type {string} */ text, tone = 'error') {
    const key = newId('t');
    this.items.value = [{ key, text, tone }, ...this.items.value];
    setTimeout(() => this.dismiss(key), SHOWN_MS);
  }

  dismiss(/** @type {string} */ key) {
    this.items.value = this.items.value.filter((toast) => toast.key !== key);
  }

  /** Do something, and show why it failed. @param {() => unknown} action */
  async attempt(action) {
    try {
      await action();
    } catch (error) {
      this.show(explain(error));
    }
  }
}
