/** Forms from JSON Schema: their fields, initial values, and the value of a filled form. */

import { t } from './strings.mjs';

/** Resolve local references, a nullable `anyOf` and a single `allOf`. */
export function resolve(schema, root) {
  let node = schema ?? {};
  for (let hops = 0; hops < 20; hops += 1) {
    const variant = (node.anyOf ?? node.oneOf)?.filter((option) => option.type !== 'null');
    if (node.$ref?.startsWith('#/')) node = { ...without(node, '$ref'), ...lookUp(node.$ref, root) };
    else if (node.allOf?.length === 1) node = { ...without(node, 'allOf'), ...node.allOf[0] };
    else if (variant?.length === 1) node = { ...without(node, 'anyOf', 'oneOf'), ...variant[0], nullable: true };
    else return Array.isArray(node.type) ? singleType(node) : node;
  }
  return node;
}

function without(node, ...keys) {
  return Object.fromEntries(Object.entries(node).filter(([key]) => !keys.includes(key)));
}

function lookUp(reference, root) {
  const keys = reference.slice(2).split('/').map((key) => key.replaceAll('~1', '/').replaceAll('~0', '~'));
  return keys.reduce((node, key) => node?.[key], root) ?? {};
}

function singleType(node) {
  const types = node.type.filter((type) => type !== 'null');
  return types.length === 1 ? { ...node, type: types[0], nullable: types.length < node.type.length } : without(node, 'type');
}

/**
 * @typedef {object} FormField
 * @property {string} name
 * @property {string} label
 * @property {string} description
 * @property {'string' | 'text' | 'number' | 'integer' | 'boolean' | 'choice' | 'strings' | 'json' | 'secret' | 'date'} kind
 * @property {boolean} required
 * @property {unknown[]} choices values of a `choice`
 * @property {object} schema the resolved schema
 */

/** @returns {FormField[]} the fields of an object schema, in its order */
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
      choices: choicesOf(node),
      schema: node,
    };
  });
}

