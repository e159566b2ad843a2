/** Files that a user adds to a message: images for models that see them, and each file in the workspace. */

/** Bytes of the images inside of one message, which has at most 256 KiB. Larger ones are sent as files. */
const IMAGES_BYTES = 160 * 1024;
const FOLDER = 'uploads';

/** Image types that models accept. */
const SEEN = /^image\/(?:png|jpeg|gif|webp)$/;
const SHOWN = /\.(?:png|jpe?g|gif|webp)$/i;

export const isImage = (/** @type {File} */ file) => SEEN.test(file.type);

/**
 * The files of a message that browsers show as images, without those that the message itself has as data.
 *
 * @param {ContentPart[]} content
 */
export function imageFiles(content) {
  return content
    .filter((part, at) => part.type === 'file' && SHOWN.test(part.path) && content[at - 1]?.type !== 'image')
    .map((part) => /** @type {{path: string}} */ (part).path);
}

/** The text that a user wrote. @param {string | {type: string, text?: string}[]} content */
export function writtenText(content) {
  if (typeof content === 'string') return content;
  return content
    .filter((part) => part.type === 'text')
    .map((part) => part.text)
    .join('\n\n');
}

/** Content with another text and the same attachments. @param {Content} content @param {string} text @returns {Content} */
export function withText(content, text) {
  if (typeof content === 'string') return text;
  return [{ type: 'text', text }, ...content.filter((part) => part.type !== 'text')];
}

/**
 * Where a file is stored. Names of pasted images repeat, so each gets a number.
 *
 * @param {Set<string>} taken
 * @param {File} file
 */
export function pathFor(file, taken) {
  const name = file.name.replaceAll(/[^\p{L}\p{N}._ -]/gu, '_') || 'file';
  const dot = name.lastIndexOf('.');
  const [stem, suffix] = dot > 0 ? [name.slice(0, dot), name.slice(dot)] : [name, ''];
  let path = `${FOLDER}/${name}`;
  for (let number = 2; taken.has(path); number += 1) path = `${FOLDER}/${stem}-${number}${suffix}`;
  taken.add(path);
  return path;
}

/**
 * Store files in the workspace of a conversation and return the message with them.
 *
 * @param {import('./client/api.mjs').Api} api
 * @param {{conversationId: string, text: string, files: File[], store?: boolean}} message
 */
export async function attached(api, { conversationId, text, files }) {
  const taken = await pathsOf(api, conversationId);
  /** @type {ContentPart[]} */
  const parts = text ? [{ type: 'text', text }] : [];
  let room = IMAGES_BYTES;
  for (const file of files) {
    const path = pathFor(file, taken);
    await api.upload(conversationId, path, file);
    // The agent reads a larger image from its file, at the size that the model's vendor takes.
    if (isImage(file) && file.size * 1.4 < room) {
      const url = await dataUrl(file);
      room -= url.length;
      parts.push({ type: 'image', url });
    }
    parts.push({ type: 'file', path });
  }
  return parts;
}

/**
 * Store one file in the workspace of a conversation; return its path.
 *
 * @param {Api} api
 * @param {string} conversationId
 * @param {File} file
 */
export async function stored(api, conversationId, file) {
  const path = pathFor(file, await pathsOf(api, conversationId));
  await api.upload(conversationId, path, file);
  return path;
}

async function pathsOf(/** @type {Api} */ api, /** @type {string} */ conversationId) {
  const listed = await api.files(conversationId).catch(() => ({ items: [] }));
  return new Set(listed.items.map((item) => item.path));
}

/** A blob as a data URL. @param {Blob} blob @returns {Promise<string>} */
export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(/** @type {string} */ (reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
