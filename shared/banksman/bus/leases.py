"""A runner's lease: the one key that it renews, and may write without any right to read."""

from __future__ import annotations

from collections.abc import Mapping

from banksman.bus.connection import Bus
from banksman.bus.errors import WrongLastSequence
from banksman.bus.names import RUNNERS, kv_subject
from banksman.bus.publish import durable
from banksman.bus.settings import Replicas
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import Unavailable
from banksman.contracts.ids import new_id

LEASE_TTL_S: Mapping[Replicas, int] = {1: 3, 3: 20}
"""Seconds a runner's lease lives without renewal, by the servers that keep it. Three take up to 8 s to elect
another leader, in which nobody can renew: no runner is to end its commands over that."""
RENEW_EVERY_S = 1.0
"""Seconds between renewals."""
_STOPS_EARLIER_S = 1.0

_TRIES = 10


def stop_after_s(replicas: Replicas) -> float:
    """Seconds without a successful renewal after which a runner stops itself and its commands.

    A second before the lease ends, and others may act for it.
    """
    return LEASE_TTL_S[replicas] - _STOPS_EARLIER_S


def instance_key(server: str, epoch: int, tenant: str | None) -> str:
    """The key of one process of a tool server: beside those of runners, which are one token.

    A tenant's keys hold its name, so its account can be let write those and no others.
    """
    return ".".join((server, str(epoch)) if tenant is None else (server, tenant, str(epoch)))


async def take_lease(bus: Bus, lease: RunnerLease, *, key: str | None = None) -> int:
    """Begin a lease in the place of whatever this runner held before; returns its revision.

    The key is the runner's id unless another is given: each process of a tool server has one of its own.
    Called once by each process of a runner, with an epoch above all earlier ones: whoever held the old
    revision cannot renew.

    Raises:
        Unavailable: it could not be stored.
        Forbidden: this user may not write that key.
    """
    revision = 0
    for _ in range(_TRIES):
        try:
            return await _write(bus, key or lease.runner, lease, revision, budget_s=10.0)
        except WrongLastSequence as refused:
            revision = refused.found
    raise Unavailable(f"the lease of {lease.runner} is contended")


async def renew_lease(bus: Bus, lease: RunnerLease, revision: int, *, key: str | None = None) -> int:
    """Renew; returns the new revision.

    Raises:
        WrongLastSequence: the lease ended, or another process of this runner took it: stop. Also when a
            renewal was stored whose acknowledgement was lost, which nobody without a right to read can tell.
        Unavailable: not stored within a second; try again until `stop_after_s` is over.
        Forbidden: this user may not write that key.
    """
    return await _write(bus, key or lease.runner, lease, revision, budget_s=RENEW_EVERY_S)


async def _write(bus: Bus, key: str, lease: RunnerLease, revision: int, *, budget_s: float) -> int:
    ack = await durable(
        bus,
        kv_subject(RUNNERS, key),
        lease.model_dump_json().encode(),
        msg_id=new_id("lease-"),
        expect_last_subject_seq=revision,
        budget_s=budget_s,
    )
    return ack.stream_seq
