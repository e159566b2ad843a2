import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  CRON,
  choiceOf,
  describeCron,
  describeTimes,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/schedule_times.mjs';

const AT = { hour: 9, minute: 5, day: 3 };

test('each choice of the form is a cron expression that the page describes in words', () => {
  const described = Object.fromEntries(
    Object.entries(CRON).map(([name, write]) => [write(AT), describeCron(write(AT))]),
  );
  assert.deepEqual(described, {
    '5 * * * *': 'Every hour at minute 05',
    '5 9 * * *': 'Every day at 09:05',
    '5 9 * * 1-5': 'Monday to Friday at 09:05',
    '5 9 * * 3': 'Every Wednesday at 09:05',
    '5 9 1 * *': 'On the first day of each month at 09:05',
  });
});

test('another expression is shown as it is', () => {
  for (const cron of ['*/5 * * * *', '5 9 1 * 3', '5 * 1 * *', '5 9,10 * * *'])
    assert.equal(describeCron(cron), cron);
});

test('repeated times name their time zone, and a single time is in the time zone of the reader', () => {
  assert.equal(
    describeTimes({ at: null, cron: '0 9 * * *', timezone: 'Europe/Berlin' }),
    'Every day at 09:00 (Europe/Berlin)',
  );
  assert.match(describeTimes({ at: '2026-01-02T10:00:00Z', cron: null, timezone: 'UTC' }), /^Once, .*2026/);
});

test('an expression selects the choice of the form that stands for it', () => {
  assert.deepEqual(choiceOf('5 9 * * *'), { repeat: 'daily', time: '09:05' });
  assert.deepEqual(choiceOf('5 9 * * 3'), { repeat: 'weekly', time: '09:05', day: '3' });
  assert.deepEqual(choiceOf('5 9 1 * *'), { repeat: 'monthly', time: '09:05' });
  for (const cron of ['5 * * * *', '*/5 * * * *', '5 9 1 * 3']) assert.equal(choiceOf(cron), null);
});
