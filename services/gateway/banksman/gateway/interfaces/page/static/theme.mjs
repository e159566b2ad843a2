/** The theme of the page: the theme of the system, or the user's choice. */

import { computed, signal } from '@preact/signals';

export const THEMES = /** @type {const} */ (['system', 'light', 'dark']);
const CHOSEN = 'banksman.theme';

const systemQuery = globalThis.matchMedia?.('(prefers-color-scheme: dark)');
const systemDark = signal(systemQuery?.matches ?? false);
systemQuery?.addEventListener('change', () => (systemDark.value = systemQuery.matches));

export const theme = signal(/** @type {typeof THEMES[number]} */ ('system'));
export const dark = computed(() => (theme.value === 'system' ? systemDark.value : theme.value === 'dark'));

/** Show the stored choice. @param {Storage} preferences */
export function restoreTheme(preferences) {
  apply(preferences.getItem(CHOSEN));
}

/** @param {string} choice one of `THEMES` @param {Storage} preferences */
export function setTheme(choice, preferences) {
  preferences.setItem(CHOSEN, choice);
  apply(choice);
}

function apply(/** @type {string | null} */ choice) {
  theme.value = THEMES.find((name) => name === choice) ?? 'system';
  const root = document.documentElement;
  if (theme.value === 'system') delete root.dataset.theme;
  else root.dataset.theme = theme.value;
}
