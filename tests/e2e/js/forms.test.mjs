import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  argumentFields,
  fieldsOf,
  initialValues,
  readArguments,
  readForm,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/forms.mjs';
import {
  patternWords,
  withoutPattern,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/pattern_words.mjs';
import { firstViolation } from '../../../services/gateway/banksman/gateway/interfaces/page/static/schema_checks.mjs';

const SCHEMA = {
  type: 'object',
  required: ['name', 'language'],
  $defs: { Language: { enum: ['python', 'go'], title: 'Language' } },
  properties: {
    name: { type: 'string', minLength: 2, pattern: '^[a-z]+$' },
    language: { $ref: '#/$defs/Language', default: 'go' },
    license: { anyOf: [{ type: 'string' }, { type: 'null' }], default: null },
    max_files: { type: 'integer', minimum: 1, maximum: 50, default: 10 },
    ratio: { type: 'number' },
    tests: { type: 'boolean', default: true },
    features: { type: 'array', items: { type: 'string' }, minItems: 1 },
    targets: { type: 'array', items: { $ref: '#/$defs/Language' }, default: ['go'], maxItems: 1 },
    source: { type: 'string', 'x-hint': 'file' },
    day: { type: 'string', format: 'date' },
    extra: { type: 'object' },
  },
};
const fields = fieldsOf(SCHEMA);
const filled = (over) => readForm(fields, { ...initialValues(fields), name: 'demo', ...over });

test('each property becomes the control for its schema', () => {
  const kinds = Object.fromEntries(fields.map((field) => [field.name, field.kind]));
  assert.deepEqual(kinds, {
    name: 'string',
    language: 'choice',
    license: 'string',
    max_files: 'integer',
    ratio: 'number',
    tests: 'boolean',
    features: 'strings',
    targets: 'several',
    source: 'file',
    day: 'date',
    extra: 'json',
  });
  assert.equal(fields.find((field) => field.name === 'max_files').label, 'Max files');
});

test('defaults fill the form, and an unchanged form returns them', () => {
  assert.deepEqual(filled({}), {
    value: { name: 'demo', language: 'go', max_files: 10, tests: true, targets: ['go'] },
    errors: {},
  });
});

test('a required field that is empty is named', () => {
  assert.equal(filled({ name: '  ' }).errors.name, 'Name is required.');
});

test('an empty optional field is omitted', () => {
  assert.equal('max_files' in filled({ max_files: '' }).value, false);
});

test('text is converted to the type of the schema', () => {
  const { value, errors } = filled({ ratio: '2,5', features: 'a\n\n b ', extra: '{"k": [1]}', tests: false });
  assert.deepEqual(errors, {});
  assert.deepEqual(
    [value.ratio, value.features, value.extra, value.tests],
    [2.5, ['a', 'b'], { k: [1] }, false],
  );
});

test('several choices become a list of their values', () => {
  assert.deepEqual(fields.find((field) => field.name === 'targets').choices, ['python', 'go']);
  assert.deepEqual(filled({ targets: ['0'] }).value.targets, ['python']);
  assert.equal('targets' in filled({ targets: [] }).value, false);
});

test('a violation names the rule', () => {
  assert.equal(filled({ targets: ['0', '1'] }).errors.targets, 'Must have at most 1 entry.');
  assert.equal(filled({ max_files: '51' }).errors.max_files, 'Must be at most 50.');
  assert.equal(filled({ max_files: '2.5' }).errors.max_files, 'Enter a whole number.');
  assert.equal(filled({ ratio: 'many' }).errors.ratio, 'Enter a number.');
  assert.equal(filled({ name: 'x' }).errors.name, 'Must have at least 2 characters.');
  assert.equal(filled({ name: 'UP' }).errors.name, 'Must be one or more of: lower-case letters.');
  assert.match(filled({ extra: '{' }).errors.extra, /^Not valid JSON/);
});

test('edited arguments are checked against the schema, nested fields by path', () => {
  const schema = {
    type: 'object',
    required: ['command'],
    additionalProperties: false,
    properties: {
      command: { type: 'string' },
      env: { type: 'array', items: { type: 'object', properties: { name: { type: 'string' } } } },
    },
  };
  assert.equal(firstViolation({ command: 'ls' }, schema), null);
  assert.equal(firstViolation({}, schema), 'Command is missing.');
  assert.equal(firstViolation({ command: 5 }, schema), 'Command must be text.');
  assert.equal(firstViolation({ command: 'ls', cwd: '/' }, schema), 'Cwd is not a known field.');
  assert.equal(firstViolation({ command: 'ls', env: [{ name: 1 }] }, schema), 'Env[0].name must be text.');
});

test('the rule of a pattern is stated in words, never as a regular expression', () => {
  assert.equal(
    patternWords('^[a-z][a-z0-9-]{0,39}$'),
    'one of: lower-case letters, then up to 39 of: lower-case letters, digits, “-”',
  );
  assert.equal(patternWords('^v\\d+$'), '“v”, then one or more of: digits');
  assert.equal(patternWords('^(a|b)+$'), null);
  assert.equal(filled({ name: 'My Name' }).errors.name, 'Must be one or more of: lower-case letters.');
  assert.equal(
    firstViolation('x', { type: 'string', pattern: '^(?:ab)+$', examples: ['abab'] }),
    'Does not have the required form, such as abab.',
  );
  assert.equal(
    withoutPattern("name must match pattern '^[a-z]{1,3}$', got 'A B'"),
    "name does not have the required form, got 'A B'",
  );
});

test('text arguments are edited as they are, other ones as JSON', () => {
  const values = { path: 'a.md', content: 'one "two"\nthree', times: 3 };
  const form = argumentFields(values);
  assert.deepEqual(
    form.map(({ label, text }) => [label, text]),
    [
      ['Path', 'a.md'],
      ['Content', 'one "two"\nthree'],
      ['Times', '3'],
    ],
  );
  assert.deepEqual(readArguments(form), { value: values });
  const wrong = form.map((field) => (field.name === 'times' ? { ...field, text: '{' } : field));
  assert.match(readArguments(wrong).problem, /^Times is not valid JSON/);
});
