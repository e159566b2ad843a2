/** Models: the servers that runs use with their keys, and the model of new conversations. */

import { useEffect, useState } from 'preact/hooks';

import { ModelButton } from '../components/models.mjs';
import { Records } from '../components/operator/records.mjs';
import { KeyField, SearchProvider } from '../components/search_provider.mjs';
import { Dialog, Icon, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { explain, parts, t } from '../strings.mjs';

/** Vendors by the name of their server. `address` is missing where the gateway knows it. */
const VENDORS = {
  openai: { title: 'OpenAI' },
  anthropic: { title: 'Anthropic' },
  gemini: { title: 'Google Gemini', address: 'generativelanguage.googleapis.com/v1beta/openai' },
  mistral: { title: 'Mistral', address: 'api.mistral.ai/v1' },
  groq: { title: 'Groq', address: 'api.groq.com/openai/v1' },
  deepseek: { title: 'DeepSeek', address: 'api.deepseek.com/v1' },
  xai: { title: 'xAI', address: 'api.x.ai/v1' },
  openrouter: { title: 'OpenRouter', address: 'openrouter.ai/api/v1' },
  ollama: { title: 'Ollama', address: '127.0.0.1:11434/v1', scheme: 'http', keyless: true },
};
/** @param {{scheme?: string, address: string}} options */
const urlOf = ({ scheme = 'https', address }) => address && `${scheme}://${address}`;
const APIS = ['chat', 'responses', 'anthropic'];

export default function ModelsView() {
  const store = useStore();
  const [servers, setServers] = useState(/** @type {ModelServer[] | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const [edited, setEdited] = useState(/** @type {ModelServer | null} */ (null));
  const fail = (failure) => setError(explain(failure));
  const read = () => store.api.modelServers().then((items) => (setServers(items), setError(null)), fail);
  useEffect(() => void read(), []);
  const actions = html`<button type="button" class="button primary" onClick=${() => setEdited({})}>
    <${Icon} name="plus" size=${16} />${t('servers.add')}
  </button>`;
  return html`<${Frame} title=${t('servers.title')} actions=${actions}>
    <p class="muted">${t('servers.intro')}</p>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!servers && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
    ${servers && html`<${Servers} servers=${servers} onEdit=${setEdited} onChanged=${read} onError=${fail} />`}
    <${DefaultModel} key=${servers?.length} />
    <${SearchProvider} />
    ${edited && html`<${ServerForm} server=${edited} onClose=${() => (setEdited(null), read())} />`}
  <//>`;
}

/**
 * @param {{servers: ModelServer[], onEdit: (server: ModelServer) => void, onChanged: () => void, onError: (failure: Failure) => void}} properties
 */
function Servers({ servers, onEdit, onChanged, onError }) {
  const store = useStore();
  const remove = (name) => store.api.deleteModelServer(name).then(onChanged, onError);
  const test = (name) =>
    store.api.testModelServer(name).then((result) => {
      if (result.problem) store.toast(result.problem);
      else store.toast(t('servers.works', { name, count: result.models.length }), 'info');
      return onChanged();
    }, onError);
  const rows = servers.map((one) => [
    html`<strong>${one.name}</strong>`,
    html`<code>${one.base_url}</code>`,
    one.setting
      ? parts('servers.fromSetting', { setting: html`<code>${one.setting}</code>` })
      : t(one.has_key ? 'servers.keyStored' : 'servers.noKey'),
    one.models.length || '',
    !one.setting &&
      html`<button type="button" class="link" onClick=${() => test(one.name)}>${t('servers.test')}</button>
        <button type="button" class="link" onClick=${() => onEdit(one)}>${t('servers.change')}</button>
        <button type="button" class="link" onClick=${() => remove(one.name)}>${t('servers.remove')}</button>`,
  ]);
  const columns = ['name', 'address', 'key', 'models', 'actions'].map((name) => t(`servers.${name}`));
  return html`<${Records}
    title=${t('servers.list')}
    columns=${columns}
    rows=${rows}
    keys=${servers.map((one) => one.name)}
    empty=${t('servers.none')}
  />`;
}

/**
 * Set a server and test its key at once. A stored key is never shown; an empty field keeps it.
 *
 * @param {{server: McpServer, onClose: () => void}} properties
 */
function ServerForm({ server, onClose }) {
  const store = useStore();
  const isNew = !server.name;
  const [vendor, setVendor] = useState(isNew ? 'openai' : '');
  const [own, setOwn] = useState({ name: server.name, base_url: server.base_url, api: server.api ?? 'chat' });
  const [key, setKey] = useState('');
  const [state, setState] = useState({});
  const known = VENDORS[vendor];
  const submit = async (event) => {
    event.preventDefault();
    const { name, ...given } = known ? { name: vendor, base_url: urlOf(known) } : own;
    setState({ busy: true });
    try {
      await store.api.setModelServer(name, { ...given, ...(key ? { api_key: key } : {}) });
      const { problem, models } = await store.api.testModelServer(name);
      if (problem) return setState({ error: t('servers.storedButFails', { problem }) });
      store.toast(t('servers.works', { name, count: models.length }), 'info');
      return onClose();
    } catch (failure) {
      return setState({ error: explain(failure) });
    }
  };
  const field = (name, properties) =>
    html`<label class="form-field"
      ><span>${t(`servers.${name === 'base_url' ? 'address' : name}`)}</span
      ><input
        required
        value=${own[name] ?? ''}
        onInput=${(event) => setOwn({ ...own, [name]: event.target.value.trim() })}
        ...${properties}
    /></label>`;
  return html`<${Dialog} title=${t(isNew ? 'servers.add' : 'servers.changeTitle')} onClose=${onClose}>
    <form class="dialog-body" onSubmit=${submit}>
      ${
        isNew &&
        html`<label class="form-field"
          ><span>${t('servers.vendor')}</span>
          <select value=${vendor} onChange=${(event) => setVendor(event.target.value)}>
            ${Object.entries(VENDORS).map(([name, one]) => html`<option value=${name}>${one.title}</option>`)}
            <option value="">${t('servers.other')}</option>
          </select>
        </label>`
      }
      ${
        !known &&
        html`${isNew && field('name', { pattern: '[a-z][a-z0-9_\\-]{0,31}', title: t('servers.nameHint') })}
          ${field('base_url', { type: 'url', placeholder: 'https://…/v1' })}
          <label class="form-field"
            ><span>${t('servers.api')}</span>
            <select value=${own.api} onChange=${(event) => setOwn({ ...own, api: event.target.value })}>
              ${APIS.map((api) => html`<option value=${api}>${t(`servers.api.${api}`)}</option>`)}
            </select>
          </label>`
      }
      ${
        !known?.keyless &&
        html`<${KeyField} value=${key} onChange=${setKey} required=${Boolean(known)} kept=${server.has_key}>
          <small class="muted">${t('servers.keyText')}</small>
        <//>`
      }
      ${state.error && html`<p class="form-error" role="alert">${state.error}</p>`}
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('app.cancel')}</button>
        <button class="button primary" disabled=${state.busy}>${t('servers.save')}</button>
      </div>
    </form>
  <//>`;
}

/** The model of the assistant `default` and what stands in for it while its server is unavailable. */
function DefaultModel() {
  const store = useStore();
  const [assistant, setAssistant] = useState(/** @type {Assistant | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const fail = (failure) => setError(explain(failure));
  useEffect(() => void store.api.assistant('default').then(setAssistant, fail), []);
  const change = (changes) =>
    store.api
      .replaceAssistant('default', { ...assistant, ...changes })
      .then((stored) => (setAssistant(stored), store.toast(t('servers.saved'), 'info')), fail);
  const [fallback = null] = assistant?.fallback_models ?? [];
  return html`<section class="assistant-part" aria-label=${t('servers.defaults')}>
    <h2>${t('servers.defaults')}</h2>
    <p class="muted">${t('servers.defaultsText')}</p>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${
      assistant &&
      html`<p>
        <${ModelButton}
          value=${assistant.model}
          label=${t('servers.default')}
          onChange=${(model) => change({ model })}
        />
        <span class="muted">${t('servers.thenFallback')}</span>
        <${ModelButton}
          value=${fallback}
          label=${t('servers.fallback')}
          onChange=${(model) => change({ fallback_models: model ? [model] : [] })}
        />
      </p>`
    }
  </section>`;
}
