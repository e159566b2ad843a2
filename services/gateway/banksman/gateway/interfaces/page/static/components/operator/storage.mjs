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

export function Queues(/** @type {{queues: Replies['operator.overview']['queues']}} */ { queues }) {
  const rows = queues.map((queue) => [
    known(
      `operator.queue.${queue.stream === 'EVENTS' ? 'commits' : queue.name.replaceAll('-', '_')}`,
      queue.name,
    ),
    formatNumber(queue.waiting),
    formatNumber(queue.in_progress),
    formatNumber(queue.redelivered),
    formatWhen(queue.oldest_at),
  ]);
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
