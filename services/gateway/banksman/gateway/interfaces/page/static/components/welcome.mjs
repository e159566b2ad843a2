/** The start of a conversation: what a person can do here, with the tools and workflows that are installed. */

import { useState } from 'preact/hooks';

import { t, withTexts } from '../strings.mjs';
import { useRead } from './requests.mjs';
import { Icon, Mark, html, lazy, useStore } from './ui.mjs';

const RepositoryDialog = lazy(() => withTexts(import('./repository.mjs'), 'files'), 'RepositoryDialog');

/** @typedef {'list' | 'write' | 'search' | 'draw'} Example */
/** @typedef {{name: string, title?: string, description?: string, available?: boolean}} Offer */

/** Examples, each with the tool that it needs; null for none. @type {[Example, string | null][]} */
const EXAMPLES = [
  ['list', 'bash'],
  ['write', 'write_file'],
  ['search', 'web_search'],
  ['draw', null],
];
const MAX_WORKFLOWS = 2;
const MAX_TOOLS = 2;
const MAX_SENTENCE = 160;
/** Other tools than those of the workspace come from servers and programs of the tenant. */
const SERVED = /__/;

export function Welcome() {
  const [asks, setAsks] = useState(false);
  const store = useStore();
  const { examples, tools, workflows } = useOffers(store);
  /** @param {string} text */
  const fill = (text) => {
    store.outbox.draft.value = text;
    document.getElementById('composer')?.focus();
  };
  /** @param {true | {name: string}} form */
  const start = (form) => () => (store.runs.form.value = form);
  /** @param {string} key @param {string} title @param {string} text @param {() => void} action */
  const card = (key, title, text, action) =>
    html`<button key=${key} type="button" onClick=${action}>
      <strong>${title}</strong><span class="muted text-s">${text}</span>
    </button>`;
  /** @param {Example} name */
  const asked = (name) => {
    const text = t(`welcome.${name}Text`);
    return card(name, t(`welcome.${name}`), text.replaceAll('`', ''), () => fill(text));
  };
  return html`<section class="welcome">
      <${Mark} size=${56} />
      <h2>${t('welcome.title')}</h2>
      <p class="soft">${t('welcome.text')}</p>
      <div class="suggestions" role="group" aria-label=${t('welcome.examples')}>
        ${examples.map((name) => asked(name))}
        ${tools.map(({ name: tool, description }) =>
          card(tool, t('welcome.tool', { tool }), firstSentence(description), () =>
            fill(t('welcome.toolText', { tool })),
          ),
        )}
        ${workflows.map(({ name, title, description }) =>
          card(name, title || name, firstSentence(description), start({ name })),
        )}
        ${card('workflow', t('welcome.workflow'), t('welcome.workflowText'), start(true))}
      </div>
      <button type="button" class="button welcome-more" onClick=${() => setAsks(true)}>
        <${Icon} name="repository" size=${16} />${t('welcome.repository')}
      </button>
    </section>
    ${asks && html`<${RepositoryDialog} onClose=${() => setAsks(false)} />`}`;
}

/**
 * The examples, tools and workflows of the chosen assistant; those that need no tool until they are read.
 *
 * @param {import('../store.mjs').Store} store
 */
function useOffers(store) {
  const assistant = store.outbox.assistant.value ?? 'default';
  const { api, session } = store;
  const none = () => [];
  const read = async () => {
    const tools = Promise.all([
      api.call('assistant.read', { assistant_id: assistant }),
      api.items('tool.list'),
    ]).then(callable, none);
    return offered(...(await Promise.all([tools, api.workflows().catch(none)])));
  };
  // Before the sign-in each request would be refused.
  const { value } = useRead(session.welcome.value && read, [assistant, session.welcome.value]);
  return value ?? offered([], []);
}

/**
 * The tools that runs of an assistant may call now.
 *
 * @param {[{tools?: {enabled?: boolean, allowed_tools?: string[] | null}}, Offer[]]} read
 */
function callable([{ tools: settings }, tools]) {
  const { enabled, allowed_tools: allowed } = settings ?? {};
  /** @param {Offer} tool */
  const mayCall = ({ name, available }) => available !== false && (!allowed || allowed.includes(name));
  return enabled ? tools.filter(mayCall) : [];
}

/** @param {Offer[]} tools @param {Offer[]} workflows */
function offered(tools, workflows) {
  const names = new Set(tools.map((tool) => tool.name));
  return {
    examples: EXAMPLES.filter(([, tool]) => tool === null || names.has(tool)).map(([name]) => name),
    tools: tools.filter((tool) => SERVED.test(tool.name)).slice(0, MAX_TOOLS),
    workflows: workflows.slice(0, MAX_WORKFLOWS),
  };
}

/** @param {string} [text] */
function firstSentence(text = '') {
  const beginning = text.slice(0, MAX_SENTENCE);
  return /^.*?[.!?](?=\s|$)/.exec(beginning)?.[0] ?? beginning;
}
