import type {
  Ack,
  ApprovalDecision,
  ChatSend,
  ConversationSettings,
  EventFrame,
  ItemDecision,
  RunFinished,
  RunOverrides,
  TrackedCall,
  Welcome,
} from './frames.d.ts';

export type * from './frames.d.ts';

/** An event of a conversation's log. Its `type` selects the type of its `data`. */
export type StoredEvent = Extract<EventFrame, { seq: number }>;
/** Live text or output. It may be lost; a stored event contains the complete text. */
export type LiveFrame = Exclude<EventFrame, { seq: number }>;
/** `final`: messages, approval requests and outcomes; `steps`: also calls and results; `full`: also live output and reasoning. */
export type Detail = 'final' | 'steps' | 'full';

/** What `onState` receives; after the last three phases the client does not reconnect. */
export type State = {
  phase: 'connecting' | 'online' | 'offline' | 'unauthorized' | 'outdated' | 'stopped';
  /** Seconds until the next attempt. */
  retryInS?: number;
  reason?: string;
};

export type Options = {
  token?: string | null | (() => string | null);
  /** The client's name in the gateway's logs. */
  name?: string;
  connectTimeoutS?: number;
  /** The WebSocket class. Node 20 has none and needs the class of the package `ws`. */
  WebSocket?: new (url: string, protocol: string) => unknown;
  fetch?: typeof globalThis.fetch;
  onState?: (state: State) => void;
};

export type RequestOptions = {
  /** The idempotency key: a repeated request with the same id has no further effect. */
  requestId?: string;
  /** Seconds until the request fails, reconnections included; 60 by default. */
  timeoutS?: number;
};

export type StartedRun = { runId: string; messageId: string | null; conversationId: string };

export type FollowOptions = {
  /** Only events after this number; 0, the default, for all. */
  afterSeq?: number;
  detail?: Detail;
  signal?: AbortSignal;
};

/** A page of a list. `next` is the cursor of the next page. */
export type Page = { items: Array<Record<string, unknown>>; next: string | null };

/** Connect to the gateway at this scheme, host and port. */
export function connect(url: string | URL, options?: Options): Promise<Client>;

/** The HTTP API. Its methods throw `ApiError`. */
export class Api {
  constructor(options: { base: string; token: () => string | null; onUnauthorized?: () => void; fetch?: typeof globalThis.fetch });
  socketUrl(): string;
  conversations(options?: { query?: string; cursor?: string | null; limit?: number }): Promise<Page>;
  conversation(id: string): Promise<Record<string, unknown>>;
  renameConversation(id: string, title: string): Promise<Record<string, unknown>>;
  workflow(name: string): Promise<Record<string, unknown>>;
  createWorkflow(workflow: object): Promise<Record<string, unknown>>;
  replaceWorkflow(name: string, workflow: object): Promise<Record<string, unknown>>;
  deleteWorkflow(name: string): Promise<null>;
  parseWorkflow(text: string): Promise<Record<string, unknown>>;
  assistantRevisions(id: string): Promise<Array<Record<string, unknown>>>;
  assistantRevision(id: string, revision: number): Promise<Record<string, unknown>>;
  restoreAssistant(id: string, revision: number): Promise<Record<string, unknown>>;
  importConversation(exported: { conversation?: object; events: object[] }): Promise<Record<string, unknown>>;
  generateTitle(id: string): Promise<Record<string, unknown>>;
  deleteConversation(id: string): Promise<null>;
  run(id: string): Promise<Record<string, unknown>>;
  calls(
    runId: string,
    page?: { after?: number; limit?: number },
  ): Promise<{ items: Array<TrackedCall & { tool_call_id: string }>; next: number | null; total: number }>;
  workflows(): Promise<Array<Record<string, unknown>>>;
  approvals(): Promise<Array<Record<string, unknown>>>;
  setAside(approvalId: string): Promise<null>;
  pushOffer(): Promise<{ public_key: string }>;
  registerDevice(subscription: { endpoint: string; keys: { p256dh: string; auth: string }; origin?: string }): Promise<Record<string, unknown>>;
  removeDevice(id: string): Promise<null>;
  policy(): Promise<Record<string, unknown>>;
  replacePolicy(policy: Record<string, unknown>): Promise<Record<string, unknown>>;
  remembered(): Promise<Array<Record<string, unknown>>>;
  withdrawRemembered(approvalId: string): Promise<null>;
  inputs(): Promise<Array<Record<string, unknown>>>;
  assistants(): Promise<Array<Record<string, unknown>>>;
  tools(): Promise<Array<Record<string, unknown>>>;
  usage(): Promise<Record<string, unknown>>;
  files(conversationId: string): Promise<{ items: Array<{ path: string; size: number }> }>;
  file(conversationId: string, path: string): Promise<Blob>;
  upload(conversationId: string, path: string, body: BodyInit): Promise<Response>;
  deleteFile(conversationId: string, path: string): Promise<Response>;
  output(runId: string, toolCallId: string): Promise<Blob>;
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
  createConversation(
    options?: RequestOptions & {
      title?: string;
      assistant?: string;
      model?: string;
      systemPromptId?: string;
      settings?: ConversationSettings;
    },
  ): Promise<string>;
  send(
    conversationId: string,
    content: ChatSend['content'],
    options?: RequestOptions & {
      mode?: 'queue' | 'steer';
      overrides?: RunOverrides;
      variables?: Record<string, unknown>;
      attachments?: string[];
    },
  ): Promise<StartedRun>;
  cancel(run: StartedRun | string, options?: RequestOptions & { reason?: string }): Promise<Ack>;
  reply(
    approvalId: string,
    decision: RequestOptions & {
      all?: 'approve' | 'reject';
      decisions?: ItemDecision[];
      remember?: ApprovalDecision['remember'];
      digests?: string[];
    },
  ): Promise<Ack>;
  provide(inputId: string, value: unknown, options?: RequestOptions): Promise<Ack>;
  startWorkflow(
    workflow: string,
    parameters?: Record<string, unknown>,
    options?: RequestOptions & { conversationId?: string },
  ): Promise<StartedRun>;
  follow(conversationId: string, options: FollowOptions & { live: true }): AsyncIterableIterator<StoredEvent | LiveFrame>;
  follow(conversationId: string, options?: FollowOptions & { live?: false }): AsyncIterableIterator<StoredEvent>;
  outcome(run: StartedRun | string, options?: { signal?: AbortSignal }): Promise<RunFinished>;
  request(frame: { type: string; [field: string]: unknown }, options?: RequestOptions): Promise<Ack>;
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
    onFrame: (frame: { type: string; [field: string]: unknown }) => void;
    onState: (state: State) => void;
  });
  readonly ready: boolean;
  connect(): void;
  close(): void;
  request(
    frame: { type: string; [field: string]: unknown },
    options?: { id?: string; resend?: boolean; timeoutS?: number },
  ): Promise<{ type: string; [field: string]: unknown }>;
}

/** A request failed: by an error of the gateway, or by a `code` of the client: `timeout`, `offline`, `closed`, `unauthorized`, `outdated`, `stopped`. */
export class RequestError extends Error {
  readonly code: string;
  readonly retryable: boolean;
  readonly retryAfterS: number | null;
  readonly details: Record<string, unknown> | null;
}

/** An HTTP response that is not a success; `status` 0 if no response arrived. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string | null;
}

/** The log was restored from a backup, so earlier events may differ. Follow it again from 0. */
export class LogRestored extends Error {
  readonly conversationId: string;
}
