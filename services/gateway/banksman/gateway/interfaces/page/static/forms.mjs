/** Forms from JSON Schema: their fields, initial values, and the value of a filled form. */

import { choicesOf, firstViolation, resolve } from './schema_checks.mjs';
import { t } from './strings.mjs';

/** @typedef {'string' | 'text' | 'number' | 'integer' | 'boolean' | 'choice' | 'several' | 'strings' | 'json' | 'secret' | 'date' | 'file'} Kind */
/** @typedef {string | boolean | string[]} Raw what a control holds */

/**
 * @typedef {object} FormField
 * @property {string} name
 * @property {string} label
 * @property {string} description
 * @property {Kind} kind
 * @property {boolean} required
 * @property {unknown[]} choices values of a `choice`, or of the items of `several`
 * @property {Schema} schema the resolved schema
 */

/** The fields of an object schema, in its order. @param {Schema} schema @returns {FormField[]} */
export function fieldsOf(schema) {
  const required = new Set(schema?.required ?? []);
  return Object.entries(schema?.properties ?? {}).map(([name, property]) => {
    const node = resolve(property, schema);
    return {
      name,
      label: node.title ?? humanise(name),
      description: node.description ?? '',
      kind: kindOf(node, schema),
      required: required.has(name),
      choices: choicesOf(node.type === 'array' ? resolve(node.items ?? {}, schema) : node),
      schema: node,
    };
  });
}

/** The name of a field as a label. @param {string} name */
export function humanise(name) {
  const words = name.replaceAll(/[_-]+/g, ' ').trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** Hints that select a special control for a text. */
/** @type {Kind[]} */
const TEXT_HINTS = ['secret', 'date', 'file'];

/** @param {Schema} node @param {Schema} root @returns {Kind} */
function kindOf(node, root) {
  if (choicesOf(node).length) return 'choice';
  switch (node.type) {
    case 'integer':
    case 'number':
    case 'boolean':
      return node.type;
    case 'array':
      return kindOfList(resolve(node.items ?? {}, root));
    case 'string':
      if (TEXT_HINTS.some((hint) => hint === node['x-hint'])) return /** @type {Kind} */ (node['x-hint']);
      if (node.format === 'date') return 'date';
      return node['x-hint'] === 'multiline' || node.format === 'textarea' || (node.maxLength ?? 0) > 400
        ? 'text'
        : 'string';
    default:
      return 'json';
  }
}

function kindOfList(/** @type {Schema} */ items) {
  if (choicesOf(items).length) return 'several';
  return items.type === 'string' ? 'strings' : 'json';
}

/**
 * The initial raw values of a form: text for most fields, a boolean for a checkbox, the chosen indexes of `several`.
 *
 * @param {FormField[]} fields
 * @returns {Record<string, Raw>}
 */
export function initialValues(fields) {
  return Object.fromEntries(fields.map((field) => [field.name, initialValue(field)]));
}

function initialValue(/** @type {FormField} */ field) {
  const value = field.schema.default;
  switch (field.kind) {
    case 'boolean':
      return value === true;
    case 'several':
      return field.choices.flatMap((choice, at) =>
        Array.isArray(value) && value.includes(choice) ? [String(at)] : [],
      );
    case 'strings':
      return Array.isArray(value) ? value.join('\n') : '';
    case 'json':
      return value === undefined || value === null ? '' : JSON.stringify(value, null, 2);
    case 'choice':
      return field.choices.includes(value) ? String(field.choices.indexOf(value)) : '';
    default:
      return value === undefined || value === null ? '' : String(value);
  }
}

/**
 * Read a filled form.
 *
 * @param {FormField[]} fields
 * @param {Record<string, Raw>} raw
 * @returns {{value: Json, errors: Record<string, string>}} empty optional fields are omitted
 */
export function readForm(fields, raw) {
  /** @type {Json} */
  const value = {};
  /** @type {Record<string, string>} */
  const errors = {};
  for (const field of fields) {
    try {
      const read = readField(field, raw[field.name]);
      if (read !== undefined) value[field.name] = read;
      else if (field.required) errors[field.name] = t('check.required', { label: field.label });
    } catch (error) {
      errors[field.name] = /** @type {Error} */ (error).message;
    }
  }
  return { value, errors };
}

function readField(/** @type {FormField} */ field, /** @type {Raw | undefined} */ raw) {
  if (field.kind === 'boolean') return raw === true;
  const text = String(raw ?? '');
  if (text.trim() === '') return undefined;
  if (field.kind === 'several' && Array.isArray(raw))
    return checked(
      field,
      raw.map((at) => field.choices[Number(at)]),
    );
  switch (field.kind) {
    case 'integer':
    case 'number':
      return checked(field, numberFrom(field, text.trim()));
    case 'choice':
      return field.choices[Number(text)];
    case 'strings':
      return checked(
        field,
        text
          .split('\n')
          .map((line) => line.trim())
          .filter(Boolean),
      );
    case 'json':
      return checked(field, jsonFrom(text));
    default:
      return checked(field, text);
  }
}

function numberFrom(/** @type {FormField} */ field, /** @type {string} */ text) {
  const value = Number(text.replace(',', '.'));
  if (!Number.isFinite(value)) throw new Error(t('check.number'));
  if (field.kind === 'integer' && !Number.isInteger(value)) throw new Error(t('check.integer'));
  return value;
}

function jsonFrom(/** @type {string} */ text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(t('check.json'));
  }
}

function checked(/** @type {FormField} */ field, /** @type {unknown} */ value) {
  const violation = firstViolation(value, field.schema);
  if (violation) throw new Error(violation);
  return value;
}

/**
 * The form of a call's arguments: text is edited without JSON escapes, other values as JSON.
 *
 * @param {Json} values
 * @returns {{name: string, label: string, text: string, isText: boolean}[]}
 */
export function argumentFields(values) {
  return Object.entries(values).map(([name, value]) => {
    const isText = typeof value === 'string';
    return { name, label: humanise(name), text: isText ? value : JSON.stringify(value, null, 2), isText };
  });
}

/**
 * Read edited arguments.
 *
 * @param {{name: string, label: string, text: string, isText: boolean}[]} fields
 * @returns {{value: Json} | {problem: string}}
 */
export function readArguments(fields) {
  /** @type {Json} */
  const value = {};
  for (const { name, label, text, isText } of fields) {
    try {
      value[name] = isText ? text : JSON.parse(text);
    } catch {
      return { problem: t('check.fieldJson', { label }) };
    }
  }
  return { value };
}
