"""All streams, consumers, buckets and object stores of both accounts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from banksman.bus import names
from banksman.bus.settings import Replicas
from banksman.bus.storage.leases import LEASE_TTL_S
from banksman.contracts import subjects
from banksman.contracts.subjects import ANY
from banksman.deployment.declarations import (
    DUPLICATE_WINDOW_S,
    MAX_MESSAGE_BYTES,
    MAX_WORK_BYTES,
    ConsumerConfig,
    StorageBudget,
    StreamConfig,
)

__all__ = [
    "ConsumerConfig",
    "StorageBudget",
    "StreamConfig",
    "Topology",
    "app_topology",
    "bucket",
    "object_store",
    "run_topology",
    "webhook_consumer",
    "workflow_consumer",
]

DAY_S = 86_400
MAX_KEY_BYTES = 4 * 1024
"""Maximum bytes of a stored API key, which contains the digest of the key and not the key."""
MAX_DELIVERY_BYTES = 4 * 1024
"""Maximum bytes of the state of a webhook's delivery."""
MAX_SCHEDULE_BYTES = 128 * 1024
"""Maximum bytes of a schedule with its request and its last runs."""
MAX_ENTRY_BYTES = 16 * 1024
"""Maximum bytes of an entry of the audit trail."""
ENTRIES_PER_ACTION = 2_000
"""Maximum number of entries per tenant and action; a further entry removes the oldest one."""
AUDIT_DAYS = 400
MAX_LEASE_BYTES = 4 * 1024
"""Maximum bytes of the lease of a runner or of a process of a tool server."""


@dataclass(frozen=True, slots=True)
class Topology:
    account: str
    streams: tuple[StreamConfig, ...]
    consumers: tuple[ConsumerConfig, ...] = ()

    def stream(self, name: str) -> StreamConfig:
        return next(stream for stream in self.streams if stream.name == name)


def app_topology(budget: StorageBudget, *, replicas: Replicas = 1) -> Topology:
    """Return the topology of account APP: 80 % of the budget."""
    streams = (*_logs(budget), *_work(budget), *_slots(budget), *_buckets(budget, replicas))
    # Snapshots first: in a store of an earlier version, they give their room to the archive.
    snapshots = object_store(names.SNAPSHOTS, budget.share(40))
    archive = object_store(names.ARCHIVE, budget.share(60))
    return _topology("APP", (*streams, snapshots, archive), _consumers(), replicas)


def run_topology(budget: StorageBudget, *, replicas: Replicas = 1) -> Topology:
    """Return the topology of account RUN: 15 % of the budget, for whole outputs and workspaces."""
    # With a rollup, a runner that may store one object could remove the objects of all runners.
    outputs = object_store(names.OUTPUTS, budget.share(50), max_age_s=30 * DAY_S, rollup=False)
    workspaces = object_store(names.WORKSPACES, budget.share(100), rollup=False)
    return _topology("RUN", (outputs, workspaces), (), replicas)


def _topology(
    account: str, streams: Iterable[StreamConfig], consumers: Iterable[ConsumerConfig], replicas: Replicas
) -> Topology:
    return Topology(
        account,
        tuple(replace(stream, replicas=replicas) for stream in streams),
        tuple(replace(consumer, replicas=replicas) for consumer in consumers),
    )


def workflow_consumer(name: str, *, replicas: Replicas = 1) -> ConsumerConfig:
    """Return the consumer of one workflow, `workflow-{name}`."""
    return ConsumerConfig(
        stream=names.WORKFLOWS,
        durable=f"workflow-{name}",
        filter=subjects.workflow_run(name, ANY, ANY),
        replicas=replicas,
    )


def webhook_consumer(tenants: Sequence[str], *, replicas: Replicas = 1) -> ConsumerConfig:
    """Return the consumer of the commits of all tenants that have webhooks. It begins with new commits."""
    return ConsumerConfig(
        stream=names.EVENTS,
        durable=names.WEBHOOKS,
        filter=tuple(subjects.conversation(tenant, ANY) for tenant in tenants)
        # No tenant has this name. Without a filter, the server would deliver the commits of all tenants.
        or (subjects.conversation("-", "-"),),
        new_only=True,
        replicas=replicas,
    )


