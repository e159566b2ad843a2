/** Two runs beside each other. */

import { addressOf } from '../../router.mjs';
import { t } from '../../strings.mjs';
import { html } from '../ui.mjs';
import { StepList } from './steps.mjs';
import { figuresOf } from './summary.mjs';

/** @typedef {import('./summary.mjs').Figure} Figure @typedef {{run: StoredRun, steps: Step[]}} Side */

/** @param {{first: Side, second: Side}} properties */
export function Comparison({ first, second }) {
  const a = figuresOf(first.run, first.steps);
  const b = figuresOf(second.run, second.steps);
  return html`<div class="table-scroll" tabindex="0">
      <table class="run-table">
        <thead>
          <tr>
            <td></td>
            <th scope="col"><a href=${addressOf('runs', first.run.run_id)}>${first.run.model}</a></th>
            <th scope="col"><a href=${addressOf('runs', second.run.run_id)}>${second.run.model}</a></th>
            <th scope="col">${t('run.difference')}</th>
          </tr>
        </thead>
        <tbody>
          ${a.map(
            (one, at) =>
              html`<tr key=${one.key}>
                <th scope="row">${t(one.key)}</th>
                <td>${one.text}</td>
                <td>${b[at].text}</td>
                <td>${difference(one, b[at])}</td>
              </tr>`,
          )}
        </tbody>
      </table>
    </div>
    <div class="run-pair">
      ${[first, second].map(
        ({ run, steps }, at) =>
          html`<div key=${run.run_id}>
            <h2>${run.model}</h2>
            <${Reply} run=${run} /><${StepList}
              runId=${run.run_id}
              steps=${steps}
              label=${`${t('run.steps')} ${at + 1}: ${run.model}`} />
          </div>`,
      )}
    </div>`;
}

function Reply(/** @type {{run: Replies['run.read']}} */ { run }) {
  return 'content' in run && run.content ? html`<p class="run-reply soft text-m">${run.content}</p>` : null;
}

/**
 * The difference from the first run to the second, absolute and relative.
 *
 * @param {Figure} one
 * @param {Figure} other
 */
function difference(one, other) {
  if (typeof one.value !== 'number' || typeof other.value !== 'number' || one.value === other.value)
    return '';
  const change = other.value - one.value;
  const share = one.value
    ? ` (${change > 0 ? '+' : '−'}${Math.round((100 * Math.abs(change)) / one.value)}\u00a0%)`
    : '';
  return `${change > 0 ? '+' : '−'}${one.format?.(Math.abs(change)) ?? change}${share}`;
}
