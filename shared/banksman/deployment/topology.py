"""All streams, consumers, buckets and object stores of both accounts, from `topology.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from banksman.bus import names
from banksman.bus.settings import Replicas
from banksman.bus.storage.leases import LEASE_TTL_S
from banksman.contracts import subjects
from banksman.contracts.subjects import ANY
from banksman.deployment.declarations import (
    DUPLICATE_WINDOW_S,
    MAX_MESSAGE_BYTES,
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
    "provisioned_queues",
    "run_topology",
    "webhook_consumer",
    "workflow_consumer",
]

Fields = dict[str, Any]
TABLES: dict[str, dict[str, Fields]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Topology:
    account: str
    streams: tuple[StreamConfig, ...]
    consumers: tuple[ConsumerConfig, ...] = ()

    def stream(self, name: str) -> StreamConfig:
        return next(stream for stream in self.streams if stream.name == name)


def app_topology(budget: StorageBudget, *, replicas: Replicas = 1) -> Topology:
    """Return the topology of account APP: 80 % of the budget."""
    streams = [_stream(budget, name, **fields) for name, fields in TABLES["streams"].items()]
    for name, fields in TABLES["buckets"].items():
        expiry: Fields = {"ttl_s": LEASE_TTL_S[replicas]} if name == names.RUNNERS else {}
        streams.append(_bucket(budget, name, **fields, **expiry))
    consumers = [
        ConsumerConfig(stream=stream, durable=durable, filter=subjects.named(name), replicas=replicas)
        for stream, durables in TABLES["consumers"].items()
        for durable, name in durables.items()
    ]
    return _topology("APP", [*streams, *_stores(budget, "APP")], consumers, replicas)


def provisioned_queues() -> tuple[tuple[str, str], ...]:
    """Return the streams and consumers of account APP whose acknowledged messages the server removes."""
    queues = [name for name, fields in TABLES["streams"].items() if fields.get("retention") == "workqueue"]
    return tuple((name, consumer) for name in queues for consumer in TABLES["consumers"].get(name, ()))


def run_topology(budget: StorageBudget, *, replicas: Replicas = 1) -> Topology:
    """Return the topology of account RUN: 15 % of the budget, for whole outputs and workspaces."""
    return _topology("RUN", _stores(budget, "RUN"), (), replicas)


def _topology(
    account: str, streams: Iterable[StreamConfig], consumers: Iterable[ConsumerConfig], replicas: Replicas
) -> Topology:
    return Topology(
        account, tuple(replace(stream, replicas=replicas) for stream in streams), tuple(consumers)
    )


def _stream(budget: StorageBudget, name: str, **fields: Any) -> StreamConfig:
    share: int | None = fields.pop("share", None)
    fields["subjects"] = tuple(map(subjects.named, fields["subjects"]))
    if "republish" in fields:
        fields["republish"] = tuple(fields["republish"])
    return StreamConfig(name=name, max_bytes=None if share is None else budget.share(share), **fields)


def _bucket(
    budget: StorageBudget, name: str, share: int, *, private: bool = False, **limits: int
) -> StreamConfig:
    """Return a bucket; with `private` its changes are not republished, because gateways receive them all."""
    found = bucket(name, budget.share(share), **limits)
    return replace(found, republish=None) if private else found


def _stores(budget: StorageBudget, account: str) -> list[StreamConfig]:
    return [_store(budget, name, **fields) for name, fields in TABLES["stores"][account].items()]


def _store(budget: StorageBudget, name: str, share: int, **options: Any) -> StreamConfig:
    return object_store(name, budget.share(share), **options)


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
