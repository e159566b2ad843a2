import type { ChatSend, ConversationSettings, EventFrame, ItemDecision, RunOverrides } from './frames.d.ts';

export type * from './frames.d.ts';

/** An event of a conversation's log. Its `type` selects the type of its `data`. */
export type StoredEvent = Extract<EventFrame, { seq: number }>;
/** Live text or output. It may be lost; a stored event contains the complete text. */
export type LiveFrame = Exclude<EventFrame, { seq: number }>;
/** `final`: messages, approval requests and outcomes; `steps`: also calls and results; `full`: also live output and reasoning. */
export type Detail = 'final' | 'steps' | 'full';

/** A frame to send, without its id, or one that was received and whose type is not known. */
export type Frame = { type: string; [field: string]: unknown };

/** What `onState` receives; after the last three phases the client does not reconnect. */
export type State = {
  phase: 'connecting' | 'online' | 'offline' | 'unauthorized' | 'outdated' | 'stopped';
  /** Seconds until the next attempt. */
  retryInS?: number;
  reason?: string;
  /** The close code of the websocket. */
  code?: number;
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

export type NewConversation = RequestOptions & {
  title?: string;
  assistant?: string;
  model?: string;
  systemPromptId?: string;
  settings?: ConversationSettings;
};

export type SendOptions = RequestOptions & {
  mode?: 'queue' | 'steer';
  overrides?: RunOverrides;
  variables?: Record<string, unknown>;
  attachments?: string[];
};

export type Decision = RequestOptions & {
  all?: 'approve' | 'reject';
  decisions?: ItemDecision[];
  remember?: 'run' | 'conversation' | null;
  on_reject?: 'abort' | 'feedback';
  digests?: string[];
};

export type Content = ChatSend['content'];
export type StartedRun = { runId: string; messageId: string | null; conversationId: string };

export type FollowOptions = {
  /** Only events after this number; 0, the default, for all. */
  afterSeq?: number;
  detail?: Detail;
  /** Also text and output while they are produced; these may be lost. */
  live?: boolean;
  signal?: AbortSignal;
};
