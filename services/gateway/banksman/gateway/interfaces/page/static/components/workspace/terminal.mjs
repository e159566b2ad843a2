/** The commands of a conversation as in a terminal: live output while they run, the complete output afterwards. */

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { emptyConversation, openRun } from '../../events.mjs';
import { LIVE_OUTPUT_CHARACTERS } from '../../run_events.mjs';
import { t } from '../../strings.mjs';
import { cutLines } from '../../text.mjs';
import { commandsOf } from '../../workspace.mjs';
import { StopButton } from '../outcome.mjs';
import { Exact, LinkButton, html, memo, useStore } from '../ui.mjs';

const NEAR_END_PX = 40;
/** Maximum shown characters of one output; a longer output is offered as a download. */
const MAX_SHOWN_CHARACTERS = 500_000;

export function Terminal() {
  const store = useStore();
  const conversation = store.opened.current.value ?? emptyConversation('');
  const commands = commandsOf(conversation);
  const run = openRun(conversation);
  const scroller = useRef(/** @type {HTMLElement | null} */ (null));
  const atEnd = useRef(true);
  // Output from before this view was opened arrives only with the result of the command.
  const [late] = useState(
    () =>
      new Set(
        store.settings.details.value
          ? []
          : commands.filter(({ call }) => call.status === 'running').map(({ call }) => call.id),
      ),
  );
  // The gateway sends live output only to clients that request it.
  useEffect(() => store.opened.followOutput(), []);
  useLayoutEffect(() => void (atEnd.current && scroller.current?.scrollTo(0, scroller.current.scrollHeight)));
  const onScroll = (/** @type {PageEvent} */ { target }) =>
    (atEnd.current = target.scrollHeight - target.scrollTop - target.clientHeight < NEAR_END_PX);
  return html`<div class="terminal">
    <div
      class="terminal-text"
      ref=${scroller}
      onScroll=${onScroll}
      tabindex="0"
      role="log"
      aria-label=${t('terminal.label')}>
      ${!commands.length && html`<p class="empty">${t('terminal.empty')}</p>`}
      ${commands.map(
        ({ run: { id }, call, output }) =>
          html`<${Command}
            key=${call.id}
            runId=${id}
            call=${call}
            output=${output}
            late=${late.has(call.id)} />`,
      )}
    </div>
    ${run && html`<div class="dialog-actions"><${StopButton} run=${run} /></div>`}
  </div>`;
}

/** @typedef {{runId: string, call: Call, output: string, late: boolean}} CommandProperties */

const Command = memo(function Command(/** @type {CommandProperties} */ { runId, call, output, late }) {
  const { api, toasts } = useStore();
  const [whole, setWhole] = useState(/** @type {string | null} */ (null));
  const read = () =>
    toasts.attempt(async () => {
      const text = await (await api.output(runId, call.id)).text();
      setWhole(text.length > MAX_SHOWN_CHARACTERS ? `${text.slice(0, MAX_SHOWN_CHARACTERS)}…` : text);
    });
  const command = String(call.arguments.command ?? '');
  const code = call.result?.exit_code;
  return html`<div class="terminal-command">
    <pre class="terminal-line"><span aria-hidden="true">$ </span><${Exact} text=${cutLines(command)} /></pre>
    ${late && call.status === 'running' && html`<p class="muted">${t('terminal.earlier')}</p>`}
    ${(whole ?? output) && html`<pre><${Exact} text=${cutLines(whole ?? output)} /></pre>`}
    ${
      call.result?.truncated &&
      call.result.output_ref &&
      whole === null &&
      html`<${LinkButton} onClick=${read}>${t('terminal.whole')}<//>`
    }
    ${
      code !== null &&
      code !== undefined &&
      code !== 0 &&
      html`<p class="terminal-code">${t('tool.exitCode', { code })}</p>`
    }
    ${
      call.status === 'running' &&
      output.length >= LIVE_OUTPUT_CHARACTERS &&
      html`<p class="muted">${t('terminal.later')}</p>`
    }
    ${call.status === 'running' && html`<span class="spinner" />`}
  </div>`;
});
