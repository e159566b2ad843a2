/** Schedules: messages and workflows that run at given times, with their last runs and a calendar of the next ones. */

import { useEffect, useState } from 'preact/hooks';

import { Calendar } from '../components/schedules/calendar.mjs';
import { ScheduleDialog } from '../components/schedules/dialog.mjs';
import { Dialog, Icon, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { describeTimes } from '../schedule_times.mjs';
import { explain, known, reasonOf, t } from '../strings.mjs';
import { formatMoment } from '../text.mjs';

export default function SchedulesView() {
  const store = useStore();
  const [{ schedules, coming }, setListed] = useState({ schedules: null, coming: [] });
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const [creating, setCreating] = useState(false);
  const read = () =>
    Promise.all([store.api.schedules(), store.api.comingStarts()]).then(
      ([schedules, coming]) => (setListed({ schedules, coming }), setError(null)),
      (failure) => setError(explain(failure)),
    );
  useEffect(() => void read(), []);
  const actions = html`<button type="button" class="button primary" onClick=${() => setCreating(true)}>
    <${Icon} name="plus" size=${16} />${t('schedule.new')}
  </button>`;
  return html`<${Frame} title=${t('schedule.title')} actions=${actions}>
    <p class="muted">${t('schedule.intro')}</p>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!schedules && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
    ${schedules?.length === 0 && html`<p class="empty">${t('schedule.none')}</p>`}
    ${schedules?.length > 0 && html`<${Calendar} coming=${coming} names=${new Map(schedules.map((one) => [one.id, titleOf(one)]))} onChoose=${show} />`}
    ${schedules?.map((schedule) => html`<${Schedule} key=${schedule.id} schedule=${schedule} onChange=${read} />`)}
    ${creating && html`<${ScheduleDialog} onClose=${() => (setCreating(false), read())} />`}
  <//>`;
}

/** Move to a schedule of the list. @param {string} id */
function show(id) {
  document.getElementById(elementOf(id))?.focus();
}

function elementOf(/** @type {string} */ id) {
  return `schedule-${id}`;
}

function Schedule(/** @type {{schedule: Schedule, onChange: () => void}} */ { schedule, onChange }) {
  const store = useStore();
  const [deleting, setDeleting] = useState(false);
  const [runs, setRuns] = useState(/** @type {Replies['schedule.read']['runs'] | null} */ (null));
  const name = titleOf(schedule);
  const act = (request) => request.then(onChange, (failure) => store.toast(explain(failure)));
  const pause = () =>
    act(store.api.replaceSchedule(schedule.id, { ...bodyOf(schedule), paused: !schedule.paused }));
  const showRuns = (event) =>
    event.currentTarget.open &&
    store.api.schedule(schedule.id).then(
      (read) => setRuns(read.runs),
      (failure) => store.toast(explain(failure)),
    );
  return html`<section class="schedule" id=${elementOf(schedule.id)} tabindex="-1" aria-label=${name}>
    <header>
      <h2>${name}</h2>
      ${schedule.paused && html`<span class="badge">${t('schedule.paused')}</span>`}
    </header>
    <p>
      ${describeTimes(schedule)}${schedule.next_at && html` <span class="muted">${t('schedule.next', { when: formatMoment(schedule.next_at) })}</span>`}
    </p>
    ${schedule.last_run && html`<p class="muted">${t('schedule.last')} <${Outcome} run=${schedule.last_run} /></p>`}
    <details onToggle=${showRuns}>
      <summary>${t('schedule.history')}</summary>
      ${
        runs &&
        (runs.length
          ? html`<ul class="runs">
              ${runs.map((run) => html`<li><${Outcome} run=${run} /></li>`)}
            </ul>`
          : html`<p class="muted">${t('schedule.noRuns')}</p>`)
      }
    </details>
    <div class="schedule-actions">
      <button
        type="button"
        class="link"
        aria-label=${t('schedule.runOf', { name })}
        onClick=${() => act(store.api.runSchedule(schedule.id))}
      >
        ${t('schedule.run')}
      </button>
      ${(schedule.cron || schedule.next_at || schedule.paused) && html`<button type="button" class="link" aria-label=${t(schedule.paused ? 'schedule.resumeOf' : 'schedule.pauseOf', { name })} onClick=${pause}>${t(schedule.paused ? 'schedule.resume' : 'schedule.pause')}</button>`}
      <button
        type="button"
        class="link"
        aria-label=${t('schedule.deleteOf', { name })}
        onClick=${() => setDeleting(true)}
      >
        ${t('schedule.delete')}
      </button>
    </div>
    ${deleting && html`<${Deletion} name=${name} onConfirm=${() => act(store.api.deleteSchedule(schedule.id))} onClose=${() => setDeleting(false)} />`}
  </section>`;
}

/** The result of a start of a schedule, with a link to its conversation. @param {{run: Run}} properties */
function Outcome({ run }) {
  const result = known(`schedule.result.${run.result}`, run.result);
  const text = run.status ? known(`schedule.status.${run.status}`, run.status) : result;
  const when = formatMoment(run.at);
  if (run.error) return html`${when}: ${text}. ${reasonOf(`reason.${run.error.code}`, run.error.message)}`;
  return run.conversation_id
    ? html`<a href=${`#/c/${run.conversation_id}`}>${when}</a>: ${text}`
    : html`${when}: ${text}`;
}

/** @param {{name: string, onConfirm: () => void, onClose: () => void}} properties */
function Deletion({ name, onConfirm, onClose }) {
  return html`<${Dialog} title=${t('schedule.deleteTitle')} onClose=${onClose}>
    <div class="dialog-body">
      <p>${t('schedule.deleteQuestion', { name })}</p>
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('app.cancel')}</button>
        <button type="button" class="button danger" onClick=${() => (onClose(), onConfirm())}>
          ${t('schedule.delete')}
        </button>
      </div>
    </div>
  <//>`;
}

function titleOf(/** @type {{title: string, start: Schedule['start']}} */ { title, start }) {
  return title || start.workflow || start.content;
}

/**
 * The fields of a schedule that a client may send.
 *
 * @param {{title: string, start: Schedule['start'], at: number, cron: string, timezone: string, missed: 'run_once' | 'skip'}} options
 */
function bodyOf({ title, start, at, cron, timezone, missed }) {
  return { title, start, ...(cron ? { cron, timezone } : { at }), missed };
}
