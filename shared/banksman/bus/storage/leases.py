"""The lease of a runner: one key in the bucket `runners`, written without permission to read it.

A lease outlives a broker that stores nothing for some seconds, so its lifetime is long. A lease ends early
when its holder releases it, or when an agent finds that the holder's connection is closed. Renewals and ends
are compare-and-set writes on the revision, so an ended lease cannot be renewed.
"""

from __future__ import annotations

from collections.abc import Mapping

from banksman.bus.connection import Bus
from banksman.bus.errors import WrongLastSequence
from banksman.bus.names import KV_OPERATION, RUNNERS, TTL, kv_subject
from banksman.bus.publish import durable
from banksman.bus.settings import Replicas
from banksman.bus.storage.kv import MARKER_TTL
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import Unavailable
from banksman.contracts.ids import new_id

LEASE_TTL_S: Mapping[Replicas, int] = {1: 12, 3: 20}
"""Seconds after which a lease without renewal expires, by number of replicas. One server that syncs each
write may store nothing for seconds while its disk is busy, and three servers take up to 8 s to elect another
leader. No lease can be renewed in that time, and runners must not end their commands because of it."""
RENEW_EVERY_S = 1.0
"""Seconds between renewals while calls run. The calls end if no renewal succeeds for almost a lease's TTL."""
IDLE_RENEW_EVERY_S = 4.4
"""Seconds between renewals while no call runs. Each is a synced write, the only one of an idle system. The
lease still outlives 6 s in which the broker stores nothing."""
_STOPS_EARLIER_S = 1.0

_ATTEMPT_S = 2.0
"""Seconds to wait for the acknowledgement of one attempt to write a lease."""
_OVERLAP_S = 0.7
"""Seconds after which the write of a lease is sent again, while the previous attempt still waits. A random
agent stores the lease of a tool server, and a partitioned agent does not reply. With one attempt at a time,
all five attempts went to the partitioned one of two agents in one of 32 cases, and the server counted as
lost."""
_TRIES = 10
"""Attempts to take a lease that other processes write concurrently."""


def stop_after_s(replicas: Replicas) -> float:
    """Return the seconds without a successful renewal after which a runner ends its commands and itself.

    This is one second before the lease expires, when other processes may void the runner's calls.
    """
    return LEASE_TTL_S[replicas] - _STOPS_EARLIER_S


def instance_key(server: str, epoch: int, tenant: str | None) -> str:
    """Return the key of one process of a tool server. It has several tokens; the key of a runner has one.

    The key of a tenant's tool server contains the tenant, so that permissions restrict its account to it.
    """
    return ".".join((server, str(epoch)) if tenant is None else (server, tenant, str(epoch)))


async def take_lease(bus: Bus, lease: RunnerLease, *, key: str | None = None) -> int:
    """Take the lease of a runner, even if an earlier process of it holds the lease; return the revision.

    Each process of a runner calls this once, with an epoch above all earlier ones. An earlier process cannot
    renew afterwards, because its revision is no longer the last one.

    Args:
        key: The key; None for the runner's id. Each process of a tool server has a key of its own.
    """
    revision = 0
    for _ in range(_TRIES):
        try:
            return await renew_lease(bus, lease, revision, budget_s=10.0, key=key)
        except WrongLastSequence as refused:
            # Without permission to read, the refusal is the only source of the stored revision.
            revision = refused.found
    raise Unavailable(f"the lease of {lease.runner} is written by other processes at the same time")


async def renew_lease(
    bus: Bus, lease: RunnerLease, revision: int, *, budget_s: float, key: str | None = None
) -> int:
    """Renew a lease; return the new revision.

    Args:
        revision: The revision of the last renewal.
        budget_s: Seconds for which the renewal is retried. All attempts have one message id: the broker
            acknowledges a repeat of a stored renewal with its revision, so a lost acknowledgement is no loss
            of the lease.
        key: The key; None for the runner's id.

    Raises:
        WrongLastSequence: The lease ended, or another process of this runner took it: stop.
        Unavailable: Whether the renewal is stored is unknown.
    """
    ack = await durable(
        bus,
        kv_subject(RUNNERS, key or lease.runner),
        lease.model_dump_json().encode(),
        msg_id=new_id("lease-"),
        expect_last_subject_seq=revision,
        budget_s=budget_s,
        attempt_s=_ATTEMPT_S,
        overlap_s=_OVERLAP_S,
        urgent=True,
    )
    return ack.stream_seq


async def end_lease(bus: Bus, key: str, revision: int, *, budget_s: float) -> None:
    """End a lease by a marker, unless it was renewed or taken after `revision`.

    Raises:
        WrongLastSequence: It was renewed, taken or ended meanwhile.
        Unavailable: Whether the marker is stored is unknown.
    """
    await durable(
        bus,
        kv_subject(RUNNERS, key),
        b"",
        msg_id=new_id("lease-"),
        expect_last_subject_seq=revision,
        headers={KV_OPERATION: "DEL", TTL: MARKER_TTL},
        budget_s=budget_s,
        urgent=True,
    )
