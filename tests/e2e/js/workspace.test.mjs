/** Files in folders, what changed in them, and the commands that ran. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  changesOf,
  commandsOf,
  treeOf,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/workspace.mjs';

test('files are in their folders, and both are sorted', () => {
  const tree = treeOf(['src/b/c.py', 'z.md', 'src/a.py', 'a.md'].map((path) => ({ path })));
  assert.deepEqual(
    tree.files.map((file) => file.path),
    ['a.md', 'z.md'],
  );
  const [src] = tree.folders;
  assert.deepEqual(
    [src.name, src.files[0].path, src.folders[0].path, src.folders[0].files[0].path],
    ['src', 'src/a.py', 'src/b', 'src/b/c.py'],
  );
});

const changed = (path, change) => ({ kind: 'changed', paths: [{ path, change }] });
const approval = (path, old) => ({ kind: 'approval', items: [{ preview: { path, old } }] });

test('the changes of a conversation are those that remain at its end', () => {
  const entries = [
    changed('new', 'created'),
    changed('new', 'modified'),
    changed('gone', 'created'),
    changed('gone', 'deleted'),
    approval('old', 'first'),
    changed('old', 'modified'),
    approval('old', 'second'),
    changed('other', 'modified'),
    changed('other', 'deleted'),
  ];
  assert.deepEqual(
    changesOf({
      runs: [
        { id: 'r1', entries: entries.slice(0, 7) },
        { id: 'r2', entries: entries.slice(7) },
      ],
    }),
    [
      { path: 'new', change: 'created', since: 'r1', before: null },
      { path: 'old', change: 'modified', since: 'r1', before: 'first' },
      { path: 'other', change: 'deleted', since: 'r2', before: undefined },
    ],
  );
});

test('commands have the output so far, or the streams of their result', () => {
  const call = (id, more) => ({ kind: 'call', id, name: 'bash', output: '', result: null, ...more });
  const entries = [
    call('1', { result: { content: { stdout: 'out', stderr: 'warning' } } }),
    call('2', { output: 'half' }),
    { kind: 'call', id: '3', name: 'read_file' },
  ];
  assert.deepEqual(
    commandsOf({ runs: [{ entries }] }).map((one) => one.output),
    ['out\nwarning', 'half'],
  );
});
