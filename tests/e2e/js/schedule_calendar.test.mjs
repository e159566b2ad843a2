import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  DAYS,
  calendarDays,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/schedule_calendar.mjs';

const NOW = new Date(2026, 2, 27, 12, 30);
/** In Europe clocks go forward within these days, which are one hour shorter together. */
const at = (day, hour) => new Date(2026, 2, 27 + day, hour).toISOString();
const entriesOf = (...coming) =>
  calendarDays(coming, NOW).map(({ entries }) => entries.map(({ id, count, more }) => [id, count, more]));

test('each start is on its day of the reader, the earliest first', () => {
  const days = entriesOf(
    { schedule_id: 'a', starts: [at(0, 18), at(3, 9)], more: false },
    { schedule_id: 'b', starts: [at(3, 8), at(3, 20)], more: false },
  );
  assert.equal(days.length, DAYS);
  assert.deepEqual(days.slice(0, 4), [
    [['a', 1, false]],
    [],
    [],
    [
      ['b', 2, false],
      ['a', 1, false],
    ],
  ]);
});

test('an overdue start is shown today, and a start after the last day on no day', () => {
  const days = entriesOf({ schedule_id: 'a', starts: [at(-3, 9), at(DAYS, 8)], more: false });
  assert.deepEqual(days.flat(), [['a', 1, false]]);
  assert.deepEqual(days[0], [['a', 1, false]]);
});

test('only the last day of a list that was cut off states this', () => {
  const days = entriesOf({ schedule_id: 'a', starts: [at(1, 8), at(2, 8), at(2, 9)], more: true });
  assert.deepEqual(days.slice(1, 4), [[['a', 1, false]], [['a', 2, true]], []]);
});
