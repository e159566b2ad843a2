/** The coming starts of schedules by day in the reader's time zone. Pure. */

export const DAYS = 14;

/**
 * @typedef {{schedule_id: string, starts: string[], more: boolean}} Coming as the gateway lists it
 * @typedef {{id: string, first: Date, last: Date, count: number, more: boolean}} Entry the starts of a schedule on one day;
 *   with `more`, later starts are not listed
 */

/**
 * The days from today on, each with the schedules that start on it, earliest first. Overdue starts belong to today.
 *
 * @param {Coming[]} coming
 * @param {Date} now
 * @returns {{date: Date, entries: Entry[]}[]}
 */
export function calendarDays(coming, now) {
  const days = Array.from({ length: DAYS }, (_, number) => ({
    date: new Date(now.getFullYear(), now.getMonth(), now.getDate() + number),
    entries: /** @type {Entry[]} */ ([]),
  }));
  const byDay = new Map(days.map((day) => [day.date.toDateString(), day.entries]));
  for (const { schedule_id: id, starts, more } of coming) {
    for (const [number, start] of starts.entries()) {
      const at = new Date(Math.max(Date.parse(start), now.getTime()));
      const entries = byDay.get(at.toDateString());
      if (entries) add(entries, id, at, more && number === starts.length - 1);
    }
  }
  for (const { entries } of days) entries.sort((one, other) => one.first.getTime() - other.first.getTime());
  return days;
}

/**
 * @param {Entry[]} entries the entries of a day; the last one may belong to the same schedule
 * @param {string} id
 * @param {Date} at
 * @param {boolean} more
 */
function add(entries, id, at, more) {
  const last = entries.at(-1);
  if (last?.id !== id) entries.push({ id, first: at, last: at, count: 1, more });
  else Object.assign(last, { last: at, count: last.count + 1, more });
}
