/** How the page looks in this browser. */

import { signal } from '@preact/signals';

const DETAILS = 'banksman.details';

export class Settings {
  /** @param {{preferences: Storage}} options */
  constructor({ preferences }) {
    this.preferences = preferences;
    /** Whether every step of a run is shown. */
    this.details = signal(preferences.getItem(DETAILS) === 'on');
  }

  toggleDetails() {
    this.details.value = !this.details.value;
    this.preferences.setItem(DETAILS, this.details.value ? 'on' : 'off');
  }

  /** Show the page in another language, from its start, because shown texts do not change. @param {string} language */
  setLanguage(language) {
    this.preferences.setItem('banksman.language', language);
    location.reload();
  }
}
