import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { test } from 'node:test';

import { Api } from '../../../services/gateway/banksman/gateway/interfaces/page/static/client/api.mjs';
import { ROUTES } from '../../../services/gateway/banksman/gateway/interfaces/page/static/client/routes.mjs';

/** An API whose requests the test records. */
function scene(...pages) {
  const sent = [];
  const fetch = async (url, { method, body, headers }) => {
    sent.push({
      at: `${method} ${url.href.slice('https://example.org'.length)}`,
      body,
      type: headers['content-type'],
    });
    return { ok: true, status: 200, json: async () => pages.shift() ?? { items: [] } };
  };
  return { api: new Api({ base: 'https://example.org/banksman/', token: () => null, fetch }), sent };
}

const event = (seq) => ({ type: 'message.completed', seq });

test('a path is relative to the gateway; its parameters are encoded, and segments of a file stay segments', async () => {
  const { api, sent } = scene();
  await api.call('step.read', { run_id: 'c1-r1', step_id: 'a/b?c' });
  await api.upload('c1', 'notes/a b#1.txt', 'text');
  await api.call('assistant.create', {}, { name: 'Cranes' });
  assert.deepEqual(sent, [
    { at: 'GET /banksman/context/runs/c1-r1/steps/a%2Fb%3Fc', body: undefined, type: undefined },
    {
      at: 'PUT /banksman/context/conversations/c1/files/notes/a%20b%231.txt',
      body: 'text',
      type: 'application/octet-stream',
    },
    { at: 'POST /banksman/context/assistants', body: '{"name":"Cranes"}', type: 'application/json' },
  ]);
});

test('other parameters form the query, without those that have no value', async () => {
  const { api, sent } = scene();
  await api.conversations({ query: 'a&b', pinned: true });
  await api.conversations();
  await api.calls('c1-r1');
  await api.call('operator.tenants', { after: undefined });
  assert.deepEqual(
    sent.map(({ at }) => at),
    [
      'GET /banksman/context/conversations?limit=50&pinned=true&q=a%26b',
      'GET /banksman/context/conversations?limit=50',
      'GET /banksman/context/runs/c1-r1/tool-calls?after=0&limit=50',
      'GET /banksman/operator/tenants',
    ],
  );
});

test('all pages of a list are read', async () => {
  const { api, sent } = scene({ items: [1, 2].map(event), next: 2 }, { items: [event(3)], next: null });
  assert.deepEqual(await api.events('c1', { whole: true }), [1, 2, 3].map(event));
  assert.deepEqual(
    sent.map(({ at }) => at.split('?')[1]),
    ['after_seq=0&whole=true', 'after_seq=2&whole=true'],
  );
});

test('events are read up to a number', async () => {
  const { api, sent } = scene(
    { items: [event(1)], next: 1000 },
    { items: [1001, 1002].map(event), next: 1002 },
  );
  assert.deepEqual(await api.events('c1', { through: 1001, detail: 'steps' }), [1, 1001].map(event));
  assert.deepEqual(
    sent.map(({ at }) => at.split('?')[1]),
    ['after_seq=0&detail=steps', 'after_seq=1000&limit=1&detail=steps'],
  );
});

test('every operation of the client and of the page has a route', () => {
  const root = new URL('../../../services/gateway/banksman/gateway/interfaces/page/static/', import.meta.url);
  const source = readdirSync(root, { recursive: true })
    .filter((path) => path.endsWith('.mjs') && !path.startsWith('vendor/'))
    .map((path) => readFileSync(new URL(path, root), 'utf8'))
    .join('\n');
  const used = [...source.matchAll(/(?:api|this)\s*\.(?:call|items|blob|#fetch|#url)\(\s*'([^']+)'/g)].map(
    ([, name]) => name,
  );
  assert.ok(used.length > 60);
  assert.deepEqual(
    used.filter((name) => !ROUTES[name]),
    [],
  );
});
