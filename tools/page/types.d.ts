/** The types that the page's modules share. They are global: a module names them without an import. */

type Api = import('../../services/gateway/banksman/gateway/interfaces/page/static/client/api.mjs').Api;
type Store = import('../../services/gateway/banksman/gateway/interfaces/page/static/store.mjs').Store;
type Replies = import('../../services/gateway/banksman/gateway/interfaces/page/static/client/replies.d.ts').Replies;
type EventFrame = import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').EventFrame;
type EventType = EventFrame['type'];
type FrameOf<Type extends EventType> = Extract<EventFrame, { type: Type }>;
type Failure = Error & { code?: string | null; status?: number; field?: string | null };
type Key = import('../../services/gateway/banksman/gateway/interfaces/page/static/strings.mjs').Key;
type Shown = import('preact').ComponentChild;
type Signal<T> = import('@preact/signals').Signal<T>;
type Json = Record<string, unknown>;

/** An event of a control. */
type Of<Control extends EventTarget, Kind extends Event = Event> = Kind & { target: Control; currentTarget: Control };
type InputOf = Of<HTMLInputElement>;

// ---- what the gateway replies

type Item<Name extends keyof Replies> = Replies[Name] extends { items: (infer One)[] } ? One : never;
type Assistant = Replies['assistant.read'];
type Workflow = Replies['workflow.read'];
type McpServer = Replies['mcp.read'];
type Step = Item<'step.list'>;
type StepDetail = Replies['step.read'];
type StoredRun = Item<'run.list'>;
type ToolView = Item<'tool.list'>;
type ModelView = Item<'model.list'>;
type Rule = Replies['policy.read']['rules'][number];
type Policy = Replies['policy.read'];
type Schedule = Item<'schedule.list'>;
type ApprovalItem = import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').ApprovalItem;
type Rights = 'chat' | 'approve' | 'admin' | 'operator';

// ---- a conversation, as its events are folded

type Content = import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').Content;
type Branch = { after: string | null };

type Conversation = {
  id: string;
  title: string | null;
  status: string | null;
  lastSeq: number;
  error: string | null;
  /** Whether all events up to the present one were received. */
  replayed: boolean;
  /** Whether only the newest runs were received, and the earlier events are being read. */
  earlier: boolean;
  deleted: boolean;
  runs: Run[];
  orphans: PendingApproval[];
  cuts: { after: string | null; text: string }[];
  links: (WorkflowLink & { id: string; after: string | null })[];
  cancelledEarly: (string | null)[];
  lastAt: string | null;
};

type PendingApproval = import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').ApprovalRequested & { run_id: string; iteration?: number };
type WorkflowLink = import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').WorkflowLinked;

type Run = {
  id: string;
  status: string;
  position: number | null;
  prompt: { id: string | null; text: string; content: Content } | null;
  branch: Branch | null;
  /** Whether the run only compacts the conversation. */
  compact: boolean;
  requestedAt: string | null;
  startedAt: string | null;
  model: string | null;
  iteration: number;
  maxIterations: number | null;
  cancelling: boolean;
  /** Whether a file states it: nothing here decided or ran what it shows. */
  imported: boolean;
  progress: import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').WorkflowProgress | null;
  /** The pause of the model request, with its end `until` by the clock of the browser in milliseconds; any later frame ends it. */
  waiting: { reason: string; until: number } | null;
  entries: Entry[];
  finished: import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').RunFinished | null;
  finishedAt: string | null;
  /** Whether the log has an event of the run. */
  logged: boolean;
};

/** A message of the user or the agent; a `draft` of one is not complete. */
type Message = {
  kind: 'message' | 'reasoning';
  id: string;
  role?: 'user' | 'assistant';
  text: string;
  complete: boolean;
  iteration?: number | null;
  /** Characters before the beginning of a draft. */
  skipped?: number;
  /** Whether a part of a draft is missing. */
  gap?: boolean;
  finishReason?: string | null;
  partial?: boolean;
  isResult?: boolean;
  unstored?: boolean;
  endedBy?: string;
  /** Of a reasoning: whether the log has only its beginning, and its duration. */
  more?: boolean;
  seconds?: number;
};

type Call = {
  kind: 'call';
  id: string;
  name: string;
  arguments: Json;
  terminate: boolean;
  requiresApproval: boolean;
  iteration: number;
  status: string;
  output: string;
  runner: string | null;
  result: import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').ToolResult | null;
  startedAt?: string | null;
  edited?: boolean;
};

