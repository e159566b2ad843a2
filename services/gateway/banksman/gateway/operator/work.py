"""The work of all tenants, for operators: runs that are queued or wait for users, and dead letters.

Contents of runs are omitted.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import Field, TypeAdapter, ValidationError

from banksman.bus import dead, jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import APPROVALS, RUNS, WEBHOOK_QUEUE, WORKFLOWS
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts import subjects
from banksman.contracts.errors import Conflict
from banksman.contracts.registry import StartWorkflow
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.contracts.work import ApprovalRequest, DeadLetter, ResumeRun, StartRun
from banksman.gateway.operation.caller import OPERATE
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import MAX_POSITION, provided

MAX_RUNS = 50
"""Runs in one page. Each queued run takes one request to the broker."""
MAX_LETTERS = 200
OpenState = Literal["queued", "queued_workflow", "awaiting_approval", "awaiting_input"]
"""
queued             no agent has ended or parked it: it waits for an agent, or an agent drives it
queued_workflow    the same for a run of a workflow
awaiting_approval  it waits for a decision
awaiting_input     it waits for a value
"""

Letters = Annotated[int, Query(ge=1, le=MAX_LETTERS)]
Letter = Annotated[int, Path(ge=1, le=MAX_POSITION)]
After = Annotated[int, Query(ge=0, le=MAX_POSITION)]
NO_OPERATORS = "no user of NATS has the right `operator`"

operations = Operations("operations", right=OPERATE)

Work = StartRun | ResumeRun | StartWorkflow
_WORK: TypeAdapter[Work] = TypeAdapter(Annotated[Work, Field(discriminator="type")])


class OpenRun(Stored):
    """A run that has not ended."""

    id: int
    """Its position in the list."""
    tenant: str
    conversation_id: str
    run_id: str
    since: Timestamp
    """Time since which it is queued or waits."""


class OpenRunPage(Stored):
    """Runs of one state, oldest first."""

    items: tuple[OpenRun, ...]
    next: int | None
    """`after` of the next page; null at the end."""


@dataclass(frozen=True, slots=True)
class OpenRuns:
    bus: Bus
    approvals: ApprovalSlots

    @operations.add("operator.runs", "GET /operator/runs", not_over_nats=NO_OPERATORS)
    async def list_open_runs(
        self: Service,
        state: OpenState = "queued",
        limit: Annotated[int, Query(ge=1, le=MAX_RUNS)] = MAX_RUNS,
        after: After = 0,
        tenant: Token | None = None,
    ) -> OpenRunPage:
        """List the runs that are queued or wait for users, oldest first, without contents.

        Without `tenant`, the runs of all tenants are listed.
        """
        tenant = tenant or ANY
        match state:
            case "queued":
                return await self._queued(RUNS, subjects.run_work(tenant, ANY), after, limit)
            case "queued_workflow":
                return await self._queued(WORKFLOWS, subjects.workflow_run(ANY, tenant, ANY), after, limit)
            case "awaiting_approval" | "awaiting_input":
                return await self._parked(tenant, after, limit, inputs=state == "awaiting_input")

    async def _parked(self, tenant: str, after: int, limit: int, *, inputs: bool) -> OpenRunPage:
        found = await self.approvals.pending(tenant, limit=limit, after=after, inputs=inputs)
        items = tuple(_open_run(one.stream_seq, one.request, one.stored_at) for one in found)
        return OpenRunPage(items=items, next=found[-1].stream_seq if len(found) == limit else None)

    async def _queued(self, stream: str, below: str, after: int, limit: int) -> OpenRunPage:
        found: list[OpenRun] = []
        read = 0
        while read < limit and (
            message := await jetstream.next_message(self.bus, stream, below, after=after)
        ):
            read, after = read + 1, message.stream_seq
            try:
                work = _WORK.validate_json(message.data)
            except ValidationError:
                # The service that receives the message dead-letters it, which operators see.
                continue
            found.append(_open_run(message.stream_seq, work, message.time))
        return OpenRunPage(items=tuple(found), next=after if read == limit else None)


Service = Annotated[OpenRuns, provided(OpenRuns)]


def _open_run(stream_seq: int, stored: ApprovalRequest | Work, at: str) -> OpenRun:
    return OpenRun(
        id=stream_seq,
        tenant=stored.tenant,
        conversation_id=stored.conversation_id,
        run_id=stored.run_id,
        since=datetime.fromisoformat(at),
    )


SHOWN_BYTES = 16 * 1024
_REPLAYED = frozenset((RUNS, APPROVALS, WORKFLOWS, WEBHOOK_QUEUE))
"""Streams on whose subjects a gateway may publish. Only the operator's NATS user may publish on others."""


