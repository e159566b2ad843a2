/** A conversation as a file: Markdown to read, JSON with every stored event. Loaded when a user exports one. */

import { emptyConversation, fold, foldReplayDone } from './events.mjs';
import { pathOf } from './branches.mjs';
import { locale, t } from './strings.mjs';

const MAX_FILES_BYTES = 16 * 1024 * 1024;

/**
 * @param {import('./client/api.mjs').Api} api
 * @param {string} id
 * @param {'markdown' | 'json'} form
 * @returns {Promise<{name: string, blob: Blob}>}
 */
export async function exported(api, id, form) {
  const [record, events] = await Promise.all([api.conversation(id), api.events(id, { whole: true })]);
  const name = (record.title || id).replaceAll(/[^\p{L}\p{N}._ -]/gu, '_').slice(0, 80);
  if (form === 'json') {
    const content = { conversation: record, events, files: await attachedFiles(api, id, events) };
    return {
      name: `${name}.json`,
      blob: new Blob([JSON.stringify(content, null, 2)], { type: 'application/json' }),
    };
  }
  return { name: `${name}.md`, blob: new Blob([markdownOf(record, events)], { type: 'text/markdown' }) };
}

/**
 * The files of the workspace that messages refer to, as data URLs; at most 16 MiB, without those deleted since.
 *
 * @param {import('./client/api.mjs').Api} api
 * @param {string} id
 * @param {EventFrame[]} events
 */
async function attachedFiles(api, id, events) {
  const paths = new Set();
  for (const event of events)
    for (const part of event.type === 'run.started' ? [event.data.message].flat() : [])
      if (typeof part !== 'string' && part.type !== 'text')
        paths.add(part.type === 'file' ? part.path : part.url);
  const files = [];
  let size = 0;
  for (const path of paths) {
    if (/^(data|https?):/i.test(path)) continue;
    const blob = await api.file(id, path).catch(() => null);
    size += blob?.size ?? 0;
    if (blob && size <= MAX_FILES_BYTES) files.push({ path, data: await dataUrl(blob) });
  }
  return files;
}

/** @param {Blob} blob @returns {Promise<string>} */
async function dataUrl(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = '';
  for (let at = 0; at < bytes.length; at += 0x8000)
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return `data:application/octet-stream;base64,${btoa(text)}`;
}

/**
 * The shown path of a conversation, with the calls of its runs.
 *
 * @param {Replies['conversation.read']} record
 * @param {EventFrame[]} events
 */
export function markdownOf(record, events) {
  const conversation = foldReplayDone(events.reduce(fold, emptyConversation(record.conversation_id)));
  const cuts = (/** @type {string | null} */ after) =>
    conversation.cuts.filter((cut) => cut.after === after).map(({ text }) => `> ${text}`);
  const runs = [...cuts(null), ...pathOf(conversation).flatMap(({ run }) => [runText(run), ...cuts(run.id)])];
  return [`# ${record.title || t('conversation.untitled')}`, ...runs].join('\n\n') + '\n';
}

function runText(/** @type {Run} */ run) {
  const when = run.requestedAt ? ` · ${new Date(run.requestedAt).toLocaleString(locale())}` : '';
  const prompt = run.prompt ? [`## ${t('timeline.you')}${when}`, run.prompt.text] : [];
  const entries = run.entries.map(entryText).filter(Boolean);
  return [...prompt, `## ${t('timeline.agent')}${run.model ? ` · ${run.model}` : ''}`, ...entries].join(
    '\n\n',
  );
}

function entryText(/** @type {Entry} */ entry) {
  if (entry.kind === 'message')
    return entry.role === 'user' ? `> ${entry.text.replaceAll('\n', '\n> ')}` : entry.text;
  if (entry.kind === 'notice' && !entry.detail) return `> ${entry.text}`;
  if (entry.kind === 'input') return inputText(entry);
  if (entry.kind === 'workflow') return `> ${t('export.workflow', { name: entry.workflow })}`;
  if (entry.kind !== 'call') return '';
  const { command, path, url } = entry.arguments;
  const body = command ?? path ?? url ?? JSON.stringify(entry.arguments, null, 2);
  return `${fenced(`${entry.name}: ${body}`)}`;
}

function inputText(/** @type {Wanted} */ { message, resolved }) {
  const provided = resolved && !resolved.outcome;
  return provided ? `> ${message}\n\n${fenced(JSON.stringify(resolved.value, null, 2))}` : `> ${message}`;
}

/** A code block whose fence is longer than any in the text. @param {string} text */
function fenced(text) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((match) => match[0].length));
  const fence = '`'.repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}