/** A name of a field as a label. @param {string} name */
export function humanise(name) {
  const words = name.replaceAll(/[_-]+/g, ' ').trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function choicesOf(node) {
  if (node.enum) return node.enum;
  return 'const' in node ? [node.const] : [];
}

function kindOf(node, root) {
  if (choicesOf(node).length) return 'choice';
  switch (node.type) {
    case 'integer':
    case 'number':
    case 'boolean':
      return node.type;
    case 'array':
      return resolve(node.items, root).type === 'string' ? 'strings' : 'json';
    case 'string':
      if (node['x-hint'] === 'secret' || node['x-hint'] === 'date') return node['x-hint'];
      return node['x-hint'] === 'multiline' || node.format === 'textarea' || (node.maxLength ?? 0) > 400 ? 'text' : 'string';
    default:
      return 'json';
  }
}

/** The initial raw values of a form: text for most fields, a boolean for a checkbox. */
export function initialValues(fields) {
  return Object.fromEntries(fields.map((field) => [field.name, initialValue(field)]));
}

function initialValue(field) {
  const value = field.schema.default;
  switch (field.kind) {
    case 'boolean':
      return value === true;
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
 * @param {Record<string, string | boolean>} raw
 * @returns {{value: object, errors: Record<string, string>}} empty optional fields are omitted
 */
export function readForm(fields, raw) {
  const value = {};
  const errors = {};
  for (const field of fields) {
    try {
      const read = readField(field, raw[field.name]);
      if (read !== undefined) value[field.name] = read;
      else if (field.required) errors[field.name] = t('check.required', { label: field.label });
    } catch (error) {
      errors[field.name] = error.message;
    }
  }
  return { value, errors };
}

function readField(field, raw) {
  if (field.kind === 'boolean') return raw === true;
  const text = String(raw ?? '');
  if (text.trim() === '') return undefined;
  switch (field.kind) {
    case 'integer':
    case 'number':
      return checked(field, numberFrom(field, text.trim()));
    case 'choice':
      return field.choices[Number(text)];
    case 'strings':
      return checked(field, text.split('\n').map((line) => line.trim()).filter(Boolean));
    case 'json':
      return checked(field, jsonFrom(text));
    default:
      return checked(field, text);
  }
}

function numberFrom(field, text) {
  const value = Number(text.replace(',', '.'));
  if (!Number.isFinite(value)) throw new Error(t('check.number'));
  if (field.kind === 'integer' && !Number.isInteger(value)) throw new Error(t('check.integer'));
  return value;
}

function jsonFrom(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(t('check.json', { reason: error.message }));
  }
}

function checked(field, value) {
  const [first] = violations(value, field.schema, field.schema, '');
  if (first) throw new Error(sentence(first));
  return value;
}

function sentence({ path, problem }) {
  const text = path ? `${path} ${problem}` : problem;
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

/** The first violation of a schema as a sentence, or null. Unsupported keywords are ignored. */
export function firstViolation(value, schema) {
  const [first] = violations(value, schema, schema, '');
  return first ? sentence(first) : null;
}

/** @returns {{path: string, problem: string}[]} */
function violations(value, schema, root, path) {
  const node = resolve(schema, root);
  if (value === null) return node.nullable || node.type === 'null' || !node.type ? [] : [{ path, problem: t('check.notNull') }];
  const wrong = typeProblem(value, node) ?? choiceProblem(value, node) ?? rangeProblem(value, node);
  if (wrong) return [{ path, problem: wrong }];
  if (Array.isArray(value) && node.items) {
    return value.flatMap((item, index) => violations(item, node.items, root, `${path}[${index}]`));
  }
  return isObject(value) ? objectViolations(value, node, root, path) : [];
}

function objectViolations(value, node, root, path) {
  const at = (key) => (path ? `${path}.${key}` : key);
  const missing = (node.required ?? []).filter((key) => !(key in value)).map((key) => ({ path: at(key), problem: t('check.missing') }));
  const known = node.properties ?? {};
  const extra = node.additionalProperties === false ? Object.keys(value).filter((key) => !(key in known)) : [];
  return [
    ...missing,
    ...extra.map((key) => ({ path: at(key), problem: t('check.unknown') })),
    ...Object.keys(known).filter((key) => key in value).flatMap((key) => violations(value[key], known[key], root, at(key))),
  ];
}

function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function typeProblem(value, node) {
  const fits = {
    string: typeof value === 'string',
    number: typeof value === 'number',
    integer: Number.isInteger(value),
    boolean: typeof value === 'boolean',
    array: Array.isArray(value),
    object: isObject(value),
  }[node.type];
  return fits === false ? t(`check.type.${node.type}`) : null;
}

function choiceProblem(value, node) {
  const choices = choicesOf(node);
  return choices.length && !choices.includes(value) ? t('check.choice', { choices: choices.map((c) => JSON.stringify(c)).join(', ') }) : null;
}

function rangeProblem(value, node) {
  if (typeof value === 'number') return numberProblem(value, node);
  if (typeof value === 'string') return stringProblem(value, node);
  if (!Array.isArray(value)) return null;
  if (node.minItems !== undefined && value.length < node.minItems) return t('check.minItems', { count: node.minItems });
  if (node.maxItems !== undefined && value.length > node.maxItems) return t('check.maxItems', { count: node.maxItems });
  return null;
}

function numberProblem(value, node) {
  if (node.minimum !== undefined && value < node.minimum) return t('check.minimum', { limit: node.minimum });
  if (node.maximum !== undefined && value > node.maximum) return t('check.maximum', { limit: node.maximum });
  if (node.exclusiveMinimum !== undefined && value <= node.exclusiveMinimum) return t('check.above', { limit: node.exclusiveMinimum });
  if (node.exclusiveMaximum !== undefined && value >= node.exclusiveMaximum) return t('check.below', { limit: node.exclusiveMaximum });
  return null;
}

function stringProblem(value, node) {
  if (node.minLength !== undefined && value.length < node.minLength) return t('check.minLength', { count: node.minLength });
  if (node.maxLength !== undefined && value.length > node.maxLength) return t('check.maxLength', { count: node.maxLength });
  if (node.pattern !== undefined && !matches(node.pattern, value)) return patternProblem(node);
  return null;
}

function matches(pattern, value) {
  try {
    return new RegExp(pattern, 'u').test(value);
  } catch {
    return true; // A pattern that JavaScript cannot compile: the server checks it.
  }
}

const CLASS_WORDS = [
  ['a-zA-Z', 'pattern.letters'],
  ['A-Za-z', 'pattern.letters'],
  ['a-z', 'pattern.lower'],
  ['A-Z', 'pattern.upper'],
  ['0-9', 'pattern.digits'],
];
const PIECE = /(?:\[([^\]^\\][^\]\\]*)\]|(\\d)|([\w -]))(\{\d+(?:,\d*)?\}|[+*?])?/y;

/** What a pattern requires, in words: a regular expression is no text for users. */
function patternProblem({ pattern, examples }) {
  const words = patternWords(pattern);
  if (words) return t('check.pattern', { pattern: words });
  return Array.isArray(examples) && examples.length ? t('check.formExample', { example: String(examples[0]) }) : t('check.form');
}

/** A simple pattern in words, or null: a sequence of at most three characters or classes, such as `^[a-z]{2,4}$`. */
export function patternWords(pattern) {
  const body = /^\^(.*)\$$/s.exec(pattern)?.[1];
  if (!body) return null;
  const words = [];
  PIECE.lastIndex = 0;
  while (PIECE.lastIndex < body.length) {
    const piece = PIECE.exec(body);
    if (!piece || words.length === 3) return null;
    words.push(pieceWords(piece));
  }
  return words.join(t('pattern.then'));
}

function pieceWords([, set, digit, character, quantifier = '']) {
  if (character && !quantifier) return quoted(character);
  const what = digit ? t('pattern.digits') : character ? quoted(character) : classWords(set);
  const [, least, comma, most] = /^\{(\d+)(,?)(\d*)\}$/.exec(quantifier) ?? [];
  if (quantifier === '') return t('pattern.one', { what });
  if (quantifier === '?') return t('pattern.optional', { what });
  if (quantifier === '+') return t('pattern.some', { what });
  if (quantifier === '*') return t('pattern.any', { what });
  if (!comma) return t('pattern.exactly', { least, what });
  if (!most) return t('pattern.atLeast', { least, what });
  return least === '0' ? t('pattern.upTo', { most, what }) : t('pattern.between', { least, most, what });
}

const quoted = (text) => t('pattern.quoted', { text });

function classWords(set) {
  const words = [];
  let rest = set;
  for (const [range, word] of CLASS_WORDS) {
    if (rest.includes(range)) {
      words.push(t(word));
      rest = rest.replace(range, '');
    }
  }
  return [...words, ...[...rest].map((character) => (character === ' ' ? t('pattern.spaces') : quoted(character)))].join(', ');
}

/** An error of the server without the pattern that it names. */
export function withoutPattern(message) {
  return message.replaceAll(/must match pattern '(?:[^'\\]|\\.)*'/g, t('check.form'));
}

/**
 * The form of a call's arguments: text is edited as it is, other values as JSON.
 *
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
 * @returns {{value: object} | {problem: string}}
 */
export function readArguments(fields) {
  const value = {};
  for (const { name, label, text, isText } of fields) {
    try {
      value[name] = isText ? text : JSON.parse(text);
    } catch (error) {
      return { problem: t('check.fieldJson', { label, reason: error.message }) };
    }
  }
  return { value };
}
