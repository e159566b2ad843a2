import type {
  Ack,
  Content,
  Decision,
  EventFrame,
  FollowOptions,
  Frame,
  NewConversation,
  Options,
  RequestOptions,
  RunFinished,
  SendOptions,
  StartedRun,
  State,
  StoredEvent,
  Welcome,
} from './types.d.ts';
import type { Replies } from './replies.d.ts';

export type * from './types.d.ts';
export type { Replies } from './replies.d.ts';

type Reply<Name extends keyof Replies> = Promise<Replies[Name]>;
type Items<Name extends keyof Replies> = Promise<Extract<Replies[Name], { items: unknown[] }>['items']>;

/** Connect to the gateway at this scheme, host and port. */
export function connect(url: string | URL, options?: Options): Promise<Client>;

/** The HTTP API. Its methods throw `ApiError`. */
export class Api {
  constructor(options: { base: string; token: () => string | null; onUnauthorized?: () => void; fetch?: typeof globalThis.fetch });
  socketUrl(): string;
  conversations(options?: { query?: string; cursor?: string | null; limit?: number }): Reply<'conversation.list'>;
  conversation(id: string): Reply<'conversation.read'>;
  renameConversation(id: string, title: string): Reply<'conversation.rename'>;
  importFile(file: Blob, start: number): Reply<'conversation.import'>;
  deleteConversation(id: string): Promise<null>;
  run(id: string): Reply<'run.read'>;
  calls(runId: string, page?: { after?: number; limit?: number }): Reply<'run.calls'>;
  workflows(): Items<'workflow.list'>;
  workflow(name: string): Reply<'workflow.read'>;
  assistants(): Items<'assistant.list'>;
  approvals(): Items<'approval.list'>;
  inputs(): Items<'input.list'>;
  usage(): Reply<'usage'>;
  files(conversationId: string): Reply<'file.list'>;
  file(conversationId: string, path: string): Promise<Blob>;
  upload(conversationId: string, path: string, body: BodyInit): Promise<Response>;
  deleteFile(conversationId: string, path: string): Promise<Response>;
  output(runId: string, toolCallId: string): Promise<Blob>;
  /** Call any operation: `parameters` are those of its path and query, `body` is sent as JSON. */
  call<Name extends keyof Replies>(
    operation: Name,
    parameters?: Record<string, unknown>,
    body?: unknown,
  ): Promise<Name extends keyof Replies ? Replies[Name] : null>;
}

/**
 * A client of one gateway. It reconnects by itself. Its requests throw `RequestError`; they are sent again after a
 * reconnection under the same id, so that each has one effect.
 */
export class Client extends Api {
  /** The last `welcome` of the gateway. */
  readonly welcome: Welcome | null;
  constructor(url: string | URL, options?: Options);
  opened(timeoutS?: number): Promise<void>;
  close(): void;
  createConversation(options?: NewConversation): Promise<string>;
  send(conversationId: string, content: Content, options?: SendOptions): Promise<StartedRun>;
  cancel(run: StartedRun | string, options?: RequestOptions & { reason?: string }): Promise<Ack>;
  reply(approvalId: string, decision: Decision): Promise<Ack>;
  provide(inputId: string, value?: unknown, options?: RequestOptions & { decline?: boolean }): Promise<Ack>;
  startWorkflow(
    workflow: string,
    parameters?: Record<string, unknown>,
    options?: RequestOptions & { conversationId?: string },
  ): Promise<StartedRun>;
  follow<Live extends boolean = false>(
    conversationId: string,
    options?: Omit<FollowOptions, 'live'> & { live?: Live },
  ): AsyncIterableIterator<Live extends true ? EventFrame : StoredEvent>;
  outcome(run: StartedRun | string, options?: { signal?: AbortSignal }): Promise<RunFinished>;
  request(frame: Frame, options?: RequestOptions): Promise<Ack>;
}

/** The id of the conversation whose log contains a run. */
export function conversationOf(runId: string): string;

/** A new id, unique enough for an idempotency key. */
export function newId(prefix?: string): string;

/** A websocket connection with hello, heartbeat and reconnection, for programs that handle frames themselves. */
export class Connection {
  constructor(options: {
    open: (protocol: string) => unknown;
    hello: () => Record<string, unknown>;
    onWelcome: (frame: Welcome) => void;
    onFrame: (frame: Frame) => void;
    onState: (state: State) => void;
  });
  readonly ready: boolean;
  connect(): void;
  close(): void;
  request(frame: Frame, options?: { id?: string; resend?: boolean; timeoutS?: number }): Promise<Ack>;
}

/** A request failed: by an error of the gateway, or by a `code` of the client: `timeout`, `offline`, `closed`, `unauthorized`, `outdated`, `stopped`. */
export class RequestError extends Error {
  constructor(failure: { code: string; message: string });
  readonly code: string;
  readonly retryable: boolean;
  readonly retryAfterS: number | null;
  readonly details: Record<string, unknown> | null;
}

/** An HTTP response that is not a success; `status` 0 if no response arrived. */
export class ApiError extends Error {
  constructor(status: number, message: string, error?: { code?: string | null; field?: string | null });
  readonly status: number;
  readonly code: string | null;
  /** The field of the request that was refused. */
  readonly field: string | null;
}

/** The log was restored from a backup, so earlier events may differ. Follow it again from 0. */
export class LogRestored extends Error {
  constructor(conversationId: string);
  readonly conversationId: string;
}
