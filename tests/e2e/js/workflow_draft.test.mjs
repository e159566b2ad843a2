/** Workflows without code as they are built. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { EMPTY, bodyOf, draftOf, moved, nameOf, referencesAt, withDefaults, withStep } from '../../../services/gateway/banksman/gateway/page/static/workflow_draft.mjs';

test('a stored workflow that is not changed is sent as it was, with what the form does not know', () => {
  const properties = {
    version: { type: 'string', title: 'Version', pattern: '^v', 'x-positional': 1 },
    notes: { type: 'string', 'x-hint': 'multiline' },
    level: { type: 'string', enum: ['low', 'high'] },
    day: { type: 'string', 'x-hint': 'date' },
  };
  const stored = {
    name: 'announce', title: 'Announce', description: 'd', category: 'release', timeout_s: 60, revision: 7,
    parameters_schema: { type: 'object', properties, required: ['version'], additionalProperties: false },
    built: { steps: [{ type: 'prompt', name: 'text', prompt: 'x', max_iterations: 3 }], result: 'Done' },
  };
  const { name, ...body } = stored;
  assert.deepEqual(bodyOf(draftOf(stored)), body);
});

test('a new one has named fields and steps that refer to them', () => {
  const fields = [{ name: nameOf('Größe (t)'), label: 'Größe (t)', kind: 'number', choices: [], required: true }, { name: 'tone', label: '', kind: 'choice', choices: ['calm'], required: false }];
  const draft = { ...EMPTY, title: 'Lift', fields, steps: withStep(withStep([], 'prompt'), 'prompt') };
  const body = bodyOf(draft);
  assert.deepEqual(body.parameters_schema, { type: 'object', properties: { gro_e_t: { type: 'number', title: 'Größe (t)' }, tone: { type: 'string', enum: ['calm'] } }, required: ['gro_e_t'] });
  assert.deepEqual(body.built.steps.map((step) => step.name), ['prompt1', 'prompt2']);
  assert.deepEqual(referencesAt(draft, 1), ['{{parameters.gro_e_t}}', '{{parameters.tone}}', '{{steps.prompt1}}']);
  assert.equal('revision' in body, false);
});

test('entries move within the list, and a form begins with given values', () => {
  assert.deepEqual(moved(['a', 'b'], 1, -1), ['b', 'a']);
  assert.deepEqual(moved(['a', 'b'], 0, -1), ['a', 'b']);
  assert.deepEqual(withDefaults({ properties: { a: { type: 'string' }, b: {} } }, { a: 'x', c: 1 }).properties, { a: { type: 'string', default: 'x' }, b: {} });
});
