import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  addressOf,
  routeOf,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/router.mjs';

const VIEWS = { runs: {}, approvals: {} };

test('an address names a conversation, a view with its path, or nothing', () => {
  assert.deepEqual(routeOf('#/c/abc-1', VIEWS), { view: 'chat', conversationId: 'abc-1', path: [] });
  assert.deepEqual(routeOf('#/runs/abc-r1/steps/2', VIEWS), {
    view: 'runs',
    conversationId: null,
    path: ['abc-r1', 'steps', '2'],
  });
  for (const hash of ['', '#/', '#/unknown', '#/constructor', '#/c/../x']) {
    assert.deepEqual(routeOf(hash, VIEWS), { view: 'chat', conversationId: null, path: [] });
  }
});

test('the segments of a path may hold any character', () => {
  const path = ['a/b', 'c d', 'ü?'];
  assert.deepEqual(routeOf(addressOf('runs', ...path), VIEWS).path, path);
  assert.deepEqual(routeOf('#/runs/%', VIEWS).path, ['%']);
});
