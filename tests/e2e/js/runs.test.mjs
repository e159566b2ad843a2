/** The totals of a run's steps. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  mostExpensive,
  ordered,
  placeOf,
  repetitionOf,
  totalsOf,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/runs.mjs';

const at = (second) => new Date(Date.UTC(2026, 0, 1, 10, 0, second)).toISOString();
const model = (id, cost, from, to) => ({
  step_id: id,
  kind: 'model',
  began_at: at(from),
  ended_at: at(to),
  duration_ms: (to - from) * 1000,
  usage: { input_tokens: 10, output_tokens: 2, cost_usd: cost },
});
const call = { step_id: 'k', kind: 'tool', began_at: at(2), ended_at: at(8), duration_ms: 1000, usage: null };
const approval = {
  step_id: 'p',
  kind: 'approval',
  began_at: at(2),
  ended_at: at(7),
  duration_ms: 5000,
  usage: null,
};
const steps = [model('a', 0.01, 0, 2), call, approval, model('b', 0.03, 8, 10)];
const run = { status: 'completed', model: 'x:y', started_at: at(0), finished_at: at(10) };

test('the totals are sums over the steps', () => {
  const totals = totalsOf(run, steps);
  assert.deepEqual([totals.tokensIn, totals.tokensOut, totals.requests, totals.calls], [20, 4, 2, 1]);
  assert.deepEqual([totals.duration, totals.waited, totals.cost], [10_000, 5000, 0.04]);
});

test('an unknown price is not a cost of zero', () => {
  assert.equal(totalsOf(run, [model('a', null, 0, 2)]).cost, null);
});

test('the step that cost most is named with its share', () => {
  const most = mostExpensive(steps, 0.04);
  assert.deepEqual([most.step.step_id, most.number, most.share], ['b', 2, 0.75]);
  assert.equal(mostExpensive([steps[0]], 0.01), null);
});

test('steps are ordered by their beginning, where a call follows its approval, by cost and by duration', () => {
  assert.deepEqual(
    ordered(steps, 'time').map((step) => step.step_id),
    ['a', 'p', 'k', 'b'],
  );
  assert.deepEqual(
    ordered(steps, 'cost').map((step) => step.step_id),
    ['b', 'a', 'k', 'p'],
  );
  assert.equal(ordered(steps, 'duration')[0].step_id, 'p');
});

test('the bar of a call shows its execution and not its wait for approval', () => {
  assert.deepEqual(placeOf(call, steps), { start: 0.7, width: 0.1 });
  assert.deepEqual(placeOf(approval, steps), { start: 0.2, width: 0.5 });
});

test('a run is repeated after the message before its own', () => {
  const messages = [
    { role: 'user', message_id: 'u0', content: 'Hello' },
    { role: 'assistant', message_id: 'a0' },
    { role: 'tool', result: {} },
    { role: 'user', message_id: 'u1', content: 'Again' },
  ];
  assert.deepEqual(repetitionOf({ messages }, 'u1'), { content: 'Again', branch: { after: 'a0' } });
  assert.deepEqual(repetitionOf({ messages }, 'u0').branch, { after: null });
});
