/** Settings of this browser; the user's own instructions, sign-ins and this month's cost; and the keyboard map. */

import { Accounts } from '../components/accounts.mjs';
import { Check, Choice, TextField } from '../components/fields.mjs';
import { KeyboardMap } from '../components/keyboard_map.mjs';
import { FormError, useKept, useRead } from '../components/requests.mjs';
import { html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { LANGUAGES, locale, t } from '../strings.mjs';
import { formatCost } from '../text.mjs';
import { THEMES, setTheme, theme } from '../theme.mjs';

/** @param {{path: string[]}} properties `mcp`, the server of a sign-in and its outcome, when the browser returns from one */
export default function SettingsView({ path }) {
  const store = useStore();
  const { inbox, settings } = store;
  return html`<${Frame} title=${t('settings.title')}>
    <section class="settings">
      <${Choice}
        label=${t('settings.theme')}
        value=${theme.value}
        onChange=${(/** @type {string} */ name) => setTheme(name, settings.preferences)}
        options=${THEMES.map((name) => [name, t(`settings.theme.${name}`)])} />
      <${Choice}
        label=${t('settings.language')}
        value=${locale()}
        onChange=${(/** @type {string} */ tag) => store.settings.setLanguage(tag)}
        options=${Object.entries(LANGUAGES).map(([tag, name]) => [tag, name, { lang: tag }])} />
      ${
        'Notification' in globalThis &&
        html`<${Check}
          label=${t('settings.notify')}
          value=${inbox.notifies.value}
          onChange=${(/** @type {boolean} */ on) => inbox.setNotifies(on)}
          >${
            inbox.notifies.value &&
            inbox.pushes.value !== null &&
            html`<small class="muted"
              >${t(inbox.pushes.value ? 'settings.notify.always' : 'settings.notify.open')}</small
            >`
          }<//
        >`
      }
    </section>
    <${Instructions} />
    <${Accounts} path=${path.slice(1)} />
    <${Month} />
    <section class="settings">
      <h2>${t('keys.title')}</h2>
      <${KeyboardMap} />
    </section>
  <//>`;
}

/** What the user wants of every reply. */
function Instructions() {
  const { api, toasts } = useStore();
  const { value, error, show, fail } = useRead(() => api.call('instructions.read'));
  const stored = value?.text ?? '';
  /** @type {ReturnType<typeof useKept<string>>} */
  const [typed, setTyped] = useKept('instructions');
  const text = typed ?? stored;
  const save = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    api.call('instructions.set', {}, { text }).then((read) => {
      show(read);
      setTyped((now) => (now === text ? null : now));
      toasts.show(t('settings.instructionsSaved'), 'info');
    }, fail);
  };
  return html`<form class="settings" onSubmit=${save}>
    <${TextField}
      label=${t('settings.instructions')}
      value=${text}
      onChange=${setTyped}
      rows="4"
      disabled=${!value}
      maxlength="4000">
      <small class="muted">${t('settings.instructionsText')}</small>
    <//>
    <${FormError} error=${error} />
    <button class="button" disabled=${text === stored}>${t('app.save')}</button>
  </form>`;
}

/** What the runs of the tenant have cost this month. */
function Month() {
  const { api } = useStore();
  // Without the report the page shows no cost.
  const { value: report } = useRead(() => api.usage());
  const month = report?.windows?.find((one) => one.window === 'month');
  return (
    month &&
    html`<section class="settings">
      <h2>${t('settings.month')}</h2>
      <p>
        ${t('settings.monthText', { cost: formatCost(month.cost_usd), count: month.requests })}
        ${
          month.max_cost_usd &&
          html` <span class="muted"
            >${t('settings.monthLimit', { cost: formatCost(month.max_cost_usd) })}</span
          >`
        }
      </p>
    </section>`
  );
}
