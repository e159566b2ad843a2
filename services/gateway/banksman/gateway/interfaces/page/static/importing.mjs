/** Import of a conversation that was exported as JSON. Loaded when a user chooses a file. */

import { t } from './strings.mjs';

export const MAX_FILE_BYTES = 64 * 1024 * 1024;
/** The events that the gateway imports. Results of calls, most of a file, are not imported. */
const READ = new Set(['run.started', 'message.completed', 'run.finished']);

/**
 * @param {import('./client/api.mjs').Api} api
 * @param {File} file
 * @returns {Promise<string>} the id of the new conversation
 * @throws {Error} with a reason for the user; `ApiError` if the gateway refuses the conversation
 */
export async function imported(api, file) {
  if (file.size > MAX_FILE_BYTES) throw new Error(t('import.tooLarge'));
  const { title, events } = readExport(await file.text());
  const record = await api.importConversation({ conversation: { title }, events });
  return record.conversation_id;
}

/**
 * The title and the importable events of an export.
 *
 * @param {string} text
 * @throws {Error} if the text is not an export
 */
export function readExport(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error(t('import.notJson'));
  }
  if (!Array.isArray(data?.events)) throw new Error(t('import.notExport'));
  const events = data.events.filter((event) => READ.has(event?.type)).map(slim);
  if (!events.length) throw new Error(t('import.notExport'));
  return { title: typeof data.conversation?.title === 'string' ? data.conversation.title : '', events };
}

function slim(/** @type {Json} */ { type, run_id, data }) {
  const { message_id, message, model, branch, role, content, status } = data ?? {};
  return {
    type,
    run_id,
    data: {
      message_id,
      message,
      model,
      branch,
      role,
      ...(type === 'run.finished' ? {} : { content }),
      status,
    },
  };
}
