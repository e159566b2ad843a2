/** Violations of a JSON Schema, in words. Unsupported keywords are ignored: the server checks them. */

import { patternProblem } from './pattern_words.mjs';
import { known, t } from './strings.mjs';

/** Resolve local references, a nullable `anyOf` and a single `allOf`. @param {Schema} schema @param {Schema} root @returns {Schema} */
export function resolve(schema, root) {
  let node = schema ?? {};
  for (let hops = 0; hops < 20; hops += 1) {
    const variant = (node.anyOf ?? node.oneOf)?.filter((option) => option.type !== 'null');
    if (node.$ref?.startsWith('#/')) node = { ...without(node, '$ref'), ...lookUp(node.$ref, root) };
    else if (node.allOf?.length === 1) node = { ...without(node, 'allOf'), ...node.allOf[0] };
    else if (variant?.length === 1)
      node = { ...without(node, 'anyOf', 'oneOf'), ...variant[0], nullable: true };
    else return Array.isArray(node.type) ? singleType(node) : node;
  }
  return node;
}

/** @param {Schema} node @param {(keyof Schema)[]} keys @returns {Schema} */
function without(node, ...keys) {
  return Object.fromEntries(Object.entries(node).filter(([key]) => !keys.some((one) => one === key)));
}

function lookUp(/** @type {string} */ reference, /** @type {Schema} */ root) {
  const keys = reference
    .slice(2)
    .split('/')
    .map((key) => key.replaceAll('~1', '/').replaceAll('~0', '~'));
  return keys.reduce((/** @type {any} */ node, key) => node?.[key], root) ?? {};
}

/** @param {Schema} node @returns {Schema} */
function singleType(node) {
  const all = [node.type ?? []].flat();
  const types = all.filter((type) => type !== 'null');
  return types.length === 1
    ? { ...node, type: types[0], nullable: types.length < all.length }
    : without(node, 'type');
}

/** The values that a schema lists; none if it lists no values. @param {Schema} node */
export function choicesOf(node) {
  if (node.enum) return node.enum;
  return 'const' in node ? [node.const] : [];
}

/**
 * The first violation of a schema as a sentence, or null. Unsupported keywords are ignored.
 *
 * @param {unknown} value
 * @param {Schema} schema
 */
export function firstViolation(value, schema) {
  const [first] = violations(value, schema, schema, '');
  return first ? sentence(first) : null;
}

/**
 * @param {unknown} value
 * @param {Schema} schema
 * @param {Schema} root
 * @param {string} path
 * @returns {{path: string, problem: string}[]}
 */
function violations(value, schema, root, path) {
  const node = resolve(schema, root);
  if (value === null)
    return node.nullable || node.type === 'null' || !node.type ? [] : [{ path, problem: t('check.notNull') }];
  const wrong = typeProblem(value, node) ?? choiceProblem(value, node) ?? rangeProblem(value, node);
  if (wrong) return [{ path, problem: wrong }];
  if (Array.isArray(value) && node.items) {
    const of = node.items;
    return value.flatMap((item, index) => violations(item, of, root, `${path}[${index}]`));
  }
  return isObject(value) ? objectViolations(value, node, root, path) : [];
}

function sentence(/** @type {{path: string, problem: string}} */ { path, problem }) {
  const text = path ? `${path} ${problem}` : problem;
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

/** @param {Json} value @param {Schema} node @param {Schema} root @param {string} path */
function objectViolations(value, node, root, path) {
  const at = (/** @type {string} */ key) => (path ? `${path}.${key}` : key);
  const missing = (node.required ?? [])
    .filter((key) => !(key in value))
    .map((key) => ({ path: at(key), problem: t('check.missing') }));
  const properties = node.properties ?? {};
  const extra =
    node.additionalProperties === false ? Object.keys(value).filter((key) => !(key in properties)) : [];
  return [
    ...missing,
    ...extra.map((key) => ({ path: at(key), problem: t('check.unknown') })),
    ...Object.keys(properties)
      .filter((key) => key in value)
      .flatMap((key) => violations(value[key], properties[key], root, at(key))),
  ];
}

/** @param {unknown} value @returns {value is Json} */
function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function typeProblem(/** @type {unknown} */ value, /** @type {Schema} */ node) {
  const type = String(node.type);
  /** @type {Record<string, boolean>} */
  const fits = {
    string: typeof value === 'string',
    number: typeof value === 'number',
    integer: Number.isInteger(value),
    boolean: typeof value === 'boolean',
    array: Array.isArray(value),
    object: isObject(value),
  };
  return fits[type] === false ? known(`check.type.${type}`, type) : null;
}

function choiceProblem(/** @type {unknown} */ value, /** @type {Schema} */ node) {
  const choices = choicesOf(node);
  return choices.length && !choices.includes(value)
    ? t('check.choice', { choices: choices.map((c) => JSON.stringify(c)).join(', ') })
    : null;
}

function rangeProblem(/** @type {unknown} */ value, /** @type {Schema} */ node) {
  if (typeof value === 'number') return numberProblem(value, node);
  if (typeof value === 'string') return stringProblem(value, node);
  if (!Array.isArray(value)) return null;
  if (node.minItems !== undefined && value.length < node.minItems)
    return t('check.minItems', { count: node.minItems });
  if (node.maxItems !== undefined && value.length > node.maxItems)
    return t('check.maxItems', { count: node.maxItems });
  return null;
}

function numberProblem(/** @type {number} */ value, /** @type {Schema} */ node) {
  if (node.minimum !== undefined && value < node.minimum) return t('check.minimum', { limit: node.minimum });
  if (node.maximum !== undefined && value > node.maximum) return t('check.maximum', { limit: node.maximum });
  if (node.exclusiveMinimum !== undefined && value <= node.exclusiveMinimum)
    return t('check.above', { limit: node.exclusiveMinimum });
  if (node.exclusiveMaximum !== undefined && value >= node.exclusiveMaximum)
    return t('check.below', { limit: node.exclusiveMaximum });
  return null;
}

function stringProblem(/** @type {string} */ value, /** @type {Schema} */ node) {
  if (node.minLength !== undefined && value.length < node.minLength)
    return t('check.minLength', { count: node.minLength });
  if (node.maxLength !== undefined && value.length > node.maxLength)
    return t('check.maxLength', { count: node.maxLength });
  if (node.pattern !== undefined && !matches(node.pattern, value))
    return patternProblem({ ...node, pattern: node.pattern });
  return null;
}

function matches(/** @type {string} */ pattern, /** @type {string} */ value) {
  try {
    return new RegExp(pattern, 'u').test(value);
  } catch {
    return true; // A pattern that JavaScript cannot compile: the server checks it.
  }
}