def bucket(
    name: str, max_bytes: int, *, ttl_s: int | None = None, max_value_bytes: int = MAX_MESSAGE_BYTES
) -> StreamConfig:
    """Return a bucket that keeps the last value of each key and republishes each stored change.

    The bucket allows no rollup, because with that header a publisher that may write one key can remove all
    keys. It therefore has no markers of expired keys, with which the server allows rollups.

    Args:
        max_bytes: Maximum bytes of all values together.
        ttl_s: Seconds after which a key expires unless it is written again; None for no expiry.
        max_value_bytes: Maximum bytes of one value with its headers.
    """
    keys = names.kv_subject(name, ">")
    return StreamConfig(
        name=names.kv_stream(name),
        subjects=(keys,),
        max_bytes=max_bytes,
        max_age_s=ttl_s,
        max_msg_size=max_value_bytes,
        replaces=True,
        direct=True,
        republish=(keys, subjects.stored(keys)),
        message_ttl=True,
        duplicate_window_s=min(DUPLICATE_WINDOW_S, ttl_s or DUPLICATE_WINDOW_S),
    )


def object_store(
    name: str, max_bytes: int, *, max_age_s: int | None = None, rollup: bool = True
) -> StreamConfig:
    return StreamConfig(
        name=names.object_stream(name),
        subjects=(names.object_chunks(name, ">"), names.object_meta(name, ">")),
        max_bytes=max_bytes,
        max_age_s=max_age_s,
        direct=True,
        rollup=rollup,
    )


def _logs(budget: StorageBudget) -> tuple[StreamConfig, ...]:
    return (
        StreamConfig(
            name=names.EVENTS,
            subjects=(subjects.conversation(ANY, ANY),),
            max_bytes=budget.share(348),
            direct=True,
            republish=(subjects.all_of("conversation"), subjects.all_of("live")),
        ),
        StreamConfig(
            name=names.DEAD,
            subjects=(subjects.all_of("dead"),),
            max_bytes=budget.share(24),
            max_msg_size=None,
            direct=True,
        ),
        StreamConfig(
            name=names.ADVISORIES,
            subjects=(
                "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>",
                "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>",
            ),
            max_bytes=budget.share(5),
            max_age_s=30 * DAY_S,
        ),
        StreamConfig(
            name=names.AUDIT,
            subjects=(subjects.audit(ANY, ANY, ANY),),
            max_bytes=budget.share(1),
            max_age_s=AUDIT_DAYS * DAY_S,
            max_msg_size=MAX_ENTRY_BYTES,
            max_msgs_per_subject=ENTRIES_PER_ACTION,
            # Discards old entries: a full trail must not keep administrators from revoking a key.
            discard="old",
            append_only=True,
            direct=True,
        ),
    )


def _work(budget: StorageBudget) -> tuple[StreamConfig, ...]:
    return (
        StreamConfig(
            name=names.RUNS,
            subjects=(subjects.run_work(ANY, ANY), subjects.run_signal(ANY, ANY)),
            retention="workqueue",
            max_bytes=budget.share(50),
            max_msg_size=MAX_WORK_BYTES,
        ),
        StreamConfig(
            name=names.WORKFLOWS,
            subjects=(subjects.workflow_run(ANY, ANY, ANY),),
            retention="workqueue",
            max_bytes=budget.share(20),
            max_msg_size=MAX_WORK_BYTES,
        ),
        StreamConfig(
            name=names.WEBHOOK_QUEUE,
            subjects=(subjects.webhook_delivery(ANY, ANY),),
            retention="workqueue",
            max_bytes=budget.share(4),
        ),
        # The server refuses schedules with `discard: new`, and with limits it drops them silently.
        StreamConfig(
            name=names.TIMERS,
            subjects=(
                subjects.timer_set(ANY, ANY, ANY),
                subjects.timer_fired(ANY, ANY, ANY),
                subjects.schedule_set(ANY, ANY),
                subjects.schedule_due(ANY, ANY),
            ),
            retention="workqueue",
            discard="old",
            schedules=True,
        ),
    )


