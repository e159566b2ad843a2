/** Who searches the web for models: the provider and its key, tested at once. */

import { useEffect, useState } from 'preact/hooks';

import { explain, parts, t } from '../strings.mjs';
import { html, useStore } from './ui.mjs';

/** @typedef {'searxng' | 'brave' | 'tavily'} Provider */

/** @type {Record<Provider, string>} */
const TITLES = { brave: 'Brave', tavily: 'Tavily', searxng: 'SearXNG' };

/** @typedef {{provider: Provider | null, url: string | null, setting: string | null, has_key: boolean}} Stored */

export function SearchProvider() {
  const store = useStore();
  const [stored, setStored] = useState(/** @type {Stored | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const read = () =>
    store.api.searchProvider().then(
      (/** @type {any} */ found) => setStored(found),
      (/** @type {any} */ failure) => setError(explain(failure)),
    );
  useEffect(() => void read(), []);
  return html`<section class="assistant-part" aria-label=${t('search.title')}>
    <h2>${t('search.title')}</h2>
    <p class="muted">${t('search.text')}</p>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${
      stored?.setting &&
      html`<p>
        ${parts('search.fromSetting', {
          provider: stored.provider ? TITLES[stored.provider] : t('search.none'),
          setting: html`<code>${stored.setting}</code>`,
        })}
      </p>`
    }
    ${stored && !stored.setting && html`<${Choice} key=${`${stored.provider} ${stored.url}`} stored=${stored} onChanged=${read} />`}
  </section>`;
}

/** @param {{stored: Stored, onChanged: () => Promise<void>}} properties */
function Choice({ stored, onChanged }) {
  const store = useStore();
  const [provider, setProvider] = useState(stored.provider ?? '');
  const [url, setUrl] = useState(stored.url ?? '');
  const [key, setKey] = useState('');
  const [state, setState] = useState(/** @type {{busy?: boolean, error?: string}} */ ({}));
  const isKept = provider === stored.provider && stored.has_key;
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true });
    try {
      await save();
      await onChanged();
      setState({});
    } catch (failure) {
      setState({ error: explain(/** @type {any} */ (failure)) });
    }
  };
  const save = async () => {
    if (!provider) return store.api.deleteSearchProvider();
    await store.api.setSearchProvider({ provider, url: url || null, ...(key ? { api_key: key } : {}) });
    const { problem } = /** @type {{problem: string | null}} */ (await store.api.testSearchProvider());
    if (problem) throw new Error(t('search.storedButFails', { problem }));
    return store.toast(t('search.works', { provider: TITLES[/** @type {Provider} */ (provider)] }), 'info');
  };
  /** @param {(value: string) => void} set */
  const typed = (set) => (/** @type {any} */ event) => set(event.target.value.trim());
  return html`<form class="search-provider" onSubmit=${submit}>
    <label class="form-field"
      ><span>${t('search.provider')}</span>
      <select value=${provider} onChange=${typed(setProvider)}>
        ${(stored.provider || !provider) && html`<option value="">${t('search.none')}</option>`}
        ${Object.entries(TITLES).map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`)}
      </select></label
    >
    ${
      provider === 'searxng' &&
      html`<label class="form-field"
        ><span>${t('servers.address')}</span
        ><input type="url" required placeholder=${'https://…/search'} value=${url} onInput=${typed(setUrl)}
      /></label>`
    }
    ${
      provider &&
      html`<${KeyField}
        value=${key}
        onChange=${setKey}
        required=${provider !== 'searxng' && !isKept}
        kept=${isKept}
      />`
    }
    ${state.error && html`<p class="form-error" role="alert">${state.error}</p>`}
    ${(provider || stored.provider) && html`<button class="button" disabled=${state.busy}>${t(provider ? 'servers.save' : 'servers.remove')}</button>`}
  </form>`;
}

/**
 * A field for the key of a provider, which is never shown again.
 *
 * @param {{value: string, onChange: (key: string) => void, required: boolean, kept: boolean, children?: unknown}}
 *   properties `kept` if a key is stored, which an empty field keeps
 */
export function KeyField({ value, onChange, required, kept, children }) {
  return html`<label class="form-field"
    ><span>${t('servers.key')}</span
    ><input
      type="password"
      autocomplete="off"
      minlength="8"
      required=${required}
      placeholder=${kept ? t('servers.keptKey') : ''}
      value=${value}
      onInput=${(/** @type {any} */ event) => onChange(event.target.value.trim())}
    />${children}</label
  >`;
}
