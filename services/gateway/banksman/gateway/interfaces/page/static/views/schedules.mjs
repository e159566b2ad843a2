/** Schedules: messages and workflows that run at given times, with their last runs and a calendar of the next ones. */

import { useState } from 'preact/hooks';

import { FormDialog } from '../components/fields.mjs';
import { Empty, Reading, useRead } from '../components/requests.mjs';
import { Calendar } from '../components/schedules/calendar.mjs';
import { ScheduleDialog } from '../components/schedules/dialog.mjs';
import { AddButton, LinkButton, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { describeTimes } from '../schedule_times.mjs';
import { known, reasonOf, t } from '../strings.mjs';
import { formatMoment } from '../text.mjs';

export default function SchedulesView() {
  const { api } = useStore();
  const listed = useRead(() => Promise.all([api.items('schedule.list'), api.items('schedule.coming')]));
  const [creating, setCreating] = useState(false);
  const [schedules, coming] = listed.value ?? [[], []];
  const isEmpty = listed.value && !schedules.length;
  const actions = html`<${AddButton} label=${t('schedule.new')} onClick=${() => setCreating(true)} />`;
  return html`<${Frame} title=${t('schedule.title')} actions=${!isEmpty && actions}>
    <p class="muted">${t('schedule.intro')}</p>
    <${Reading} of=${listed} />
    ${isEmpty && html`<${Empty} text=${t('schedule.none')}>${actions}<//>`}
    ${
      schedules.length > 0 &&
      html`<${Calendar}
        coming=${coming}
        names=${new Map(schedules.map((one) => [one.id, titleOf(one)]))}
        onChoose=${show} />`
    }
    ${schedules.map(
      (schedule) => html`<${OneSchedule} key=${schedule.id} schedule=${schedule} onChange=${listed.read} />`,
    )}
    ${creating && html`<${ScheduleDialog} onClose=${() => (setCreating(false), listed.read())} />`}
  <//>`;
}

const elementOf = (/** @type {string} */ id) => `schedule-${id}`;
/** Move to a schedule of the list. @param {string} id */
const show = (id) => document.getElementById(elementOf(id))?.focus();

function OneSchedule(/** @type {{schedule: Schedule, onChange: () => void}} */ { schedule, onChange }) {
  const { api, toasts } = useStore();
  const [deleting, setDeleting] = useState(false);
  const [open, setOpen] = useState(false);
  const name = titleOf(schedule);
  const act = (/** @type {Promise<unknown>} */ request) => toasts.attempt(() => request.then(onChange));
  const pause = () =>
    act(
      api.call(
        'schedule.update',
        { schedule_id: schedule.id },
        { ...bodyOf(schedule), paused: !schedule.paused },
      ),
    );
  return html`<section
    class="schedule stack anywhere"
    id=${elementOf(schedule.id)}
    tabindex="-1"
    aria-label=${name}>
    <header>
      <h2>${name}</h2>
      ${schedule.paused && html`<span class="badge">${t('schedule.paused')}</span>`}
    </header>
    <p>
      ${describeTimes(schedule)}${
        schedule.next_at &&
        html` <span class="muted">${t('schedule.next', { when: formatMoment(schedule.next_at) })}</span>`
      }
    </p>
    ${
      schedule.last_run &&
      html`<p class="muted">${t('schedule.last')} <${Outcome} run=${schedule.last_run} /></p>`
    }
    <details onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary>${t('schedule.history')}</summary>
      ${open && html`<${LastRuns} id=${schedule.id} />`}
    </details>
    <div class="schedule-actions">
      <${LinkButton}
        aria-label=${t('schedule.runOf', { name })}
        onClick=${() => act(api.call('schedule.run', { schedule_id: schedule.id }))}>
        ${t('schedule.run')}
      <//>
      ${
        (schedule.cron || schedule.next_at || schedule.paused) &&
        html`<${LinkButton}
          aria-label=${t(schedule.paused ? 'schedule.resumeOf' : 'schedule.pauseOf', { name })}
          onClick=${pause}>
          ${t(schedule.paused ? 'schedule.resume' : 'schedule.pause')}
        <//>`
      }
      <${LinkButton} aria-label=${t('schedule.deleteOf', { name })} onClick=${() => setDeleting(true)}>
        ${t('app.delete')}
      <//>
    </div>
    ${
      deleting &&
      html`<${FormDialog}
        title=${t('schedule.deleteTitle')}
        label=${t('app.delete')}
        danger
        onSubmit=${() => api.call('schedule.delete', { schedule_id: schedule.id }).then(onChange)}
        onClose=${() => setDeleting(false)}>
        <p>${t('schedule.deleteQuestion', { name })}</p>
      <//>`
    }
  </section>`;
}

function LastRuns(/** @type {{id: string}} */ { id }) {
  const { api } = useStore();
  const read = useRead(() => api.call('schedule.read', { schedule_id: id }));
  if (!read.value) return html`<${Reading} of=${read} />`;
  const { runs } = read.value;
  return runs.length
    ? html`<ul class="runs">
        ${runs.map((run) => html`<li><${Outcome} run=${run} /></li>`)}
      </ul>`
    : html`<p class="muted">${t('schedule.noRuns')}</p>`;
}

/** The result of a start of a schedule, with a link to its conversation. @param {{run: Replies['schedule.read']['runs'][number]}} properties */
function Outcome({ run }) {
  const result = known(`schedule.result.${run.result}`, run.result);
  const text = run.status ? known(`schedule.status.${run.status}`, run.status) : result;
  const when = formatMoment(run.at);
  if (run.error) return html`${when}: ${text}. ${reasonOf(`reason.${run.error.code}`, run.error.message)}`;
  return run.conversation_id
    ? html`<a href=${`#/c/${run.conversation_id}`}>${when}</a>: ${text}`
    : html`${when}: ${text}`;
}

function titleOf(/** @type {Schedule} */ { title, start }) {
  return title || (start.type === 'workflow' ? start.workflow : start.content);
}

/**
 * The fields of a schedule that a client may send.
 *
 * @param {Schedule} schedule
 */
function bodyOf({ title, start, at, cron, timezone, missed }) {
  return { title, start, ...(cron ? { cron, timezone } : { at }), missed };
}