class ListedDeadLetter(Stored):
    """A message that could not be handled."""

    id: int
    subject: str
    stream: str
    reason: str
    ts: Timestamp
    can_replay: bool
    """False for a message that only `banksman dead replay`, or its sender, may publish again."""


class ShownDeadLetter(ListedDeadLetter):
    """A dead letter with its content."""

    headers: dict[str, str]
    payload: str
    """The first 16 KiB as text, with invalid UTF-8 replaced."""
    payload_bytes: int


class DeadLetterPage(Stored):
    """Dead letters, oldest first."""

    items: tuple[ListedDeadLetter, ...]
    next: int | None
    """`after` of the next page; null at the end."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    bus: Bus

    @operations.add("dead_letter.list", "GET /operator/dead-letters", not_over_nats=NO_OPERATORS)
    async def list_dead_letters(
        self: LetterService, limit: Letters = MAX_LETTERS, after: After = 0
    ) -> DeadLetterPage:
        """List the messages that could not be handled, oldest first."""
        found: list[ListedDeadLetter] = []
        async for stored in dead.dead_letters(self.bus, after=after):
            letter = stored.letter
            found.append(_listed_letter(stored.stream_seq, letter))
            if len(found) == limit:
                return DeadLetterPage(items=tuple(found), next=stored.stream_seq)
        return DeadLetterPage(items=tuple(found), next=None)

    @operations.add("dead_letter.read", "GET /operator/dead-letters/{letter_id}", not_over_nats=NO_OPERATORS)
    async def read_dead_letter(self: LetterService, letter_id: Letter) -> ShownDeadLetter:
        """Read a dead letter with its headers and the beginning of its content."""
        letter = await dead.read_dead_letter(self.bus, letter_id)
        payload = base64.b64decode(letter.payload_base64)
        return ShownDeadLetter(
            **dict(_listed_letter(letter_id, letter)),
            headers=letter.headers,
            payload=payload[:SHOWN_BYTES].decode("utf-8", "replace"),
            payload_bytes=len(payload),
        )

    @operations.add(
        "dead_letter.discard",
        "DELETE /operator/dead-letters/{letter_id}",
        audit=(),
        not_over_nats=NO_OPERATORS,
    )
    async def discard_dead_letter(self: LetterService, letter_id: Letter) -> None:
        """Delete a dead letter permanently."""
        await dead.remove(self.bus, letter_id)

    @operations.add(
        "dead_letter.replay",
        "POST /operator/dead-letters/{letter_id}/replay",
        audit=(),
        not_over_nats=NO_OPERATORS,
    )
    async def replay_dead_letter(self: LetterService, letter_id: Letter) -> None:
        """Publish a dead letter on its subject again, and remove it from the dead letters."""
        # If that fails, it remains a dead letter.
        letter = await dead.read_dead_letter(self.bus, letter_id)
        if letter.stream not in _REPLAYED:
            raise Conflict(
                f"a gateway may not publish on {letter.subject}: use `banksman dead replay {letter_id}`"
            )
        await dead.replay(self.bus, letter_id)


LetterService = Annotated[DeadLetters, provided(DeadLetters)]


def _listed_letter(letter_id: int, letter: DeadLetter) -> ListedDeadLetter:
    return ListedDeadLetter(
        id=letter_id,
        subject=letter.subject,
        stream=letter.stream,
        reason=letter.reason,
        ts=letter.ts,
        can_replay=letter.stream in _REPLAYED,
    )
