/** The dialog that creates a schedule: what runs, and when. */

import { useEffect, useState } from 'preact/hooks';

import { cronOf } from '../../schedule_sentence.mjs';
import { CRON, WEEKDAYS, choiceOf, describeCron, weekday } from '../../schedule_times.mjs';
import { explain, t } from '../../strings.mjs';
import { categoriesOf } from '../../workflow_words.mjs';
import { Dialog, html, useStore } from '../ui.mjs';
import { SchemaForm } from '../workflows.mjs';

const MESSAGE = 'message';
const ONCE = 'once';
const CUSTOM = 'cron';

export function ScheduleDialog(/** @type {{onClose: () => void}} */ { onClose }) {
  const store = useStore();
  const [title, setTitle] = useState('');
  const [what, setWhat] = useState(MESSAGE);
  const [times, setTimes] = useState(initialTimes);
  const { workflows, error } = useWorkflows(store);
  const workflow = workflows.find((one) => one.name === what);
  const create = async (values) => {
    const start = workflow
      ? { type: 'workflow', workflow: what, parameters: values }
      : { type: 'prompt', content: values.content };
    await store.api.createSchedule({
      title: title.trim() || workflow?.title || '',
      start,
      missed: times.missed,
      ...timesOf(times),
    });
    onClose();
  };
  return html`<${Dialog} title=${t('schedule.new')} onClose=${onClose}>
    <div class="dialog-body">
      ${error && html`<p class="form-error" role="alert">${error}</p>`}
      <label class="form-field"
        ><span>${t('schedule.name')} <span class="optional">${t('form.optional')}</span></span>
        <input maxlength="200" value=${title} onInput=${(event) => setTitle(event.target.value)}
      /></label>
      <label class="form-field"
        ><span>${t('schedule.what')}</span>
        <select value=${what} onChange=${(event) => setWhat(event.target.value)}>
          <option value=${MESSAGE}>${t('schedule.message')}</option>
          ${workflows.map((one) => html`<option value=${one.name}>${one.title || one.name}</option>`)}
        </select></label
      >
      <${Times} times=${times} onChange=${setTimes} />
      <${SchemaForm}
        key=${what}
        schema=${workflow?.parameters_schema ?? messageForm()}
        submitLabel=${t('schedule.create')}
        onSubmit=${create}
      />
    </div>
  <//>`;
}

/** The workflows, without their categories. @param {Store} store */
function useWorkflows(store) {
  const [state, setState] = useState({ workflows: [], error: null });
  useEffect(() => {
    categoriesOf(store.api).then(
      (items) => setState({ workflows: items.flatMap((category) => category.workflows), error: null }),
      (failure) => setState({ workflows: [], error: explain(failure) }),
    );
  }, []);
  return state;
}

function Times(/** @type {{times: Times, onChange: () => void}} */ { times, onChange }) {
  const set = (name) => (event) => onChange({ ...times, [name]: event.target.value });
  const field = (label, control) => html`<label class="form-field"><span>${label}</span>${control}</label>`;
  const { repeat } = times;
  return html`<${InWords} times=${times} onChange=${onChange} />
    <div class="schedule-times">
      ${field(
        t('schedule.when'),
        html`<select value=${repeat} onChange=${set('repeat')}>
          ${[ONCE, ...Object.keys(CRON), CUSTOM].map((one) => html`<option value=${one}>${t(`schedule.repeat.${one}`)}</option>`)}
        </select>`,
      )}
      ${repeat === ONCE && field(t('schedule.date'), html`<input type="datetime-local" value=${times.at} onInput=${set('at')} />`)}
      ${
        repeat === 'weekly' &&
        field(
          t('schedule.day'),
          html`<select value=${times.day} onChange=${set('day')}>
            ${WEEKDAYS.map((day) => html`<option value=${String(day)}>${weekday(day)}</option>`)}
          </select>`,
        )
      }
      ${repeat in CRON && field(t('schedule.time'), html`<input type="time" value=${times.time} onInput=${set('time')} />`)}
      ${repeat === CUSTOM && field(t('schedule.expression'), html`<input class="mono" placeholder="0 9 * * 1-5" spellcheck=${false} value=${times.cron} onInput=${set('cron')} />`)}
      ${repeat !== ONCE && field(t('schedule.timezone'), html`<input value=${times.timezone} onInput=${set('timezone')} />`)}
    </div>
    <div class="form-field check">
      <label
        ><input
          type="checkbox"
          checked=${times.missed === 'run_once'}
          onChange=${(event) => onChange({ ...times, missed: event.target.checked ? 'run_once' : 'skip' })}
        />${t('schedule.missed')}</label
      >
    </div>`;
}

/**
 * Times in words. The interpretation is shown, and fills the fields below for confirmation.
 *
 * @param {{times: Times, onChange: () => void}} properties
 */
function InWords({ times, onChange }) {
  const [text, setText] = useState('');
  const cron = cronOf(text);
  const read = (event) => {
    setText(event.target.value);
    const found = cronOf(event.target.value);
    if (found) onChange({ ...times, repeat: CUSTOM, cron: found, ...choiceOf(found) });
  };
  return html`<label class="form-field"
      ><span>${t('schedule.words')} <span class="optional">${t('form.optional')}</span></span>
      <input placeholder=${t('schedule.wordsExample')} value=${text} onInput=${read}
    /></label>
    ${text.trim() && html`<p class="muted schedule-words" role="status">${cron ? t('schedule.understood', { times: describeCron(cron), cron }) : t('schedule.notUnderstood')}</p>`}`;
}

function initialTimes() {
  const soon = new Date(Date.now() + 3_600_000);
  const local = new Date(soon.getTime() - soon.getTimezoneOffset() * 60_000);
  const timezone = Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';
  return {
    repeat: 'daily',
    at: local.toISOString().slice(0, 16),
    time: '09:00',
    day: '1',
    cron: '',
    timezone,
    missed: 'run_once',
  };
}

/** The fields of the request. Empty fields are sent, too, so that the server names the missing ones. */
function timesOf({ repeat, at, time, day, cron, timezone }) {
  if (repeat === ONCE) return { at: at ? new Date(at).toISOString() : at };
  if (repeat === CUSTOM) return { cron: cron.trim(), timezone };
  const [hour, minute] = time.split(':').map(Number);
  return { cron: CRON[repeat]({ hour, minute, day: Number(day) }), timezone };
}

function messageForm() {
  return {
    type: 'object',
    properties: {
      content: { type: 'string', title: t('schedule.message'), 'x-hint': 'multiline', minLength: 1 },
    },
    required: ['content'],
  };
}
