/** The dialog that creates a schedule: what runs, and when. */

import { useState } from 'preact/hooks';

import { cronOf } from '../../schedule_sentence.mjs';
import { CRON, WEEKDAYS, choiceOf, describeCron, weekday } from '../../schedule_times.mjs';
import { known, t } from '../../strings.mjs';
import { categoriesOf } from '../../workflow_words.mjs';
import { Check, Choice, TextField } from '../fields.mjs';
import { FormError, useRead } from '../requests.mjs';
import { Dialog, html, useStore } from '../ui.mjs';
import { SchemaForm } from '../workflows.mjs';

const MESSAGE = 'message';
const ONCE = 'once';
const CUSTOM = 'cron';
/** @typedef {ReturnType<typeof initialTimes>} Times */

export function ScheduleDialog(/** @type {{onClose: () => void}} */ { onClose }) {
  const { api } = useStore();
  const [title, setTitle] = useState('');
  const [what, setWhat] = useState(MESSAGE);
  const [times, setTimes] = useState(initialTimes);
  const { value: categories, error } = useRead(() => categoriesOf(api));
  const workflows = (categories ?? []).flatMap((category) => category.workflows);
  const workflow = workflows.find((one) => one.name === what);
  const create = async (/** @type {Json} */ values) => {
    const start = workflow
      ? { type: 'workflow', workflow: what, parameters: values }
      : { type: 'prompt', content: values.content };
    const named = title.trim() || workflow?.title || '';
    const schedule = { title: named, start, missed: times.missed, ...timesOf(times) };
    await api.call('schedule.create', {}, schedule);
    onClose();
  };
  return html`<${Dialog} title=${t('schedule.new')} onClose=${onClose}>
    <div class="dialog-body">
      <${FormError} error=${error} />
      <${TextField} label=${optional('app.name')} value=${title} onChange=${setTitle} maxlength="200" />
      <${Choice}
        label=${t('schedule.what')}
        value=${what}
        onChange=${setWhat}
        options=${[
          [MESSAGE, t('schedule.message')],
          ...workflows.map((one) => [one.name, one.title || one.name]),
        ]} />
      <${Times} times=${times} onChange=${setTimes} />
      <${SchemaForm}
        key=${what}
        schema=${workflow?.parameters_schema ?? messageForm()}
        submitLabel=${t('schedule.create')}
        onSubmit=${create} />
    </div>
  <//>`;
}

/** The label of a field that may stay empty. @param {Key} key */
const optional = (key) => html`${t(key)} <span class="optional muted text-xs">${t('form.optional')}</span>`;

function Times(/** @type {{times: Times, onChange: (times: Times) => void}} */ { times, onChange }) {
  const { repeat } = times;
  const field = (/** @type {Key} */ label, /** @type {keyof Times} */ name, /** @type {Json} */ more = {}) =>
    html`<${more.options ? Choice : TextField}
      label=${t(label)}
      value=${times[name]}
      onChange=${(/** @type {string} */ value) => onChange({ ...times, [name]: value })}
      ...${more} />`;
  const repeats = [ONCE, ...Object.keys(CRON), CUSTOM];
  return html`<${InWords} times=${times} onChange=${onChange} />
    <div class="schedule-times">
      ${field('schedule.when', 'repeat', {
        options: repeats.map((one) => [one, known(`schedule.repeat.${one}`, one)]),
      })}
      ${repeat === ONCE && field('schedule.date', 'at', { type: 'datetime-local' })}
      ${
        repeat === 'weekly' &&
        field('schedule.day', 'day', { options: WEEKDAYS.map((day) => [String(day), weekday(day)]) })
      }
      ${repeat in CRON && field('schedule.time', 'time', { type: 'time' })}
      ${
        repeat === CUSTOM &&
        field('schedule.expression', 'cron', { class: 'mono', placeholder: '0 9 * * 1-5', spellcheck: false })
      }
      ${repeat !== ONCE && field('schedule.timezone', 'timezone')}
    </div>
    <${Check}
      label=${t('schedule.missed')}
      value=${times.missed === 'run_once'}
      onChange=${(/** @type {boolean} */ on) => onChange({ ...times, missed: on ? 'run_once' : 'skip' })} />`;
}

/**
 * Times in words. The interpretation is shown, and fills the fields below for confirmation.
 *
 * @param {{times: Times, onChange: (times: Times) => void}} properties
 */
function InWords({ times, onChange }) {
  const [text, setText] = useState('');
  const cron = cronOf(text);
  const read = (/** @type {string} */ sentence) => {
    setText(sentence);
    const found = cronOf(sentence);
    if (found) onChange({ ...times, repeat: CUSTOM, cron: found, ...choiceOf(found) });
  };
  return html`<${TextField}
      label=${optional('schedule.words')}
      value=${text}
      onChange=${read}
      placeholder=${t('schedule.wordsExample')} />
    ${
      text.trim() &&
      html`<p class="muted schedule-words" role="status">
        ${cron ? t('schedule.understood', { times: describeCron(cron), cron }) : t('schedule.notUnderstood')}
      </p>`
    }`;
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

/** The fields of the request. Empty fields are sent, too, so that the server names the missing ones. @param {Times} times */
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
