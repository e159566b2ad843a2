"""Names of NATS (API subjects, headers, error codes) and of our streams, consumers, buckets and stores."""

from __future__ import annotations

from typing import Final

EVENTS: Final = "EVENTS"
RUNS: Final = "RUNS"
APPROVALS: Final = "APPROVALS"
RESULTS: Final = "RESULTS"
WORKFLOWS: Final = "WORKFLOWS"
WEBHOOK_QUEUE: Final = "WEBHOOKS"
TIMERS: Final = "TIMERS"
DEAD: Final = "DEAD"
ADVISORIES: Final = "ADVISORIES"
AUDIT: Final = "AUDIT"
RESTORE: Final = "RESTORE"
"""An empty stream that exists from the beginning of a restore to its end."""

AGENTS: Final = "agents"
SIGNALS: Final = "signals"
APPROVAL_REPLIES: Final = "approval-replies"
FIRED_TIMERS: Final = "timers"

TOOLS: Final = "tools"
ASSISTANTS: Final = "assistants"
ASSISTANT_REVISIONS: Final = "assistant-revisions"
PROMPTS: Final = "prompts"
WORKFLOW_DEFINITIONS: Final = "workflows"
CONVERSATIONS: Final = "conversations"
OWNERS: Final = "owners"
RUNNERS: Final = "runners"
IDEMPOTENCY: Final = "idempotency"
USAGE: Final = "usage"
HEADS: Final = "heads"
DAMAGED: Final = "damaged"
SECRETS: Final = "secrets"
KEYS: Final = "keys"
WEBHOOKS: Final = "webhooks"
"""The bucket of webhooks, and the consumers that serve them."""
DELIVERIES: Final = "deliveries"
POLICIES: Final = "policies"
"""The bucket of the tenants' approval policies, including whether decisions may be remembered."""
MCP: Final = "mcp"
MCP_ACCOUNTS: Final = "mcp-accounts"
"""The bucket of what users got by signing in at servers of the Model Context Protocol."""
TENANT_SECRETS: Final = "tenant-secrets"
MODEL_SERVERS: Final = "model-servers"
PEOPLE: Final = "conversation-people"
"""The bucket of the conversations that are limited to people."""
INSTRUCTIONS: Final = "instructions"
"""The bucket of what users want of every reply."""
SCHEDULES: Final = "schedules"
"""The bucket of schedules, and the consumer of due schedules."""

OUTPUTS: Final = "outputs"
WORKSPACES: Final = "workspaces"
RUNNER_STORES: Final = (OUTPUTS, WORKSPACES)
"""The object stores of account RUN, in which each runner has its own objects."""
SNAPSHOTS: Final = "snapshots"
ARCHIVE: Final = "archive"
"""The object store of the commits of old conversations."""

MSG_ID: Final = "Nats-Msg-Id"
EXPECTED_LAST_SUBJECT_SEQ: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_ON: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_LAST_MSG_ID: Final = "Nats-Expected-Last-Msg-Id"
SCHEDULE: Final = "Nats-Schedule"
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
SEQUENCE: Final = "Nats-Sequence"
NUM_PENDING: Final = "Nats-Num-Pending"
SUBJECT: Final = "Nats-Subject"
MSG_SIZE: Final = "Nats-Msg-Size"
"""Bytes of the payload, in messages of a consumer that delivers headers only."""
TIME_STAMP: Final = "Nats-Time-Stamp"
MARKER_REASON: Final = "Nats-Marker-Reason"
TTL: Final = "Nats-TTL"
ROLLUP: Final = "Nats-Rollup"
KV_OPERATION: Final = "KV-Operation"
STATUS: Final = "Status"
DESCRIPTION: Final = "Description"

