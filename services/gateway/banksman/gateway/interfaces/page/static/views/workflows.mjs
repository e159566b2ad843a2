/** The workflows by category, and the builder of those without code. */

import { useMemo } from 'preact/hooks';

import { WorkflowBuilder } from '../components/workflow_builder/builder.mjs';
import { categoryIcon } from '../components/icons.mjs';
import { Empty, FormError, Reading, useRead } from '../components/requests.mjs';
import { AddButton, Icon, SmallButton, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { addressOf } from '../router.mjs';
import { t } from '../strings.mjs';
import { draftOf } from '../workflow_draft.mjs';
import { categoriesOf } from '../workflow_words.mjs';

const NEW = 'new';
const STORED = 'stored';

/** @param {{path: string[]}} properties empty for the list, the name of a workflow without code, or `new` */
export default function WorkflowsView({ path: [name] }) {
  return name ? html`<${OneWorkflow} key=${name} name=${name} />` : html`<${WorkflowList} />`;
}

function WorkflowList() {
  const { api } = useStore();
  const read = useRead(() => categoriesOf(api));
  const categories = read.value?.filter((one) => one.workflows.length);
  const isEmpty = categories?.length === 0;
  const actions = html`<${AddButton} label=${t('builder.new')} href=${addressOf('workflows', NEW)} />`;
  return html`<${Frame} title=${t('workflow.title')} actions=${!isEmpty && actions}>
    <p class="muted">${t('builder.intro')}</p>
    <${Reading} of=${read} />
    ${isEmpty && html`<${Empty} text=${t('workflow.none')}>${actions}<//>`}
    ${categories?.map(
      (category) =>
        html`<section key=${category.name}>
          <h2 class="category bar">
            <${Icon} name=${categoryIcon(category)} />${category.title || category.name}
          </h2>
          <ul class="assistants">
            ${category.workflows.map(
              (workflow) => html`<${Entry} key=${workflow.name} workflow=${workflow} />`,
            )}
          </ul>
        </section>`,
    )}
  <//>`;
}

function Entry(/** @type {{workflow: Workflow}} */ { workflow }) {
  const { runs } = useStore();
  const title = workflow.title || workflow.name;
  const text = html`<strong>${title}</strong><span class="muted text-s">${workflow.description}</span>`;
  return html`<li class="wrap card">
    ${
      workflow.server === STORED
        ? html`<a href=${addressOf('workflows', workflow.name)}>${text}</a>`
        : html`<div class="entry">${text}</div>`
    }
    <${SmallButton}
      aria-label=${t('builder.startOf', { title })}
      onClick=${() => (runs.form.value = { name: workflow.name, parameters: {} })}>
      ${t('workflow.start')}
    <//>
  </li>`;
}

function OneWorkflow(/** @type {{name: string}} */ { name }) {
  const { api } = useStore();
  const { value, error, show } = useRead(name !== NEW && (() => api.workflow(name)), [name]);
  const draft = useMemo(() => value && draftOf(value), [value]);
  const stored = (/** @type {Workflow} */ definition) =>
    name === NEW ? (location.hash = addressOf('workflows', definition.name)) : show(definition);
  return html`<${Frame} title=${draft?.title || draft?.name || t('builder.new')}>
    <${FormError} error=${error} />
    ${
      (draft || name === NEW) &&
      html`<${WorkflowBuilder} key=${draft?.revision ?? NEW} stored=${draft} onStored=${stored} />`
    }
  <//>`;
}
