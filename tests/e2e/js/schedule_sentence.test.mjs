/** Times of schedules in words. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { cronOf } from '../../../services/gateway/banksman/gateway/interfaces/page/static/schedule_sentence.mjs';

const UNDERSTOOD = {
  'every weekday at 9': '0 9 * * 1-5',
  'Every day at 18:30.': '30 18 * * *',
  daily: '0 9 * * *',
  'every Monday and Thursday at 7:05 am': '5 7 * * 1,4',
  'on Wednesdays at noon': '0 12 * * 3',
  'weekends at 12 am': '0 0 * * 0,6',
  'on the 1st and 15th of each month at 8pm': '0 20 1,15 * *',
  'every 15 minutes': '*/15 * * * *',
  'every 2 hours': '0 */2 * * *',
  hourly: '0 * * * *',
  'jeden Werktag um 9 Uhr': '0 9 * * 1-5',
  'montags und freitags um 14.30 Uhr': '30 14 * * 1,5',
  'am 1. des Monats um 6': '0 6 1 * *',
  'alle 10 Minuten': '*/10 * * * *',
};

for (const [sentence, cron] of Object.entries(UNDERSTOOD)) {
  test(`“${sentence}” is ${cron}`, () => assert.equal(cronOf(sentence), cron));
}

test('a sentence with a word or a time that has no meaning is not understood', () => {
  for (const sentence of [
    '',
    'soon',
    'every day except friday',
    'every weekday at 25',
    'at 9',
    'every day at 9 at 10',
    'every 7 minutes',
    'every month',
    'every monday on the 1st of the month',
    'every day at 13pm',
  ]) {
    assert.equal(cronOf(sentence), null, sentence);
  }
});
