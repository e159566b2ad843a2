/** The platform's workflows and categories in the language of the page. Others are shown as their authors wrote them. */

import { humanise } from './forms.mjs';
import { known, translated } from './strings.mjs';

/** The categories with their workflows. @param {import('./client/api.mjs').Api} api */
export async function categoriesOf(api) {
  const { items } = await api.call('workflow.categories');
  return items.map((category) => ({
    ...category,
    title: translated(`category.${category.name}`, category.title),
    workflows: category.workflows.map(workflowInWords),
  }));
}

/** A definition of a workflow with the texts of its form in the language of the page. @param {Workflow} workflow @returns {Workflow} */
export function workflowInWords(workflow) {
  const { name, title, description, parameters_schema: schema } = workflow;
  const key = `builtin.${name}`;
  const about = translated(`${key}.about`, description);
  // A tenant's workflow may have the name and field names of a workflow of the platform.
  if (about === description) return workflow;
  const fields = Object.entries(/** @type {Schema} */ (schema).properties ?? {}).map(([field, property]) => [
    field,
    inWords(`${key}.${field}`, field, property),
  ]);
  return {
    ...workflow,
    title: translated(key, title),
    description: about,
    parameters_schema: { ...schema, properties: Object.fromEntries(fields) },
  };
}

function inWords(/** @type {string} */ key, /** @type {string} */ name, /** @type {Schema} */ property) {
  const title = property.title ?? known(`${key}.label`, humanise(name));
  return { ...property, title, description: translated(key, property.description ?? '') };
}
