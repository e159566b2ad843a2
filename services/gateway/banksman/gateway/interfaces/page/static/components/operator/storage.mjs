/** Queues and streams: waiting messages, and stored bytes. */

import { formatNumber, known, t } from '../../strings.mjs';
import { formatBytes, formatWhen } from '../../text.mjs';
import { html } from '../ui.mjs';
import { Records } from './records.mjs';

/** @type {Record<string, Key[]>} */
const COLUMNS = {
  queues: [
    'operator.queue',
    'operator.waiting',
    'operator.inProgress',
    'operator.redelivered',
    'operator.oldest',
  ],
  streams: ['operator.stream', 'operator.messages', 'operator.size'],
};
/** A stream that fills this share of its limit is marked. */
const NEARLY_FULL = 0.8;

/**
 * An agent is delivered runs beyond its places, too: those that it does not perform wait.
 *
 * @param {{queues: Replies['operator.overview']['queues'], processes: Replies['operator.services']['processes']}} properties
 */
export function Queues({ queues, processes }) {
  const performed = processes
    .filter(({ service }) => service === 'agent')
    .reduce((sum, { used }) => sum + used, 0);
  const rows = queues
    .map(counted)
    .map((queue) => [
      known(
        `operator.queue.${queue.stream === 'EVENTS' ? 'commits' : queue.name.replaceAll('-', '_')}`,
        queue.name,
      ),
      formatNumber(queue.waiting),
      formatNumber(queue.in_progress),
      formatNumber(queue.redelivered),
      formatWhen(queue.oldest_at),
    ]);
  function counted(/** @type {Replies['operator.overview']['queues'][number]} */ queue) {
    const taken = queue.name === 'agents' ? Math.min(queue.in_progress, performed) : queue.in_progress;
    return { ...queue, in_progress: taken, waiting: queue.waiting + queue.in_progress - taken };
  }
  return html`<${Records} title=${t('operator.queues')} columns=${COLUMNS.queues} rows=${rows} empty="" />`;
}

export function Streams(/** @type {{streams: Replies['operator.overview']['streams']}} */ { streams }) {
  const rows = streams.map((stream) => {
    const share = stream.max_bytes > 0 ? stream.bytes / stream.max_bytes : 0;
    const used =
      stream.max_bytes > 0
        ? t('operator.usedOf', { used: formatBytes(stream.bytes), limit: formatBytes(stream.max_bytes) })
        : formatBytes(stream.bytes);
    return [
      html`<code>${stream.name}</code>`,
      formatNumber(stream.messages),
      html`<span class=${share > NEARLY_FULL ? 'status failed' : ''}>${used}</span>`,
    ];
  });
  return html`<${Records} title=${t('operator.streams')} columns=${COLUMNS.streams} rows=${rows} empty="" />`;
}