FIRST_SEQ: Final = "Banksman-First-Seq"
"""Sequence number of the first event of a commit."""
LAST_SEQ: Final = "Banksman-Last-Seq"
"""Sequence number of the last event of a commit."""
PREV: Final = "Banksman-Prev"
"""Stream sequence of the previous commit of the log; 0 for the first."""
LOG_EPOCH: Final = "Banksman-Log-Epoch"
SNAPSHOT: Final = "Banksman-Snapshot"
"""Stream sequence of the log's newest snapshot; 0 for none."""
CONSUMED: Final = "Banksman-CommitUsage"
"""Tokens and cost of the model requests of a commit; missing if it has none."""
ACK: Final = "Banksman-Ack"
"""Where a runner or tool server also receives the stream's acknowledgement: `{inbox}.{number}`, or
`{inbox}.{number}.only` if the agent need not reply when the stream does."""

STATUS_NO_RESPONDERS: Final = "503"
STATUS_END_OF_BATCH: Final = "204"
STATUS_NOT_FOUND: Final = "404"

# https://github.com/nats-io/nats-server/blob/main/server/errors.json
CODE_RESOURCES: Final = frozenset({10002, 10023, 10028, 10047})
"""The memory or storage of the account or the server is exhausted."""
CODE_MESSAGE_TOO_LARGE: Final = 10054
CODE_WRONG_LAST_SEQUENCE: Final = 10071
CODE_DUPLICATE_UNDER_WAY: Final = 10158
"""A cluster is still replicating a message with the same id."""
CODE_WRITE_UNDER_WAY: Final = 10164
"""A cluster is still replicating another message on the subject."""
CODE_STORE_FAILED: Final = 10077
"""A write-once subject is taken, the stream is full, or the disk fails; only the description differs."""
CODE_NO_MESSAGE: Final = 10037
CODE_NO_PEERS: Final = 10005
"""Too few servers of the cluster are reachable for the requested replicas."""
CODE_NOT_ENABLED: Final = 10039
"""The account has no JetStream."""
CODE_STREAM_NOT_FOUND: Final = 10059
CODE_CONSUMER_NOT_FOUND: Final = 10014
CODE_MORE_REPLICAS_THAN_STREAM: Final = 10126


def api(verb: str, *names: str) -> str:
    """Return a subject of the JetStream API: `api("STREAM.INFO", "EVENTS")`."""
    return ".".join(("$JS.API", verb, *names))


def runner_api(verb: str, *names: str) -> str:
    """Return the subject by which account APP requests the JetStream API of account RUN."""
    return ".".join(("runners.api", verb, *names))


def acknowledgements(stream: str, durable: str) -> str:
    """Return the subjects of the acks of a consumer."""
    return f"$JS.ACK.{stream}.{durable}.>"


_STREAM_BY_TOKEN: Final = {
    "conversation": EVENTS,
    "run": RUNS,
    "approval": APPROVALS,
    "tool": RESULTS,
    "workflow": WORKFLOWS,
    "webhook": WEBHOOK_QUEUE,
    "timer": TIMERS,
    "schedule": TIMERS,
    "dead": DEAD,
    "audit": AUDIT,
}


def stream_of(subject: str) -> str:
    """Return the stream that stores one of our subjects."""
    first, second = subject.split(".")[:2]
    match first:
        case "$KV":
            return kv_stream(second)
        case "$O":
            return object_stream(second)
        case _:
            return _STREAM_BY_TOKEN.get(first, first)


def kv_stream(bucket: str) -> str:
    return f"KV_{bucket}"


def kv_subject(bucket: str, key: str) -> str:
    """Return the subject of a key; the key `>` matches all keys of the bucket."""
    return f"$KV.{bucket}.{key}"


def object_stream(store: str) -> str:
    return f"OBJ_{store}"


def object_chunks(store: str, upload: str) -> str:
    """Return the subject of the chunks of one upload."""
    return f"$O.{store}.C.{upload}"


def object_meta(store: str, name_token: str) -> str:
    """Return the subject of the description of an object; `>` matches all descriptions."""
    return f"$O.{store}.M.{name_token}"
