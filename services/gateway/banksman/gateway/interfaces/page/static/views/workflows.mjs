/** The workflows by category, and the builder of those without code. */

import { useEffect, useState } from 'preact/hooks';

import { WorkflowBuilder } from '../components/workflow_builder/builder.mjs';
import { categoryIcon } from '../components/icons.mjs';
import { Icon, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { addressOf } from '../router.mjs';
import { explain, t } from '../strings.mjs';
import { draftOf } from '../workflow_draft.mjs';
import { categoriesOf } from '../workflow_words.mjs';

const NEW = 'new';
const STORED = 'stored';

/** @param {{path: string[]}} properties empty for the list, the name of a workflow without code, or `new` */
export default function WorkflowsView({ path: [name] }) {
  return name ? html`<${OneWorkflow} key=${name} name=${name} />` : html`<${WorkflowList} />`;
}

function WorkflowList() {
  const store = useStore();
  const [categories, setCategories] = useState(/** @type {Item<'workflow.categories'>[] | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  useEffect(
    () => void categoriesOf(store.api).then(setCategories, (failure) => setError(explain(failure))),
    [],
  );
  const actions = html`<a class="button primary" href=${addressOf('workflows', NEW)}
    ><${Icon} name="plus" size=${16} />${t('builder.new')}</a
  >`;
  return html`<${Frame} title=${t('workflow.title')} actions=${actions}>
    <p class="muted">${t('builder.intro')}</p>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!categories && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
    ${categories?.every((one) => !one.workflows.length) && html`<p class="empty">${t('workflow.none')}</p>`}
    ${categories
      ?.filter((one) => one.workflows.length)
      .map(
        (category) =>
          html`<section key=${category.name}>
            <h2 class="category">
              <${Icon} name=${categoryIcon(category)} />${category.title || category.name}
            </h2>
            <ul class="assistants">
              ${category.workflows.map((workflow) => html`<${Entry} key=${workflow.name} workflow=${workflow} />`)}
            </ul>
          </section>`,
      )}
  <//>`;
}

function Entry(/** @type {{workflow: Workflow}} */ { workflow }) {
  const store = useStore();
  const title = workflow.title || workflow.name;
  const text = html`<strong>${title}</strong><span class="muted">${workflow.description}</span>`;
  return html`<li>
    ${workflow.server === STORED ? html`<a href=${addressOf('workflows', workflow.name)}>${text}</a>` : html`<div class="entry">${text}</div>`}
    <button
      type="button"
      class="button small"
      aria-label=${t('builder.startOf', { title })}
      onClick=${() => (store.workflowsOpen.value = { name: workflow.name, parameters: {} })}
    >
      ${t('workflow.start')}
    </button>
  </li>`;
}

function OneWorkflow(/** @type {{name: string}} */ { name }) {
  const store = useStore();
  const [draft, setDraft] = useState(/** @type {WorkflowDraft | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const show = (/** @type {Workflow} */ definition) => setDraft(draftOf(definition));
  useEffect(
    () => void (name !== NEW && store.api.workflow(name).then(show, (failure) => setError(explain(failure)))),
    [name],
  );
  const stored = (/** @type {Workflow} */ definition) =>
    name === NEW ? (location.hash = addressOf('workflows', definition.name)) : show(definition);
  return html`<${Frame} title=${draft?.title || draft?.name || t('builder.new')}>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${(draft || name === NEW) && html`<${WorkflowBuilder} key=${draft?.revision ?? NEW} stored=${draft} onStored=${stored} />`}
  <//>`;
}
