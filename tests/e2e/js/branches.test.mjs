/** The paths through a conversation with versions of messages. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  START,
  before,
  endOf,
  isNewest,
  pathOf,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/branches.mjs';

const run = (id, after) => ({
  id,
  prompt: { id: `u-${id}`, text: id },
  branch: after === undefined ? null : { after },
  entries: [{ kind: 'message', id: `a-${id}`, complete: true, text: 'Reply' }],
});
const ids = (path) => path.map((place) => place.run.id);

const edited = { runs: [run('1'), run('2'), run('3'), run('2b', 'a-1'), run('4')] };

test('without a branch every run is shown', () => {
  const path = pathOf({ runs: [run('1'), run('2')] });
  assert.deepEqual(ids(path), ['1', '2']);
  assert.equal(endOf(path), 'a-2');
});

test('an edited message replaces its first version, and is shown with its own continuation', () => {
  const path = pathOf(edited);
  assert.deepEqual(ids(path), ['1', '2b', '4']);
  assert.deepEqual([path[1].at, path[1].versions], [2, ['2', '2b']]);
  assert.ok(isNewest(edited, path));
});

test('a chosen version is shown with its own continuation', () => {
  const path = pathOf(edited, { 1: '2' });
  assert.deepEqual(ids(path), ['1', '2', '3']);
  assert.ok(!isNewest(edited, path));
  assert.deepEqual([endOf(path), before(path, '2'), before(path, '1')], ['a-3', 'a-1', null]);
  assert.equal(before(pathOf(edited), '2b'), 'a-1');
});

test('the first message has versions too', () => {
  const conversation = { runs: [run('1'), run('2'), run('1b', null)] };
  assert.deepEqual(ids(pathOf(conversation)), ['1b']);
  assert.deepEqual(ids(pathOf(conversation, { [START]: '1' })), ['1', '2']);
});

test('a branch after a message that is not known follows the run before it', () => {
  assert.deepEqual(ids(pathOf({ runs: [run('1'), run('2', 'summary')] })), ['1', '2']);
});

test('text that was not stored is not followed', () => {
  const cut = run('1');
  cut.entries[0].unstored = true;
  assert.equal(endOf(pathOf({ runs: [cut] })), 'u-1');
});

test('while earlier runs are read, the path begins where it is certain', () => {
  const earlier = true;
  const runs = [run('8'), run('9'), run('3b', 'a-2'), run('10')];
  assert.deepEqual(ids(pathOf({ runs, earlier })), ['3b', '10']);
  assert.deepEqual(ids(pathOf({ runs: runs.slice(0, 2), earlier })), ['8', '9']);
  const known = [run('8'), run('9'), run('9b', 'a-8'), run('3b', 'a-2'), run('10', 'a-9b')];
  assert.deepEqual(ids(pathOf({ runs: known, earlier })), ['8', '9b', '10']);
});
