/** Files that a user adds to a message: images for models that see them, and each file in the workspace. */

/** Bytes of the images of one message: a frame has at most 256 KiB. */
const IMAGES_BYTES = 160 * 1024;
const LONGEST_PX = 1568;
const FOLDER = 'uploads';

/** Image types that models accept. */
const SEEN = /^image\/(?:png|jpeg|gif|webp)$/;

export const isImage = (file) => SEEN.test(file.type);

/** The text that a user wrote. @param {string | {type: string, text?: string}[]} content */
export function writtenText(content) {
  if (typeof content === 'string') return content;
  return content
    .filter((part) => part.type === 'text')
    .map((part) => part.text)
    .join('\n\n');
}

/** Content with another text and the same attachments. */
export function withText(content, text) {
  if (typeof content === 'string') return text;
  return [{ type: 'text', text }, ...content.filter((part) => part.type !== 'text')];
}

/** Where a file is stored. Names of pasted images repeat, so each gets a number. @param {Set<string>} taken */
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
  const images = files.filter(isImage);
  const parts = text ? [{ type: 'text', text }] : [];
  for (const file of files) {
    const path = pathFor(file, taken);
    await api.upload(conversationId, path, file);
    if (isImage(file)) parts.push({ type: 'image', url: await shrunk(file, IMAGES_BYTES / images.length) });
    parts.push({ type: 'file', path });
  }
  return parts;
}

/** Store one file in the workspace of a conversation; return its path. */
export async function stored(api, conversationId, file) {
  const path = pathFor(file, await pathsOf(api, conversationId));
  await api.upload(conversationId, path, file);
  return path;
}

async function pathsOf(api, conversationId) {
  const listed = await api.files(conversationId).catch(() => ({ items: [] }));
  return new Set(listed.items.map((item) => item.path));
}

/** An image as a data URL of at most about `limit` characters: smaller, as JPEG, if it is larger. */
async function shrunk(file, limit) {
  const bitmap = await createImageBitmap(file);
  let side = Math.min(LONGEST_PX, Math.max(bitmap.width, bitmap.height));
  if (file.size * 1.4 < limit && side === Math.max(bitmap.width, bitmap.height)) return dataUrl(file);
  for (;;) {
    const scale = side / Math.max(bitmap.width, bitmap.height);
    const canvas = new OffscreenCanvas(
      Math.max(1, Math.round(bitmap.width * scale)),
      Math.max(1, Math.round(bitmap.height * scale)),
    );
    const context = canvas.getContext('2d');
    context.fillStyle = '#fff';
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const blob = await canvas.convertToBlob({ type: 'image/jpeg', quality: 0.8 });
    if (blob.size * 1.4 < limit || side < 64) return dataUrl(blob);
    side = Math.round(side * 0.75);
  }
}

/** A blob as a data URL. @param {Blob} blob @returns {Promise<string>} */
export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
