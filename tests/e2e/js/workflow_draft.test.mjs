/** Workflows without code while a user builds them. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  EMPTY,
  bodyOf,
  draftOf,
  moved,
  nameOf,
  referencesAt,
  withDefaults,
  withStep,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/workflow_draft.mjs';

test('an unchanged stored workflow is sent as it was, with the fields that the form does not know', () => {
  const properties = {
    version: { type: 'string', title: 'Version', pattern: '^v', 'x-positional': 1 },
    notes: { type: 'string', 'x-hint': 'multiline' },
    level: { type: 'string', enum: ['low', 'high'] },
    targets: { type: 'array', items: { type: 'string', enum: ['web'], title: 'Target' }, minItems: 1 },
    day: { type: 'string', 'x-hint': 'date' },
    due: { type: 'string', format: 'date' },
    about: { type: 'string', format: 'textarea' },
    key: { type: 'string', 'x-hint': 'secret' },
    tags: { type: 'array', items: { type: 'string' } },
  };
  const stored = {
    name: 'announce',
    title: 'Announce',
    description: 'd',
    category: 'release',
    timeout_s: 60,
    revision: 7,
    parameters_schema: { type: 'object', properties, required: ['version'], additionalProperties: false },
    built: { steps: [{ type: 'prompt', name: 'text', prompt: 'x', max_iterations: 3 }], result: 'Done' },
  };
  const { name, ...body } = stored;
  assert.deepEqual(
    draftOf(stored).fields.map(({ kind }) => kind),
    ['text', 'long', 'choice', 'several', 'date', 'date', 'long', 'other', 'other'],
  );
  assert.deepEqual(bodyOf(draftOf(stored)), body);
});

test('a new workflow has named fields and steps that refer to them', () => {
  const fields = [
    { name: nameOf('Größe (t)'), label: 'Größe (t)', kind: 'number', choices: [], required: true },
    { name: 'tone', label: '', kind: 'choice', choices: ['calm'], required: false },
    { name: 'targets', label: '', kind: 'several', choices: ['web'], required: false },
    { name: 'source', label: '', kind: 'file', choices: [], required: true },
  ];
  const draft = { ...EMPTY, title: 'Lift', fields, steps: withStep(withStep([], 'prompt'), 'prompt') };
  const body = bodyOf(draft);
  assert.deepEqual(body.parameters_schema, {
    type: 'object',
    properties: {
      gro_e_t: { type: 'number', title: 'Größe (t)' },
      tone: { type: 'string', enum: ['calm'] },
      targets: { type: 'array', items: { type: 'string', enum: ['web'] } },
      source: { type: 'string', 'x-hint': 'file' },
    },
    required: ['gro_e_t', 'source'],
  });
  assert.deepEqual(
    body.built.steps.map((step) => step.name),
    ['prompt1', 'prompt2'],
  );
  assert.deepEqual(referencesAt(draft, 1), [
    '{{parameters.gro_e_t}}',
    '{{parameters.tone}}',
    '{{parameters.targets}}',
    '{{parameters.source}}',
    '{{steps.prompt1}}',
  ]);
  assert.equal('revision' in body, false);
});

test('entries move within the list, and a form begins with given values', () => {
  assert.deepEqual(moved(['a', 'b'], 1, -1), ['b', 'a']);
  assert.deepEqual(moved(['a', 'b'], 0, -1), ['a', 'b']);
  assert.deepEqual(
    withDefaults({ properties: { a: { type: 'string' }, b: {} } }, { a: 'x', c: 1 }).properties,
    { a: { type: 'string', default: 'x' }, b: {} },
  );
});
