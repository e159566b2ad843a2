import assert from 'node:assert/strict';
import { test } from 'node:test';

const root = new URL('../../../services/gateway/banksman/gateway/interfaces/page/static/', import.meta.url);
const { bodyOf, commandOf, controlOf, draftOf, wordsOf } = await import(new URL('mcp_servers.mjs', root));

const SERVER = {
  id: 'issues',
  transport: { type: 'http', url: 'https://issues.example.org/mcp', secrets: ['X-Team', 'X-Key'] },
  description: 'Issues',
  trusted: true,
  timeout_s: 20,
  revision: 4,
};

test('an unchanged form keeps every secret of the revision that was shown', () => {
  assert.deepEqual(bodyOf(draftOf(SERVER), SERVER), {
    transport: { type: 'http', url: SERVER.transport.url, headers: { 'X-Team': null, 'X-Key': null } },
    description: 'Issues',
    trusted: true,
    timeout_s: 20,
    revision: 4,
  });
});

test('a secret is replaced, removed or added, and none stays at another place or under another name', () => {
  const draft = draftOf(SERVER);
  const secrets = [
    { name: 'X-Key', value: 'new' },
    { name: 'X-Other', value: '' },
  ];
  assert.deepEqual(bodyOf({ ...draft, secrets }, SERVER).transport.headers, {
    'X-Key': 'new',
    'X-Other': '',
  });
  assert.deepEqual(bodyOf({ ...draft, url: 'https://other.example.org/' }, SERVER).transport.headers, {
    'X-Team': '',
    'X-Key': '',
  });
  assert.deepEqual(bodyOf({ ...draft, type: 'stdio', command: 'git' }, SERVER).transport, {
    type: 'stdio',
    command: ['git'],
    env: { 'X-Team': '', 'X-Key': '' },
  });
});

test('a command is shown so that its words stay the same', () => {
  const words = ['mcp-server', '--name', 'two words', '', `it's`, 'say "no"', `both ' and "`];
  assert.deepEqual(wordsOf(commandOf(words)), words);
  assert.equal(commandOf(words.slice(0, 3)), 'mcp-server --name "two words"');
});

test('an error belongs to the control of its field', () => {
  const fields = [
    'id',
    'transport.url',
    'transport.command.0',
    'transport.headers.X-Key',
    'transport.env',
    'timeout_s',
    'revision',
    null,
  ];
  assert.deepEqual(
    fields.map((field) => controlOf({ field })),
    ['id', 'url', 'command', 'secrets', 'secrets', 'timeoutS', null, null],
  );
});
