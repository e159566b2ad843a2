/**
 * Times in words, such as “every weekday at 9”, as a cron expression. Pure.
 *
 * A sentence with an unknown word is not understood: “every day except Friday” must not become every day.
 */

/** @type {Record<string, number>} */
const DAYS = Object.fromEntries(
  ['sun so', 'mon mo', 'tue di', 'wed mi', 'thu do', 'fri fr', 'sat sa'].flatMap((names, day) =>
    names.split(' ').map((name) => [name, day]),
  ),
);
const DAY =
  /^(?:(sun|mon|tue|wed|thu|fri|sat)(?:day|sday|nesday|rsday|urday|s|rs|r)?s?|(so|mo|di|mi|do|fr|sa)(?:nntag|ntag|enstag|ttwoch|nnerstag|eitag|mstag)?s?)$/;
/** @type {Map<string, string>} */
const GROUPS = new Map(
  Object.entries({
    '*': 'day days daily tag tage täglich',
    '1-5': 'weekday weekdays workday workdays werktag werktags wochentag wochentags',
    '0,6': 'weekend weekends wochenende wochenenden',
  }).flatMap(([days, words]) => words.split(' ').map((word) => [word, days])),
);
const FILLERS = new Set(
  "every each on the at of and o’clock o'clock uhr jeden jede jedes am um im und des immer".split(' '),
);
const MONTHLY = new Set(['month', 'monthly', 'monats', 'monat', 'monatlich']);
const EVERY = /^(?:every|alle) (\d+) (minutes?|minuten?|hours?|stunden?)$/;
const HOURLY = /^(?:hourly|every hour|stündlich|jede stunde)$/;
const TIME = /^(\d{1,2})(?:[:.h](\d{2}))?(am|pm)?$/;
const ORDINAL = /^(\d{1,2})(?:st|nd|rd|th|\.)$/;
/** @type {Record<string, number>} */
const NAMED_TIMES = { noon: 12, midday: 12, mittags: 12, midnight: 0, mitternacht: 0 };
const DEFAULT_HOUR = 9;

/** @param {string} sentence @returns {string | null} five fields; null if it is not understood */
export function cronOf(sentence) {
  const plain = sentence
    .trim()
    .toLowerCase()
    .replaceAll(/\s+/g, ' ')
    .replace(/(?<!(?:^|\s)\d{1,2})[.!]$/, '');
  if (!plain) return null;
  if (HOURLY.test(plain)) return '0 * * * *';
  const repeated = EVERY.exec(plain);
  if (repeated) return interval(Number(repeated[1]), repeated[2].startsWith('m'));
  return daysOf(
    plain
      .replaceAll(/(\d) (am|pm)\b/g, '$1$2')
      .replaceAll(',', ' ')
      .split(' ')
      .filter(Boolean),
  );
}

function interval(/** @type {number} */ count, /** @type {boolean} */ minutes) {
  const whole = minutes ? 60 : 24;
  if (!count || count >= whole || whole % count) return null;
  if (minutes) return `*/${count} * * * *`;
  return count === 1 ? '0 * * * *' : `0 */${count} * * *`;
}

/**
 * What the words name.
 *
 * @typedef {{days: number[], dates: number[], group: string | null, monthly: boolean, time: {hour: number, minute: number} | null}} Found
 */

function daysOf(/** @type {string[]} */ words) {
  const found = /** @type {Found} */ ({ days: [], dates: [], group: null, monthly: false, time: null });
  for (const word of words) {
    if (!take(word, found)) return null;
  }
  const { days, dates, group, monthly, time } = found;
  const dated = dates.length > 0;
  const kinds = [days.length > 0, group !== null, dated || monthly].filter(Boolean).length;
  // In cron, a day of the month together with a day of the week means either of them.
  if (kinds !== 1 || dated !== monthly) return null;
  const { hour, minute } = time ?? { hour: DEFAULT_HOUR, minute: 0 };
  const weekdays = days.length ? [...new Set(days)].sort().join(',') : (group ?? '*');
  return `${minute} ${hour} ${dated ? dates.join(',') : '*'} * ${weekdays}`;
}

/**
 * Add one word to the result; return false if the word is unknown, or the second of its kind.
 *
 * @param {string} word
 * @param {Found} found
 */
function take(word, found) {
  const ordinal = ORDINAL.exec(word);
  if (ordinal && Number(ordinal[1]) >= 1 && Number(ordinal[1]) <= 31)
    return found.dates.push(Number(ordinal[1])) > 0;
  if (word in NAMED_TIMES || TIME.test(word)) {
    if (found.time) return false;
    found.time = timeOf(word);
    return found.time !== null;
  }
  if (MONTHLY.has(word)) return (found.monthly = true);
  if (GROUPS.has(word)) return found.group === null && Boolean((found.group = GROUPS.get(word) ?? null));
  if (FILLERS.has(word)) return true;
  const day = DAY.exec(word);
  return day !== null && found.days.push(DAYS[day[1] ?? day[2]]) > 0;
}

function timeOf(/** @type {string} */ word) {
  if (word in NAMED_TIMES) return { hour: NAMED_TIMES[word], minute: 0 };
  const [, hours, minutes = '0', half] = TIME.exec(word) ?? [];
  const given = Number(hours);
  const wrong = half && (given < 1 || given > 12);
  const hour = half ? (given % 12) + (half === 'pm' ? 12 : 0) : given;
  return wrong || hour > 23 || Number(minutes) > 59 ? null : { hour, minute: Number(minutes) };
}