def _slots(budget: StorageBudget) -> tuple[StreamConfig, ...]:
    return (
        StreamConfig(
            name=names.APPROVALS,
            subjects=(
                subjects.approval_request(ANY, ANY),
                subjects.approval_reply(ANY, ANY),
                subjects.approval_note(ANY, ANY, ANY),
            ),
            max_bytes=budget.share(60),
            write_once=True,
            direct=True,
        ),
        StreamConfig(
            name=names.RESULTS,
            subjects=(subjects.tool_started(ANY, ANY), subjects.tool_result(ANY, ANY)),
            max_bytes=budget.share(60),
            max_age_s=30 * DAY_S,
            write_once=True,
            direct=True,
            republish=(subjects.all_of("tool"), subjects.stored(subjects.all_of("tool"))),
        ),
    )


def _buckets(budget: StorageBudget, replicas: Replicas) -> tuple[StreamConfig, ...]:
    return (
        bucket(names.TOOLS, budget.share(5)),
        bucket(names.ASSISTANTS, budget.share(5)),
        bucket(names.ASSISTANT_REVISIONS, budget.share(5)),
        bucket(names.PROMPTS, budget.share(5)),
        bucket(names.WORKFLOW_DEFINITIONS, budget.share(5)),
        bucket(names.CONVERSATIONS, budget.share(40)),
        bucket(names.OWNERS, budget.share(10)),
        bucket(names.RUNNERS, budget.share(2), ttl_s=LEASE_TTL_S[replicas], max_value_bytes=MAX_LEASE_BYTES),
        bucket(names.IDEMPOTENCY, budget.share(20), ttl_s=DAY_S),
        bucket(names.USAGE, budget.share(2)),
        bucket(names.HEADS, budget.share(15)),
        bucket(names.DAMAGED, budget.share(1)),
        bucket(names.KEYS, budget.share(2), max_value_bytes=MAX_KEY_BYTES),
        bucket(names.WEBHOOKS, budget.share(1), max_value_bytes=MAX_KEY_BYTES),
        bucket(names.DELIVERIES, budget.share(1), ttl_s=3 * DAY_S, max_value_bytes=MAX_DELIVERY_BYTES),
        bucket(names.POLICIES, budget.share(2)),
        bucket(names.SCHEDULES, budget.share(2), max_value_bytes=MAX_SCHEDULE_BYTES),
        # Not republished, because it contains secrets of tenants' servers.
        replace(bucket(names.MCP, budget.share(2)), republish=None),
        # Its values are encrypted.
        bucket(names.TENANT_SECRETS, budget.share(2)),
        # Not republished: gateways receive republished values, and only agents and workflows may read this
        # one.
        replace(bucket(names.SECRETS, budget.share(1)), republish=None),
    )


def _consumers() -> tuple[ConsumerConfig, ...]:
    return (
        ConsumerConfig(stream=names.RUNS, durable=names.AGENTS, filter=subjects.run_work(ANY, ANY)),
        ConsumerConfig(stream=names.RUNS, durable=names.SIGNALS, filter=subjects.run_signal(ANY, ANY)),
        ConsumerConfig(
            stream=names.APPROVALS, durable=names.APPROVAL_REPLIES, filter=subjects.approval_reply(ANY, ANY)
        ),
        ConsumerConfig(
            stream=names.TIMERS, durable=names.FIRED_TIMERS, filter=subjects.timer_fired(ANY, ANY, ANY)
        ),
        # Served by gateways, which start runs for users.
        ConsumerConfig(stream=names.TIMERS, durable=names.SCHEDULES, filter=subjects.schedule_due(ANY, ANY)),
        ConsumerConfig(
            stream=names.WEBHOOK_QUEUE, durable=names.WEBHOOKS, filter=subjects.webhook_delivery(ANY, ANY)
        ),
    )
