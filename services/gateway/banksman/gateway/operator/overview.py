"""The state of the system for operators: streams, queues and runners."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from banksman.bus import jetstream, names
from banksman.bus.connection import Bus
from banksman.bus.storage.kv import Bucket
from banksman.contracts import subjects
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import NotFound
from banksman.contracts.wire import Stored, Timestamp, Token

_READ = frozenset((names.RUNS, names.APPROVALS, names.WORKFLOWS))
"""Queues whose messages a gateway may read, to show the age of the oldest one."""
MAX_TENANTS = 50
_STREAMS = (
    names.EVENTS,
    names.RUNS,
    names.APPROVALS,
    names.RESULTS,
    names.WORKFLOWS,
    names.WEBHOOK_QUEUE,
    names.TIMERS,
    names.DEAD,
)
_QUEUES = (
    (names.RUNS, names.AGENTS),
    (names.RUNS, names.SIGNALS),
    (names.WORKFLOWS, f"workflow-{subjects.SERVED}"),
    (names.APPROVALS, names.APPROVAL_REPLIES),
    (names.TIMERS, names.FIRED_TIMERS),
    (names.TIMERS, names.SCHEDULES),
    (names.EVENTS, names.WEBHOOKS),
    (names.WEBHOOK_QUEUE, names.WEBHOOKS),
)


class StreamState(Stored):
    """The size and limits of one stream of the broker."""

    name: str
    messages: int
    bytes: int
    max_bytes: int
    """-1 for a stream without its own limit."""


class QueueState(Stored):
    """A queue, whose messages the processes of a service share."""

    stream: str
    name: str
    waiting: int
    """Not yet delivered."""
    in_progress: int
    """Delivered and not yet acknowledged."""
    redelivered: int
    """Messages in progress that were delivered more than once."""
    oldest_at: Timestamp | None
    """Storage time of the oldest unacknowledged message; null if there is none, or if gateways may not read
    the stream."""


class TenantQueue(Stored):
    """The runs of a tenant that no agent has ended or parked."""

    tenant: str
    runs: int


class RunnerState(Stored):
    """A runner or tool server that is alive."""

    name: Token
    load: int
    """Running and waiting calls."""
    workspaces: bool
    """False for a tool server, which serves its own tools and no workspaces."""
    serving: bool
    problem: str | None
    """Reason why it accepts no calls."""
    warning: str | None
    """What to look at although it accepts calls, such as a full disk."""
    places: int | None
    """Commands that it executes at a time; null for a tool server."""
    version: str | None
    """Null for a tool server."""
    started_at: Timestamp | None


class Overview(Stored):
    """The state of the system."""

    streams: tuple[StreamState, ...]
    queues: tuple[QueueState, ...]
    waiting: tuple[TenantQueue, ...]
    """The tenants with the most runs, at most 50."""
    runners: tuple[RunnerState, ...]


@dataclass(frozen=True, slots=True)
class OverviewReader:
    bus: Bus

    async def overview(self) -> Overview:
        runners = Bucket(self.bus, names.RUNNERS, RunnerLease)
        return Overview(
            streams=tuple([await self._stream(name) for name in _STREAMS]),
            queues=await self._queues(),
            waiting=await self._waiting(),
            runners=tuple([_runner(entry.value) async for entry in runners.entries()]),
        )

    async def _stream(self, name: str) -> StreamState:
        info = await self._info(names.api("STREAM.INFO", name), name)
        return StreamState(
            name=name,
            messages=info["state"]["messages"],
            bytes=info["state"]["bytes"],
            max_bytes=info["config"]["max_bytes"],
        )

    async def _queues(self) -> tuple[QueueState, ...]:
        found: list[QueueState] = []
        for stream, name in _QUEUES:
            # A gateway creates the consumer of the logs for the first webhook.
            with contextlib.suppress(NotFound):
                found.append(await self._queue(stream, name))
        return tuple(found)

    async def _queue(self, stream: str, name: str) -> QueueState:
        info = await self._info(names.api("CONSUMER.INFO", stream, name), name)
        return QueueState(
            stream=stream,
            name=name,
            waiting=info["num_pending"],
            in_progress=info["num_ack_pending"],
            redelivered=info["num_redelivered"],
            oldest_at=await self._oldest(stream, info) if stream in _READ else None,
        )

    async def _oldest(self, stream: str, info: dict[str, Any]) -> datetime | None:
        if not info["num_pending"] and not info["num_ack_pending"]:
            return None
        acknowledged = int(info["ack_floor"]["stream_seq"])
        below = str(info["config"]["filter_subject"])
        message = await jetstream.next_message(self.bus, stream, below, after=acknowledged)
        return None if message is None else datetime.fromisoformat(message.time)

    async def _waiting(self) -> tuple[TenantQueue, ...]:
        counts: Counter[str] = Counter()
        below = subjects.run_work(subjects.ANY, subjects.ANY)
        async for subject, count in jetstream.subjects_in(self.bus, names.RUNS, below):
            counts[subject.split(".")[2]] += count
        return tuple(
            TenantQueue(tenant=tenant, runs=runs) for tenant, runs in counts.most_common(MAX_TENANTS)
        )

    async def _info(self, subject: str, name: str) -> dict[str, Any]:
        try:
            return await jetstream.call(self.bus, subject)
        except jetstream.ApiError as error:
            raise NotFound("stream or queue", name) from error


def _runner(lease: RunnerLease) -> RunnerState:
    shown = lease.model_dump(include=RunnerState.model_fields.keys() - {"name"})
    return RunnerState(name=lease.runner, **shown)
