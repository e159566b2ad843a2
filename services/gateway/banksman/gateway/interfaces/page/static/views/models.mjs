/** Models: the servers that runs use with their keys, and the model of new conversations. */

import { useState } from 'preact/hooks';

import { Choice, FormDialog, TextField, bound } from '../components/fields.mjs';
import { ModelButton } from '../components/models.mjs';
import { Records } from '../components/operator/records.mjs';
import { FormError, Reading, useRead } from '../components/requests.mjs';
import { KeyField, SearchProvider } from '../components/search_provider.mjs';
import { AddButton, LinkButton, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { parts, t } from '../strings.mjs';

/** Vendors by the name of their server. `address` is missing where the gateway knows it. @typedef {{title: string, address?: string, scheme?: string, keyless?: boolean}} Vendor */
/** @type {Record<string, Vendor>} */
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
/** @param {Vendor} vendor */
const urlOf = ({ scheme = 'https', address }) => address && `${scheme}://${address}`;
const APIS = /** @type {const} */ (['chat', 'responses', 'anthropic']);
/** @type {Key[]} */
const COLUMNS = ['app.name', 'app.address', 'app.key', 'servers.title', 'servers.actions'];

export default function ModelsView() {
  const { api } = useStore();
  const servers = useRead(() => api.items('model_server.list'));
  const [edited, setEdited] = useState(/** @type {Partial<ModelServer> | null} */ (null));
  const actions = html`<${AddButton} label=${t('servers.add')} onClick=${() => setEdited({})} />`;
  return html`<${Frame} title=${t('servers.title')} actions=${actions}>
    <p class="muted">${t('servers.intro')}</p>
    <${Reading} of=${servers} />
    ${
      servers.value &&
      html`<${Servers}
        servers=${servers.value}
        onEdit=${setEdited}
        onChanged=${servers.read}
        onError=${servers.fail} />`
    }
    <${DefaultModel} key=${servers.value?.length} />
    <${SearchProvider} />
    ${edited && html`<${ServerForm} server=${edited} onClose=${() => (setEdited(null), servers.read())} />`}
  <//>`;
}

/**
 * @param {{servers: ModelServer[], onEdit: (server: ModelServer) => void, onChanged: () => void, onError: (failure: Failure) => void}} properties
 */
function Servers({ servers, onEdit, onChanged, onError }) {
  const { api, toasts } = useStore();
  const remove = (/** @type {string} */ name) =>
    api.call('model_server.delete', { name }).then(onChanged, onError);
  const test = (/** @type {string} */ name) =>
    api.call('model_server.test', { name }).then((result) => {
      if (result.problem) toasts.show(result.problem);
      else toasts.show(t('servers.works', { name, count: result.models.length }), 'info');
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
      html`<div class="row-actions">
        <${LinkButton} onClick=${() => test(one.name)}>${t('servers.test')}<//>
        <${LinkButton} onClick=${() => onEdit(one)}>${t('app.change')}<//>
        <${LinkButton} onClick=${() => remove(one.name)}>${t('app.remove')}<//>
      </div>`,
  ]);
  return html`<${Records}
    title=${t('servers.list')}
    columns=${COLUMNS}
    rows=${rows}
    keys=${servers.map((one) => one.name)}
    empty=${t('servers.none')} />`;
}

/**
 * Set a server and test its key at once. A stored key is never shown; an empty field keeps it.
 *
 * @param {{server: Partial<ModelServer>, onClose: () => void}} properties
 */
function ServerForm({ server, onClose }) {
  const store = useStore();
  const isNew = !server.name;
  const [vendor, setVendor] = useState(isNew ? 'openai' : '');
  const [own, setOwn] = useState({
    name: server.name ?? '',
    base_url: server.base_url ?? '',
    api: server.api ?? 'chat',
  });
  const [key, setKey] = useState('');
  const known = VENDORS[vendor];
  const submit = async () => {
    const { name, ...given } = known ? { name: vendor, base_url: urlOf(known) } : own;
    await store.api.call('model_server.set', { name }, { ...given, ...(key ? { api_key: key } : {}) });
    const { problem, models } = await store.api.call('model_server.test', { name });
    if (problem) throw new Error(t('servers.storedButFails', { problem }));
    store.toasts.show(t('servers.works', { name, count: models.length }), 'info');
    onClose();
  };
  const of = bound(own, (fields) => setOwn({ ...own, ...fields }));
  const vendors = Object.entries(VENDORS).map(([name, one]) => [name, one.title]);
  return html`<${FormDialog}
    title=${t(isNew ? 'servers.add' : 'servers.changeTitle')}
    label=${t('servers.save')}
    onSubmit=${submit}
    onClose=${onClose}>
    ${
      isNew &&
      html`<${Choice}
        label=${t('servers.vendor')}
        value=${vendor}
        onChange=${setVendor}
        options=${[...vendors, ['', t('servers.other')]]} />`
    }
    ${
      !known &&
      html`${
          isNew &&
          html`<${TextField}
            label=${t('app.name')}
            ...${of('name')}
            late
            required
            pattern="[a-z][a-z0-9_\\-]{0,31}"
            title=${t('servers.nameHint')} />`
        }
        <${TextField}
          label=${t('app.address')}
          ...${of('base_url')}
          late
          required
          type="url"
          placeholder=${'https://…/v1'} />
        <${Choice}
          label=${t('servers.api')}
          ...${of('api')}
          options=${APIS.map((api) => [api, t(`servers.api.${api}`)])} />`
    }
    ${
      !known?.keyless &&
      html`<${KeyField} value=${key} onChange=${setKey} required=${Boolean(known)} kept=${server.has_key}>
        <small class="muted">${t('servers.keyText')}</small>
      <//>`
    }
  <//>`;
}

/** The model of the assistant `default` and what stands in for it while its server is unavailable. */
function DefaultModel() {
  const { api, toasts } = useStore();
  const {
    value: assistant,
    error,
    show,
    fail,
  } = useRead(() => api.call('assistant.read', { assistant_id: 'default' }));
  const change = (/** @type {Partial<Assistant>} */ changes) => {
    const { id, ...stored } = /** @type {Assistant} */ (assistant);
    api
      .call('assistant.update', { assistant_id: id }, { ...stored, ...changes })
      .then((now) => (show(now), toasts.show(t('servers.saved'), 'info')), fail);
  };
  const [fallback = null] = assistant?.fallback_models ?? [];
  return html`<section class="assistant-part stack" aria-label=${t('servers.defaults')}>
    <h2>${t('servers.defaults')}</h2>
    <p class="muted">${t('servers.defaultsText')}</p>
    <${FormError} error=${error} />
    ${
      assistant &&
      html`<p>
        <${ModelButton}
          value=${assistant.model}
          label=${t('run.model')}
          onChange=${(/** @type {string | null} */ model) => change({ model })} />
        <span class="muted">${t('servers.thenFallback')}</span>
        <${ModelButton}
          value=${fallback}
          label=${t('servers.fallback')}
          onChange=${(/** @type {string | null} */ model) =>
            change({ fallback_models: model ? [model] : [] })} />
      </p>`
    }
  </section>`;
}
