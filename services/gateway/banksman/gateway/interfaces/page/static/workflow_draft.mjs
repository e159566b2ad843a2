/** A workflow without code while a person builds it: its form fields, its steps and the body that is sent. Pure. */

/** Kinds of a form field and their JSON Schema. @type {Record<string, object>} */
export const FIELD_KINDS = {
  text: { type: 'string' },
  long: { type: 'string', 'x-hint': 'multiline' },
  number: { type: 'number' },
  choice: { type: 'string' },
  several: { type: 'array' },
  yes: { type: 'boolean' },
  date: { type: 'string', 'x-hint': 'date' },
  file: { type: 'string', 'x-hint': 'file' },
};

/** @typedef {Draft['fields'][number]} Field @typedef {Draft['steps'][number]} BuiltStep */
/** @type {Record<string, string>} */
const KIND_OF_HINT = { multiline: 'long', date: 'date', file: 'file' };
/** @type {Record<string, string>} */
const KIND_OF_FORMAT = { textarea: 'long', date: 'date' };

/** The step types in the order of the menu, with the fields of a new one. @type {Record<string, () => object>} */
export const NEW_STEPS = {
  prompt: () => ({ prompt: '' }),
  tool: () => ({ tool: '', arguments: {} }),
  input: () => ({ message: '' }),
  approval: () => ({ message: '' }),
};

/** The name in addresses and references, derived from the title. @param {string} title */
export function nameOf(title) {
  const plain = title
    .normalize('NFKD')
    .replaceAll(/[\u0300-\u036f]/g, '')
    .toLowerCase();
  return plain
    .replaceAll(/[^a-z0-9]+/g, '_')
    .replaceAll(/^_+|_+$/g, '')
    .slice(0, 48);
}

/** @param {BuiltStep[]} steps @param {string} type @returns {BuiltStep[]} */
export function withStep(steps, type) {
  const taken = new Set(steps.map((step) => step.name));
  let count = 1;
  while (taken.has(`${type}${count}`)) count += 1;
  const added = { type, name: `${type}${count}`, ...NEW_STEPS[type]() };
  return [...steps, /** @type {BuiltStep} */ (added)];
}

/** Move the entry at `at` by one place. @template One @param {One[]} items @param {number} at @param {1 | -1} step */
export function moved(items, at, step) {
  const to = at + step;
  if (to < 0 || to >= items.length) return items;
  const next = items.toSpliced(at, 1);
  next.splice(to, 0, items[at]);
  return next;
}

/**
 * The references that the texts of the step at `at` may contain.
 *
 * @param {Pick<Draft, 'fields' | 'steps'>} draft
 * @param {number} at
 * @returns {string[]}
 */
export function referencesAt({ fields, steps }, at) {
  const parameters = fields.filter(({ name }) => name).map(({ name }) => `{{parameters.${name}}}`);
  return [...parameters, ...steps.slice(0, at).map(({ name }) => `{{steps.${name}}}`)];
}

/** @type {Draft} */
export const EMPTY = {
  title: '',
  description: '',
  category: 'general',
  timeout_s: 3600,
  fields: [],
  steps: [],
  result: '',
  name: '',
  revision: null,
};

/**
 * @typedef {object} Draft
 * @property {string} name empty for a new workflow
 * @property {string} title
 * @property {string} description
 * @property {string} category
 * @property {number} timeout_s
 * @property {number | null} revision
 * @property {{name: string, label: string, kind: string, choices: unknown[], required: boolean, property?: Schema}[]} fields
 * @property {NonNullable<Workflow['built']>['steps']} steps
 * @property {string} result
 * @property {Schema} [schema] the stored form
 */

/** The draft of a stored workflow. A property of an unknown kind stays unchanged. @param {Workflow} workflow @returns {Draft} */
export function draftOf({
  name,
  title,
  description,
  category,
  timeout_s,
  parameters_schema,
  built,
  revision,
}) {
  const schema = /** @type {Schema} */ (parameters_schema);
  const required = new Set(schema?.required ?? []);
  const fields = Object.entries(schema?.properties ?? {}).map(([field, property]) => ({
    name: field,
    label: property.title ?? '',
    kind: kindOf(property),
    choices: property.enum ?? property.items?.enum ?? [],
    required: required.has(field),
    property,
  }));
  return {
    name,
    title,
    description,
    category,
    timeout_s,
    revision,
    fields,
    steps: built?.steps ?? [],
    result: built?.result ?? '',
    schema,
  };
}

function kindOf(/** @type {Schema} */ { type, format, enum: choices, items, 'x-hint': hint }) {
  if (choices) return areTexts(choices) ? 'choice' : 'other';
  if (type === 'array') return areTexts(items?.enum) ? 'several' : 'other';
  if (type === 'string')
    return hint ? (KIND_OF_HINT[hint] ?? 'other') : (KIND_OF_FORMAT[format ?? ''] ?? 'text');
  if (type === 'number' || type === 'integer') return 'number';
  return type === 'boolean' ? 'yes' : 'other';
}

/** @param {unknown[] | undefined} choices */
const areTexts = (choices) => choices?.every((one) => typeof one === 'string') ?? false;

/** The body that stores a draft. @param {Draft} draft */
export function bodyOf(draft) {
  const { title, description, category, timeout_s, steps, result, revision } = draft;
  const built = { steps, ...(result.trim() ? { result } : {}) };
  return {
    title: title.trim(),
    description,
    category: category.trim() || 'general',
    timeout_s,
    parameters_schema: schemaOf(draft),
    built,
    ...(revision ? { revision } : {}),
  };
}

function schemaOf(/** @type {Draft} */ { fields, schema }) {
  const named = fields.filter(({ name }) => name);
  const properties = Object.fromEntries(named.map((field) => [field.name, propertyOf(field)]));
  const required = named.filter((field) => field.required).map(({ name }) => name);
  return { ...schema, type: 'object', properties, required };
}

/** @param {Field} field */
function propertyOf({ kind, label, choices, property = {} }) {
  if (kind === 'other') return property;
  const same = kindOf(property) === kind;
  const kept = same ? property : { description: property.description };
  const written = {
    ...kept,
    ...(same ? {} : FIELD_KINDS[kind]),
    ...(label ? { title: label } : {}),
    ...chosenFrom(kind, choices, kept.items),
  };
  return Object.fromEntries(Object.entries(written).filter(([, value]) => value !== undefined));
}

/** @param {string} kind @param {unknown[]} choices @param {Schema | undefined} items */
function chosenFrom(kind, choices, items) {
  if (kind === 'several') return { items: { ...(items ?? { type: 'string' }), enum: choices } };
  return kind === 'choice' ? { enum: choices } : {};
}

/** A form whose fields begin with these values. @param {Schema} schema @param {Json} values */
export function withDefaults(schema, values) {
  const properties = Object.entries(schema?.properties ?? {}).map(([name, property]) => [
    name,
    name in values ? { ...property, default: values[name] } : property,
  ]);
  return { ...schema, properties: Object.fromEntries(properties) };
}
