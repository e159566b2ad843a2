/** When a schedule runs: cron expressions from a few choices, and the words for them. */

import { locale, t } from './strings.mjs';
import { formatMoment } from './text.mjs';

/** Days of the week as cron numbers them, in the order of a calendar. */
export const WEEKDAYS = [1, 2, 3, 4, 5, 6, 0];
/** The first day of 2023 was a Sunday. */
const SUNDAY = Date.UTC(2023, 0, 1);

/** The choices of the form. @type {Record<string, (at: {hour: number | string, minute: number | string, day: number | string}) => string>} */
export const CRON = {
  hourly: ({ minute }) => `${minute} * * * *`,
  daily: ({ hour, minute }) => `${minute} ${hour} * * *`,
  weekdays: ({ hour, minute }) => `${minute} ${hour} * * 1-5`,
  weekly: ({ hour, minute, day }) => `${minute} ${hour} * * ${day}`,
  monthly: ({ hour, minute }) => `${minute} ${hour} 1 * *`,
};

const WRITTEN = /^(\d+) (\d+|\*) (\*|1) \* (\*|1-5|[0-6])$/;

/** The name of a day of the week. @param {number} day 0 for Sunday */
export function weekday(day) {
  const format = new Intl.DateTimeFormat(locale(), { weekday: 'long', timeZone: 'UTC' });
  return format.format(new Date(SUNDAY + day * 86_400_000));
}

/** The times of a schedule in words. @param {{at: string | null, cron: string | null, timezone: string}} schedule */
export function describeTimes({ at, cron, timezone }) {
  if (at) return t('schedule.once', { when: formatMoment(at) });
  return t('schedule.in', { times: describeCron(cron ?? ''), timezone });
}

/** The choice of the form for a cron expression, with its fields; null if none fits, and for `hourly`. @param {string} cron */
export function choiceOf(cron) {
  const [, minute, hour, , days] = WRITTEN.exec(cron) ?? [];
  const at = { minute, hour, day: days };
  const repeat = Object.keys(CRON).find((name) => CRON[name](at) === cron);
  if (!repeat || repeat === 'hourly') return null;
  return {
    repeat,
    time: `${hour.padStart(2, '0')}:${minute.padStart(2, '0')}`,
    ...(repeat === 'weekly' && { day: days }),
  };
}

/** The words for a cron expression that `CRON` writes; any other one is shown as it is. @param {string} cron */
export function describeCron(cron) {
  const found = WRITTEN.exec(cron);
  if (!found) return cron;
  const [, minute, hour, dayOfMonth, days] = found;
  if (hour === '*')
    return dayOfMonth === '*' && days === '*'
      ? t('schedule.hourlyAt', { minute: minute.padStart(2, '0') })
      : cron;
  const time = `${hour.padStart(2, '0')}:${minute.padStart(2, '0')}`;
  if (dayOfMonth === '1') return days === '*' ? t('schedule.monthlyAt', { time }) : cron;
  if (days === '*') return t('schedule.dailyAt', { time });
  return days === '1-5'
    ? t('schedule.weekdaysAt', { time })
    : t('schedule.weeklyAt', { day: weekday(Number(days)), time });
}
