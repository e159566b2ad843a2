/** One step with its exact request and result. */

import { useLayoutEffect, useRef, useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { t } from '../../strings.mjs';
import { contentText } from '../../text.mjs';
import { FormError, useRead } from '../requests.mjs';
import { CopyButton, Exact, IconButton, html, useStore } from '../ui.mjs';
import { nameOf } from './steps.mjs';

/** @param {{runId: string, stepId: string, version: unknown}} properties the step is read again for a new `version` */
export function StepDetail({ runId, stepId, version }) {
  const { api } = useStore();
  const { value: read, error } = useRead(
    () => api.call('step.read', { run_id: runId, step_id: stepId }),
    [runId, stepId, version],
  );
  const heading = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => void (read && heading.current?.focus()), [read === null]);
  const close = () => (location.hash = addressOf('runs', runId));
  return html`<section
    class="step-detail card"
    aria-label=${t('run.step')}
    onKeyDown=${(event) => event.key === 'Escape' && close()}>
    <header class="panel-head bar">
      <h2 class="grow" tabindex="-1" ref=${heading}>${read ? nameOf(read.step) : t('app.loading')}</h2>
      ${
        read && html`<${CopyButton} text=${() => JSON.stringify(read, null, 2)} label=${t('run.copyJson')} />`
      }
      <${IconButton} name="close" label=${t('app.close')} onClick=${close} />
    </header>
    <${FormError} error=${error} />
    ${read && html`<${Content} detail=${read} />`}
  </section>`;
}

/** @typedef {{content: Content, role: string, name?: string, calls?: {name: string, arguments: Json}[], result?: {content: unknown}}} Sent */
/** @typedef {{model: string, protocol: string, system: string | null, messages: Sent[], tools: {name: string}[], options?: Json, problem?: string}} Requested */

/** @param {{detail: StepDetail}} properties */
function Content({ detail: { step, request, result } }) {
  return html`<div class="step-content stack">
    ${
      request &&
      html`<h3>${t('run.request')}</h3>
        ${
          step.kind === 'model'
            ? html`<${ModelRequest} request=${request} />`
            : html`<${Fields} value=${request} />`
        }`
    }
    ${
      result &&
      html`<h3>${t('tool.result')}</h3>
        <${Fields} value=${result} />`
    }
  </div>`;
}

function ModelRequest(/** @type {{request: Requested}} */ { request }) {
  const { system, messages, tools, options, problem } = request;
  const options_ = Object.keys(options ?? {}).length > 0;
  return html` <p class="muted">${request.model} · ${request.protocol}</p>
    ${problem && html`<p class="notice warning" role="note">${problem}</p>`}
    ${
      system !== null &&
      html`<${Folded} title=${t('run.system')}
        ><p class="muted">${t('run.systemNow')}</p>
        <${Pre} text=${system}
      /><//>`
    }
    ${
      tools.length > 0 &&
      html`<${Folded} title=${t('run.tools', { count: tools.length })}
        >${tools.map(
          (tool) => html`<${Folded} key=${tool.name} title=${tool.name}><${Pre} text=${json(tool)} /><//>`,
        )}<//
      >`
    }
    ${options_ && html`<${Folded} title=${t('run.options')}><${Pre} text=${json(options)} /><//>`}
    <${Folded} title=${t('run.messages', { count: messages.length })} open>
      <ol class="step-messages stack">
        ${messages.map(
          (message, at) =>
            html`<${Message} key=${at} message=${message} last=${at === messages.length - 1} />`,
        )}
      </ol>
    <//>`;
}

/**
 * A message of the request. The last one, to which the model replied, is expanded.
 *
 * @param {{message: Sent, last: boolean}} properties
 */
function Message({ message, last }) {
  const calls = (message.calls ?? []).map((call) => ({ name: call.name, arguments: call.arguments }));
  const text = message.role === 'tool' ? json(message.result?.content) : contentText(message.content);
  const body = [text, calls.length ? json(calls) : ''].filter(Boolean).join('\n\n');
  const title =
    message.role === 'tool' ? message.name : t(message.role === 'user' ? 'timeline.you' : 'timeline.agent');
  return html`<li>
    <${Folded} title=${title} note=${body.split('\n')[0].slice(0, 120)} open=${last}
      ><${Pre} text=${body}
    /><//>
  </li>`;
}

/** The fields of an object: texts unchanged, other values as JSON. @param {{value: Json}} properties */
function Fields({ value }) {
  const shown = Object.entries(value).filter(
    ([, one]) => one !== null && one !== '' && !(Array.isArray(one) && !one.length),
  );
  return html`<dl class="step-fields stack">
    ${shown.map(
      ([name, one]) =>
        html`<div key=${name}>
          <dt class="muted text-xs">${name}</dt>
          <dd class="anywhere">
            ${
              typeof one === 'object' || String(one).includes('\n') || String(one).length > 80
                ? html`<${Pre} text=${typeof one === 'string' ? one : json(one)} />`
                : String(one)
            }
          </dd>
        </div>`,
    )}
  </dl>`;
}

/** @param {{title: string, note?: Shown, open?: boolean, children: Shown}} properties */
function Folded({ title, note, open = false, children }) {
  const [shown, setShown] = useState(open);
  return html`<details
    class="folded"
    open=${shown}
    onToggle=${(event) => event.target === event.currentTarget && setShown(event.currentTarget.open)}>
    <summary>
      <span>${title}</span>${note && !shown && html`<span class="muted folded-note">${note}</span>`}
    </summary>
    ${shown && children}
  </details>`;
}

const json = (/** @type {unknown} */ value) => JSON.stringify(value, null, 2);

function Pre(/** @type {{text: string}} */ { text }) {
  return html`<div class="step-pre">
    <${CopyButton} text=${text} />
    <pre tabindex="0"><${Exact} text=${text} /></pre>
  </div>`;
}
