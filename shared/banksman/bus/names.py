"""Names that NATS itself gives (API subjects, headers, error codes), and of what we keep in it."""

from __future__ import annotations

from typing import Final

EVENTS: Final = "EVENTS"
RUNS: Final = "RUNS"
APPROVALS: Final = "APPROVALS"
RESULTS: Final = "RESULTS"
WORKFLOWS: Final = "WORKFLOWS"
TIMERS: Final = "TIMERS"
DEAD: Final = "DEAD"
ADVISORIES: Final = "ADVISORIES"

AGENTS: Final = "agents"
SIGNALS: Final = "signals"
APPROVAL_REPLIES: Final = "approval-replies"
FIRED_TIMERS: Final = "timers"

TOOLS: Final = "tools"
ASSISTANTS: Final = "assistants"
PROMPTS: Final = "prompts"
WORKFLOW_DEFINITIONS: Final = "workflows"
CONVERSATIONS: Final = "conversations"
OWNERS: Final = "owners"
RUNNERS: Final = "runners"
IDEMPOTENCY: Final = "idempotency"
USAGE: Final = "usage"
HEADS: Final = "heads"
DAMAGED: Final = "damaged"

OUTPUTS: Final = "outputs"
WORKSPACES: Final = "workspaces"
SNAPSHOTS: Final = "snapshots"

MSG_ID: Final = "Nats-Msg-Id"
EXPECTED_LAST_SUBJECT_SEQ: Final = "Nats-Expected-Last-Subject-Sequence"
SCHEDULE: Final = "Nats-Schedule"
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
SEQUENCE: Final = "Nats-Sequence"
NUM_PENDING: Final = "Nats-Num-Pending"
SUBJECT: Final = "Nats-Subject"
TIME_STAMP: Final = "Nats-Time-Stamp"
MARKER_REASON: Final = "Nats-Marker-Reason"
TTL: Final = "Nats-TTL"
ROLLUP: Final = "Nats-Rollup"
KV_OPERATION: Final = "KV-Operation"
STATUS: Final = "Status"
DESCRIPTION: Final = "Description"

FIRST_SEQ: Final = "Banksman-First-Seq"
"""Number of a commit's first event."""
LAST_SEQ: Final = "Banksman-Last-Seq"
"""Number of a commit's last event."""
PREV: Final = "Banksman-Prev"
"""Stream sequence of the commit before on the same log; 0 for the first."""
LOG_EPOCH: Final = "Banksman-Log-Epoch"
SNAPSHOT: Final = "Banksman-Snapshot"
"""Stream sequence of the log's newest snapshot; 0 for none."""
CONSUMED: Final = "Banksman-CommitUsage"
"""What the model requests behind a commit consumed; not there when there was none."""

STATUS_NO_RESPONDERS: Final = "503"
STATUS_END_OF_BATCH: Final = "204"
STATUS_NOT_FOUND: Final = "404"

# https://github.com/nats-io/nats-server/blob/main/server/errors.json
CODE_RESOURCES: Final = frozenset({10002, 10023, 10028, 10047})
"""An account's or the server's memory or storage is used up."""
CODE_MESSAGE_TOO_LARGE: Final = 10054
CODE_WRONG_LAST_SEQUENCE: Final = 10071
CODE_DUPLICATE_UNDER_WAY: Final = 10158
CODE_WRITE_UNDER_WAY: Final = 10164
CODE_STORE_FAILED: Final = 10077
CODE_NO_MESSAGE: Final = 10037
CODE_NO_PEERS: Final = 10005
"""Not enough servers of the cluster are in reach for the copies that are wanted: each starts, or is away."""
CODE_NOT_ENABLED: Final = 10039
"""The account has no JetStream."""
CODE_STREAM_NOT_FOUND: Final = 10059
CODE_CONSUMER_NOT_FOUND: Final = 10014
CODE_MORE_REPLICAS_THAN_STREAM: Final = 10126


def api(verb: str, *names: str) -> str:
    """A subject of the JetStream API: `api("STREAM.INFO", "EVENTS")`."""
    return ".".join(("$JS.API", verb, *names))


def acknowledgements(stream: str, durable: str) -> str:
    """Where a consumer hears what became of its messages."""
    return f"$JS.ACK.{stream}.{durable}.>"


_STREAM_BY_TOKEN: Final = {
    "conversation": EVENTS,
    "run": RUNS,
    "approval": APPROVALS,
    "tool": RESULTS,
    "workflow": WORKFLOWS,
    "timer": TIMERS,
    "dead": DEAD,
}


def stream_of(subject: str) -> str:
    """The stream that holds a subject of ours."""
    first, second = subject.split(".")[:2]
    match first:
        case "$KV":
            return kv_stream(second)
        case "$O":
            return object_stream(second)
        case _:
            return _STREAM_BY_TOKEN.get(first, first)


def kv_stream(bucket: str) -> str:
    """The stream behind a bucket."""
    return f"KV_{bucket}"


def kv_subject(bucket: str, key: str) -> str:
    """Where a bucket keeps a key; `>` for all of its keys."""
    return f"$KV.{bucket}.{key}"


def object_stream(store: str) -> str:
    """The stream behind an object store."""
    return f"OBJ_{store}"


def object_chunks(store: str, upload: str) -> str:
    """Where an object store keeps the parts of one upload."""
    return f"$O.{store}.C.{upload}"


def object_meta(store: str, name_token: str) -> str:
    """Where an object store keeps what it knows of an object; `>` for all."""
    return f"$O.{store}.M.{name_token}"
