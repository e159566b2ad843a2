/** Prepare picked files and folders (skills) as files of an assistant. */

import { dataUrl } from './attachments.mjs';

export const SKILLS = '.claude/skills';
const DESCRIPTION = 'SKILL.md';

/** @param {File} file @returns {Promise<AssistantFile>} scripts are executable; content that is not text is encoded as base64 */
export async function assistantFile(file, path = file.name) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const isScript = bytes[0] === 0x23 && bytes[1] === 0x21;
  return { path, ...(await contentOf(file, bytes)), ...(isScript ? { executable: true } : {}) };
}

async function contentOf(/** @type {File} */ file, /** @type {Uint8Array<ArrayBuffer>} */ bytes) {
  try {
    return { content: new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes) };
  } catch {
    return { content: (await dataUrl(file)).split(',')[1], encoding: /** @type {const} */ ('base64') };
  }
}

/**
 * The files of a picked folder, below the folder of skills.
 *
 * @param {File[]} picked whose paths begin with the name of the folder
 * @returns {Promise<AssistantFile[] | null>} null if the folder is not a skill
 */
export async function skillFiles(picked) {
  const folder = folderOf(picked);
  if (!picked.some((file) => file.webkitRelativePath === `${folder}/${DESCRIPTION}`)) return null;
  return Promise.all(picked.map((file) => assistantFile(file, `${SKILLS}/${file.webkitRelativePath}`)));
}

/** The name of a picked folder. @param {File[]} picked */
export function folderOf([first]) {
  return first?.webkitRelativePath.split('/')[0] ?? '';
}

/**
 * The files with other files added; an added file replaces a file of the same path.
 *
 * @param {AssistantFile[]} files
 * @param {AssistantFile[]} added
 */
export function withFiles(files, added) {
  const paths = new Set(added.map(({ path }) => path));
  return [...files.filter(({ path }) => !paths.has(path)), ...added];
}
