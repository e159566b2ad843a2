/** Who searches the web for models: the provider and its key, tested at once. */

import { useState } from 'preact/hooks';

import { parts, t } from '../strings.mjs';
import { Choice, TextField } from './fields.mjs';
import { FormError, useAction, useRead } from './requests.mjs';
import { html, useStore } from './ui.mjs';

/** @typedef {'searxng' | 'brave' | 'tavily'} Provider */

/** @type {Record<Provider, string>} */
const TITLES = { brave: 'Brave', tavily: 'Tavily', searxng: 'SearXNG' };

/** @typedef {Replies['search_provider.read']} Stored */

export function SearchProvider() {
  const { api } = useStore();
  const { value: stored, error, read } = useRead(() => api.call('search_provider.read'));
  return html`<section class="assistant-part stack" aria-label=${t('search.title')}>
    <h2>${t('search.title')}</h2>
    <p class="muted">${t('search.text')}</p>
    <${FormError} error=${error} />
    ${
      stored?.setting &&
      html`<p>
        ${parts('search.fromSetting', {
          provider: stored.provider ? TITLES[stored.provider] : t('search.none'),
          setting: html`<code>${stored.setting}</code>`,
        })}
      </p>`
    }
    ${
      stored &&
      !stored.setting &&
      html`<${ProviderForm} key=${`${stored.provider} ${stored.url}`} stored=${stored} onChanged=${read} />`
    }
  </section>`;
}

/** @param {{stored: Stored, onChanged: () => Promise<void>}} properties */
function ProviderForm({ stored, onChanged }) {
  const { api, toasts } = useStore();
  const [provider, setProvider] = useState(stored.provider ?? '');
  const [url, setUrl] = useState(stored.url ?? '');
  const [key, setKey] = useState('');
  const { busy, error, run } = useAction();
  const isKept = provider === stored.provider && stored.has_key;
  const submit = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    return run(() => save().then(onChanged));
  };
  const save = async () => {
    if (!provider) return api.call('search_provider.delete');
    const wanted = { provider, url: url.trim() || null, ...(key ? { api_key: key } : {}) };
    await api.call('search_provider.set', {}, wanted);
    const { problem } = await api.call('search_provider.test');
    if (problem) throw new Error(t('search.storedButFails', { problem }));
    return toasts.show(t('search.works', { provider: TITLES[/** @type {Provider} */ (provider)] }), 'info');
  };
  const none = stored.provider || !provider ? [['', t('search.none')]] : [];
  return html`<form class="search-provider" onSubmit=${submit}>
    <${Choice}
      label=${t('search.provider')}
      value=${provider}
      onChange=${setProvider}
      options=${[...none, ...Object.entries(TITLES)]} />
    ${
      provider === 'searxng' &&
      html`<${TextField}
        label=${t('app.address')}
        value=${url}
        onChange=${setUrl}
        type="url"
        required
        placeholder=${'https://…/search'} />`
    }
    ${
      provider &&
      html`<${KeyField}
        value=${key}
        onChange=${setKey}
        required=${provider !== 'searxng' && !isKept}
        kept=${isKept} />`
    }
    <${FormError} error=${error} />
    ${
      (provider || stored.provider) &&
      html`<button class="button" disabled=${busy}>${t(provider ? 'servers.save' : 'app.remove')}</button>`
    }
  </form>`;
}

/**
 * A field for the key of a provider, which is never shown again.
 *
 * @param {{value: string, onChange: (key: string) => void, required: boolean, kept: boolean, children?: Shown}}
 *   properties `kept` if a key is stored, which an empty field keeps
 */
export function KeyField({ value, onChange, required, kept, children }) {
  return html`<${TextField}
    label=${t('app.key')}
    value=${value}
    onChange=${(/** @type {string} */ key) => onChange(key.trim())}
    type="password"
    autocomplete="off"
    minlength="8"
    required=${required}
    placeholder=${kept ? t('servers.keptKey') : ''}
    >${children}<//
  >`;
}
