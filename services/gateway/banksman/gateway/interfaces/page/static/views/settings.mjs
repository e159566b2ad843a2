/** Settings of this browser; the user's own instructions and this month's cost; and the keyboard map. */

import { useEffect, useState } from 'preact/hooks';

import { KeyboardMap } from '../components/keyboard_map.mjs';
import { html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { LANGUAGES, explain, locale, t } from '../strings.mjs';
import { formatCost } from '../text.mjs';
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
    <${Instructions} />
    <${Month} />
    <section class="settings">
      <h2>${t('keys.title')}</h2>
      <${KeyboardMap} />
    </section>
  <//>`;
}

/** What the user wants of every reply. */
function Instructions() {
  const store = useStore();
  const [stored, setStored] = useState('');
  const [text, setText] = useState('');
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const show = ({ text: read = '' }) => (setStored(read), setText(read), setError(null));
  const fail = (/** @type {Failure} */ failure) => setError(explain(failure));
  useEffect(() => void store.api.instructions().then(show, fail), []);
  const save = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    store.api
      .setInstructions(text)
      .then((read) => (show(read), store.toast(t('settings.instructionsSaved'), 'info')), fail);
  };
  return html`<form class="settings" onSubmit=${save}>
    <label class="form-field">
      <span>${t('settings.instructions')}</span>
      <textarea rows="4" maxlength="4000" value=${text} onInput=${(event) => setText(event.target.value)} />
      <small class="muted">${t('settings.instructionsText')}</small>
    </label>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    <button class="button" disabled=${text === stored}>${t('settings.save')}</button>
  </form>`;
}

/** What the runs of the tenant have cost this month. */
function Month() {
  const store = useStore();
  const [month, setMonth] = useState(/** @type {Replies['usage']['windows'][number] | null} */ (null));
  useEffect(() => {
    // Without the report the page shows no cost.
    store.api.usage().then(
      (report) => setMonth(report.windows?.find((one) => one.window === 'month') ?? null),
      () => {},
    );
  }, []);
  return (
    month &&
    html`<section class="settings">
      <h2>${t('settings.month')}</h2>
      <p>
        ${t('settings.monthText', { cost: formatCost(month.cost_usd), count: month.requests })}
        ${month.max_cost_usd && html` <span class="muted">${t('settings.monthLimit', { cost: formatCost(month.max_cost_usd) })}</span>`}
      </p>
    </section>`
  );
}
