/** The calendar of coming starts: two weeks, each day with the schedules that start on it. */

import { calendarDays } from '../../schedule_calendar.mjs';
import { locale, t } from '../../strings.mjs';
import { LinkButton, html } from '../ui.mjs';

/** @param {{coming: import('../../schedule_calendar.mjs').Coming[], names: Map<string, string>, onChoose: (id: string) => void}} properties */
export function Calendar({ coming, names, onChoose }) {
  const known = coming.filter(({ schedule_id: id }) => names.has(id));
  const crowded = known.filter(({ more }) => more).map(({ schedule_id: id }) => names.get(id));
  const timezone = Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';
  return html`<section class="calendar stack" aria-labelledby="calendar-title">
    <h2 id="calendar-title">${t('schedule.coming')}</h2>
    ${
      known.length
        ? html`<p class="muted">${t('schedule.comingTimes', { timezone })}</p>
            <ol>
              ${calendarDays(known, new Date()).map(
                ({ date, entries }) =>
                  html`<li class=${entries.length ? 'day' : 'day free'}>
                    <h3>${formatDay(date)}</h3>
                    <ul>
                      ${entries.map(
                        (entry) =>
                          html`<li>
                            <${LinkButton} onClick=${() => onChoose(entry.id)}>
                              <span class="soft">${formatTimes(entry)}</span>
                              <span class="name">${names.get(entry.id)}</span>
                            <//>
                          </li>`,
                      )}
                    </ul>
                  </li>`,
              )}
            </ol>`
        : html`<p class="muted">${t('schedule.comingNone')}</p>`
    }
    ${
      crowded.length > 0 &&
      html`<p class="muted">${t('schedule.comingMore', { names: crowded.join(', ') })}</p>`
    }
  </section>`;
}

function formatDay(/** @type {Date} */ date) {
  return date.toLocaleDateString(locale(), { weekday: 'short', day: 'numeric', month: 'short' });
}

/** @param {import('../../schedule_calendar.mjs').Entry} entry */
function formatTimes({ first, last, count, more }) {
  if (count === 1 && !more) return formatTime(first);
  return t(more ? 'schedule.timesOrMore' : 'schedule.times', {
    first: formatTime(first),
    last: formatTime(last),
    count,
  });
}

function formatTime(/** @type {Date} */ date) {
  return date.toLocaleTimeString(locale(), { timeStyle: 'short' });
}
