/** The form of an MCP server: its initial values, the body that it sends, and the field of an error. */

/** @type {ServerDraft} */
const EMPTY = {
  id: '',
  type: 'http',
  url: '',
  command: '',
  secrets: [],
  description: '',
  trusted: false,
  signIn: 'tenant',
  timeoutS: '60',
};

/** The form of a server. @param {McpServer} [server] as the gateway describes it; without one, the form is empty @returns {ServerDraft} */
export function draftOf(server) {
  if (!server) return EMPTY;
  const { type, url, command, secrets } = server.transport;
  return {
    id: server.id,
    type,
    url: url ?? '',
    command: commandOf(command ?? []),
    secrets: secrets.map((name) => ({ name, value: '' })),
    description: server.description,
    trusted: server.trusted,
    signIn: server.sign_in,
    timeoutS: String(server.timeout_s),
  };
}

/**
 * Whether the stored values of a server may stay. They are never sent to another address or program.
 *
 * @param {McpServer | undefined} server
 * @param {ServerDraft} draft
 */
export function placeStays(draft, server) {
  if (draft.type !== server?.transport.type) return false;
  return draft.type === 'http'
    ? draft.url === server?.transport.url
    : String(wordsOf(draft.command)) === String(server?.transport.command);
}

/**
 * Whether a secret without a value keeps the stored one.
 *
 * @param {{name: string}} secret
 * @param {ServerDraft} draft
 * @param {McpServer | undefined} server
 */
export function valueStays({ name }, draft, server) {
  return placeStays(draft, server) && Boolean(server?.transport.secrets.includes(name));
}

/**
 * The body that a form sends. An unchanged value is null.
 *
 * @param {McpServer} [server] the stored server that it changes
 * @param {ServerDraft} draft
 */
export function bodyOf(draft, server) {
  const { id, type, url, command, description, trusted, signIn, timeoutS } = draft;
  const values = Object.fromEntries(
    draft.secrets.map((secret) => [
      secret.name,
      secret.value === '' && valueStays(secret, draft, server) ? null : secret.value,
    ]),
  );
  const transport =
    type === 'http' ? { type, url, headers: values } : { type, command: wordsOf(command), env: values };
  const ofUsers = type === 'http' && signIn === 'user' ? { sign_in: signIn } : {};
  const fields = { transport, description, trusted, ...ofUsers, timeout_s: Number(timeoutS) };
  return server ? { ...fields, revision: server.revision } : { id, ...fields };
}

/** @type {[RegExp, string][]} */
const CONTROLS = [
  [/^id$/, 'id'],
  [/^transport\.url$/, 'url'],
  [/^transport\.command/, 'command'],
  [/^transport\.(?:headers|env)/, 'secrets'],
  [/^description$/, 'description'],
  [/^timeout_s$/, 'timeoutS'],
];

/** The control of an error; null if the error concerns the whole form. @param {{field?: string | null}} error */
export function controlOf({ field }) {
  return CONTROLS.find(([pattern]) => pattern.test(field ?? ''))?.[1] ?? null;
}

/** The words of a command, separated by spaces outside quotes. @param {string} command */
export function wordsOf(command) {
  const words = command.match(/(?:"[^"]*"|'[^']*'|[^\s"'])+/g) ?? [];
  return words.map((word) => word.replaceAll(/"([^"]*)"|'([^']*)'/g, '$1$2'));
}

/** The command of words, for which `wordsOf` returns the same words. @param {string[]} words */
export function commandOf(words) {
  return words
    .map((word) =>
      /^[^\s"']+$/.test(word)
        ? word
        : word
            .split('"')
            .map((part) => `"${part}"`)
            .join(`'"'`),
    )
    .join(' ');
}
