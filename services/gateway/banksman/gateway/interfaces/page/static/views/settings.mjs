/** Settings of this browser: theme, language and notifications; and the keyboard map. */

import { KeyboardMap } from '../components/keyboard_map.mjs';
import { html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { LANGUAGES, locale, t } from '../strings.mjs';
import { THEMES, setTheme, theme } from '../theme.mjs';

export default function SettingsView() {
  const store = useStore();
  const { inbox, preferences } = store;
  return html`<${Frame} title=${t('settings.title')}>
    <section class="settings">
      <label class="form-field">
        <span>${t('settings.theme')}</span>
        <select value=${theme.value} onChange=${(event) => setTheme(event.target.value, preferences)}>
          ${THEMES.map((name) => html`<option value=${name}>${t(`settings.theme.${name}`)}</option>`)}
        </select>
      </label>
      <label class="form-field">
        <span>${t('settings.language')}</span>
        <select value=${locale()} onChange=${(event) => store.setLanguage(event.target.value)}>
          ${Object.entries(LANGUAGES).map(([tag, name]) => html`<option value=${tag} lang=${tag}>${name}</option>`)}
        </select>
      </label>
      ${
        'Notification' in globalThis &&
        html`<div class="form-field check">
          <label
            ><input
              type="checkbox"
              checked=${inbox.notifies.value}
              onChange=${(event) => inbox.setNotifies(event.target.checked)}
            />${t('settings.notify')}</label
          >
          ${inbox.notifies.value && inbox.pushes.value !== null && html`<small class="muted">${t(inbox.pushes.value ? 'settings.notify.always' : 'settings.notify.open')}</small>`}
        </div>`
      }
    </section>
    <section class="settings">
      <h2>${t('keys.title')}</h2>
      <${KeyboardMap} />
    </section>
  <//>`;
}
