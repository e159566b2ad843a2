import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { test } from 'node:test';

import { ICONS } from '../../../services/gateway/banksman/gateway/interfaces/page/static/components/icons.mjs';

const STATIC = new URL('../../../services/gateway/banksman/gateway/interfaces/page/static/', import.meta.url);
const named = /(?:\bicon: |<\$\{Icon(?:Button)?\}\s+name=)['"]([\w-]+)['"]/g;

test('every icon that a component names exists', () => {
  const files = readdirSync(STATIC, { recursive: true }).filter((path) => /^(?!vendor).*\.mjs$/.test(path));
  const names = files.flatMap((path) => [...readFileSync(new URL(path, STATIC), 'utf8').matchAll(named)]);
  assert.ok(names.length > 80);
  assert.deepEqual(
    names.map(([, name]) => name).filter((name) => !(name in ICONS)),
    [],
  );
});

test('no two icons look the same', () => {
  assert.equal(new Set(Object.values(ICONS)).size, Object.keys(ICONS).length);
});