/** An approval request, in a run or in the inbox. */
type Asked = {
  id: string;
  items: ApprovalItem[];
  first: import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').ApprovedFirst | null;
  terms: import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').ApprovalTerms | null;
  on_reject?: 'abort' | 'feedback';
  expiresAt: string | null;
  requestedAt: string | null;
  resolved: import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').ApprovalResolved | null;
};
type Approval = Asked & { kind: 'approval'; iteration: number | null };

/** A request in the inbox. */
type Waiting = Asked & {
  conversationId: string;
  runId: string;
  title: string;
  requestedBy: string;
  /** False for a request that the user set aside, and for one that will be escalated to the user later. */
  forYou: boolean;
  escalated: boolean;
  escalatesAt: string | null;
};

type Wanted = {
  kind: 'input';
  id: string;
  message: string;
  schema: Json;
  server: string | null;
  expiresAt: string;
  resolved: import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').InputResolved | null;
};
type Changed = { kind: 'changed'; id: string; paths: import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').PathChange[]; more: number };
type Notice = { kind: 'notice'; id: string; tone: 'warning' | 'info'; text: string; detail: boolean };
type Linked = WorkflowLink & { kind: 'workflow'; id: string };
type Entry = Message | Call | Approval | Wanted | Changed | Notice | Linked;

/** A JSON Schema, as far as forms know it. */
type Schema = {
  type?: string | string[];
  title?: string;
  description?: string;
  default?: unknown;
  enum?: unknown[];
  const?: unknown;
  format?: string;
  pattern?: string;
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: boolean | Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  $ref?: string;
  nullable?: boolean;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  maxItems?: number;
  'x-hint'?: string;
};

// ---- views

type Welcome = import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').Welcome;
type State = import('../../services/gateway/banksman/gateway/interfaces/page/static/client/types.d.ts').State;
type ConnectionState = State & { since?: number; optional?: boolean };
type Toast = { key: string; text: string; tone: string };
/** A workflow's form with its first values. */
type FilledForm = { name: string; parameters?: Json; problems?: Replies['workflow.parse']['problems'] };
/** A list in a store. */
type Listed<One> = { items: One[]; loading: boolean; error: string | null };
type Listing = Item<'conversation.list'>;

type Provider = Item<'identity_provider.list'>;
type ApiKey = Item<'key.list'>;
type ModelServer = Item<'model_server.list'>;
type Letter = Item<'dead_letter.list'>;
type FormField = import('../../services/gateway/banksman/gateway/interfaces/page/static/forms.mjs').FormField;

/** What a template contains; its functions handle events. */
type TemplateValue = {} | null | undefined | ((event: PageEvent) => unknown);
type PageEvent = Omit<KeyboardEvent & InputEvent & DragEvent & ToggleEvent & ClipboardEvent, 'target' | 'currentTarget'> & {
  target: Control;
  currentTarget: Control & HTMLDetailsElement;
};
type Control = HTMLInputElement & HTMLSelectElement & HTMLTextAreaElement;
type ContentPart = Exclude<Content, string>[number];
type FileChange = ReturnType<typeof import('../../services/gateway/banksman/gateway/interfaces/page/static/workspace.mjs').changesOf>[number];
type ServerDraft = {
  id: string;
  type: 'stdio' | 'http';
  url: string;
  command: string;
  secrets: { name: string; value: string }[];
  description: string;
  trusted: boolean;
  signIn: 'tenant' | 'user';
  timeoutS: string;
};
type WorkflowDraft = import('../../services/gateway/banksman/gateway/interfaces/page/static/workflow_draft.mjs').Draft;
type Decision = 'approve' | 'reject';
type Edit = import('../../services/gateway/banksman/gateway/interfaces/page/static/decisions.mjs').Edit;
type AssistantFile = { path: string; content: string | null; encoding?: 'utf-8' | 'base64'; executable?: boolean };
type WorkspaceFile = Item<'file.list'>;
type Folder = { name: string; path: string; folders: Folder[]; files: WorkspaceFile[] };
/** A line of a difference. */
type Row = { kind: 'same' | 'added' | 'removed' | 'skipped'; text: string };
type McpTool = McpServer['changes'][number] | (McpServer['tools'][number] & { replaces?: null });
/** What an account at a provider needs. */
type Claim = { kind: 'tenant' | 'role'; value: string; claim: string };
