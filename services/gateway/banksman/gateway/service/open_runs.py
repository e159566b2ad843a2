"""The runs of all tenants that are queued or wait for users, for operators: without their contents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from banksman.bus import jetstream
from banksman.bus.approval_slots import ApprovalSlots, PendingRequest
from banksman.bus.connection import Bus
from banksman.bus.messages import StoredMessage
from banksman.bus.names import RUNS
from banksman.contracts import subjects
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import Stored, Timestamp
from banksman.contracts.work import RunWork

MAX_RUNS = 50
"""Runs in one page. Each queued one takes a request to the broker."""
OpenState = Literal["queued", "awaiting_approval", "awaiting_input"]
"""`queued`: no agent has ended or parked it; it waits for an agent, or an agent drives it."""

_WORK: TypeAdapter[RunWork] = TypeAdapter(RunWork)
_TIME: TypeAdapter[datetime] = TypeAdapter(datetime)


class OpenRun(Stored):
    """A run that has not ended."""

    id: int
    """Its place in the list."""
    tenant: str
    conversation_id: str
    run_id: str
    since: Timestamp
    """Since when it is queued or waits."""


class OpenRunPage(Stored):
    """Runs of one state, oldest first."""

    items: tuple[OpenRun, ...]
    next: int | None
    """`after` of the next page; null at the end."""


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """Lists the runs of all tenants that have not ended, by what they wait for."""

    bus: Bus
    approvals: ApprovalSlots

    async def page(self, state: OpenState, *, after: int, limit: int) -> OpenRunPage:
        """Return a page of the runs in a state.

        Raises:
            Unavailable: The broker does not respond.
        """
        if state == "queued":
            return await self._queued(after, limit)
        found = await self.approvals.pending(limit=limit, after=after, inputs=state == "awaiting_input")
        return _page([_parked(one) for one in found], found[-1].stream_seq if found else 0, limit)

    async def _queued(self, after: int, limit: int) -> OpenRunPage:
        found: list[OpenRun] = []
        read = 0
        below = subjects.run_work(ANY, ANY)
        while read < limit and (message := await jetstream.next_message(self.bus, RUNS, below, after=after)):
            read, after = read + 1, message.stream_seq
            if (run := _of_work(message)) is not None:
                found.append(run)
        return OpenRunPage(items=tuple(found), next=after if read == limit else None)


def _page(items: list[OpenRun], last: int, limit: int) -> OpenRunPage:
    return OpenRunPage(items=tuple(items), next=last if len(items) == limit else None)


def _parked(pending: PendingRequest) -> OpenRun:
    request = pending.request
    return OpenRun(
        id=pending.stream_seq,
        tenant=request.tenant,
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        since=_TIME.validate_python(pending.stored_at),
    )


def _of_work(message: StoredMessage) -> OpenRun | None:
    try:
        work = _WORK.validate_json(message.data)
    except ValidationError:
        # The agent that receives it makes it a dead letter, which operators see.
        return None
    return OpenRun(
        id=message.stream_seq,
        tenant=work.tenant,
        conversation_id=work.conversation_id,
        run_id=work.run_id,
        since=_TIME.validate_python(message.time),
    )
