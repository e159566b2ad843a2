"""Read runs by their ids: status, outcome, results of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.messages import StoredMessage
from banksman.bus.names import RUNS, WORKFLOWS
from banksman.bus.storage.live import LiveHub
from banksman.bus.storage.log import StoredCommit
from banksman.contracts import subjects
from banksman.contracts.approvals import ApprovalRequested, ApprovalResolved, InputRequested
from banksman.contracts.errors import NotFound
from banksman.contracts.events import (
    Event,
    IterationStarted,
    RunFinished,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.ids import conversation_of
from banksman.contracts.registry import ListedCall, StartWorkflow
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.work import StartRun
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.view import PARKED, RunView
from banksman.gateway.conversations.views import Views
from banksman.runtime.waits import any_set

START: TypeAdapter[StartRun | StartWorkflow] = TypeAdapter(
    Annotated[StartRun | StartWorkflow, Field(discriminator="type")]
)
TIMESTAMP: TypeAdapter[datetime] = TypeAdapter(datetime)

ENDED = (RunFinished,)
ENDED_OR_PARKED = (RunFinished, ApprovalRequested, InputRequested)


@dataclass(frozen=True, slots=True)
class FoundRun:
    conversation_id: str
    view: RunView
    outcome: RunFinished | None
    approvals: tuple[ApprovalRequested, ...] = ()
    """Its open approval requests."""


@dataclass(frozen=True, slots=True)
class Runs:
    bus: Bus
    hub: LiveHub
    views: Views
    conversations: Conversations
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends the waits for runs when the process stops."""

    async def get(self, tenant: str, run_id: str) -> FoundRun:
        known, conversation_id = await self.find(tenant, run_id), conversation_of(run_id)
        view = await self.views.as_sent(tenant, conversation_id)
        # A snapshot, because other readers may update the view while the outcome is read.
        run = replace(view.runs.get(run_id, known))
        open_ = tuple(one.requested for one in view.approvals.values() if one.run_id == run_id)
        outcome: RunFinished | None = None
        if run.finished_in:
            stored = await self.views.commit(tenant, conversation_id, run.finished_in)
            outcome = _outcome(stored, run_id) if stored else None
        return FoundRun(conversation_id, run, outcome, open_)

    async def find(self, tenant: str, run_id: str) -> RunView:
        """Return a run that is stored in its log, or in a queue; raise `NotFound` if the tenant has none."""
        conversation_id = await self.conversation(tenant, run_id)
        for find in (self._in_log, self._queued, self._in_log):
            # Twice in the log: an agent may move the run there from the queue between the first two reads.
            if (run := await find(tenant, conversation_id, run_id)) is not None:
                return run
        raise NotFound("run", run_id)

    async def of_conversation(self, tenant: str, conversation_id: str) -> list[FoundRun]:
        """Return the runs of a conversation in the order of their requests, without their outcomes."""
        await self.conversations.get(tenant, conversation_id)
        view = await self.views.read(tenant, conversation_id)
        return [FoundRun(conversation_id, replace(run), None) for run in view.runs.values()]

    async def wait(
        self, tenant: str, run_id: str, timeout_s: float, *, or_parked: bool = False, started: bool = False
    ) -> FoundRun:
        """Return a run once it has ended, or after `timeout_s`, or when the process stops.

        `or_parked` also returns a run that waits for a user. `started` is for a run that this process has
        just accepted.
        """
        kinds = ENDED_OR_PARKED if or_parked else ENDED
        conversation_id = conversation_of(run_id) if started else await self.conversation(tenant, run_id)
        view = self.views.known(tenant, conversation_id)
        if not started:
            view = await self.views.read(tenant, conversation_id)
        ended = asyncio.Event()
        last: StoredCommit | None = None

        def on_commit(stored: StoredCommit) -> None:
            nonlocal last
            self.views.note(tenant, conversation_id, stored)
            for event in stored.commit.events:
                if event.run_id == run_id and isinstance(event.data, kinds):
                    last = stored
                    ended.set()

        known = view.runs.get(run_id)
        if known is None or not (known.finished_in or (or_parked and known.status in PARKED)):
            following = await self.hub.follow(
                tenant, conversation_id, after_stream_seq=view.stream_seq, on_commit=on_commit
            )
            try:
                await any_set(ended, self.stopping, timeout_s=timeout_s)
            finally:
                await following.close()
        # If the commit that ended the run was received, nothing needs to be read.
        run = self.views.known(tenant, conversation_id).runs.get(run_id)
        outcome = None if last is None else _outcome(last, run_id)
        if run is not None and run.finished_in and outcome is not None:
            return FoundRun(conversation_id, replace(run), outcome)
        return await self.get(tenant, run_id)

    async def calls(self, tenant: str, run_id: str) -> list[ListedCall]:
        """Return the complete calls of a run that have a result, in the order of their results."""
        return calls_of(await self.events(tenant, run_id), run_id)

    async def events(self, tenant: str, run_id: str) -> tuple[Event, ...]:
        """Return the stored events of a conversation from the first one of a run."""
        conversation_id = await self.conversation(tenant, run_id)
        run = await self._in_log(tenant, conversation_id, run_id)
        if run is None:
            raise NotFound("run", run_id)
        stored = await self.views.events(tenant, conversation_id, after_seq=max(0, run.first_seq - 1))
        return stored.events

    async def result(self, tenant: str, run_id: str, tool_call_id: str) -> ToolResult:
        """Return the result of a tool call; raise `NotFound` if the call has no result yet."""
        conversation_id = await self.conversation(tenant, run_id)
        view = await self.views.read(tenant, conversation_id)
        stored = await self.views.commit(tenant, conversation_id, view.outputs.get(tool_call_id, 0))
        for event in stored.commit.events if stored else ():
            completed = event.data
            if isinstance(completed, ToolCallCompleted) and event.run_id == run_id:
                if completed.result.tool_call_id == tool_call_id:
                    return completed.result
        raise NotFound("result of a tool call", tool_call_id)

    async def conversation(self, tenant: str, run_id: str) -> str:
        conversation_id = conversation_of(run_id)
        try:
            await self.conversations.get(tenant, conversation_id)
        except NotFound as error:
            raise NotFound("run", run_id) from error
        return conversation_id

    async def _in_log(self, tenant: str, conversation_id: str, run_id: str) -> RunView | None:
        return (await self.views.read(tenant, conversation_id)).runs.get(run_id)

    async def _queued(self, tenant: str, conversation_id: str, run_id: str) -> RunView | None:
        """Return a run whose start is stored and that no agent or workflow service has claimed yet."""
        for stream, subject in (
            (RUNS, subjects.run_work(tenant, conversation_id)),
            (WORKFLOWS, subjects.workflow_run(subjects.SERVED, tenant, conversation_id)),
        ):
            after = 0
            while message := await jetstream.next_message(self.bus, stream, subject, after=after):
                after = message.stream_seq
                if (view := _queued_view(message, run_id)) is not None:
                    return view
        return None


def _queued_view(message: StoredMessage, run_id: str) -> RunView | None:
    try:
        start = START.validate_json(message.data)
    except ValidationError:
        return None
    if start.run_id != run_id:
        return None
    model = start.settings.model if isinstance(start, StartRun) else f"workflow:{start.workflow}"
    asked_at = TIMESTAMP.validate_python(message.time)
    return RunView(run_id, "queued", asked_at, message_id=start.message_id, model=model)


def _outcome(stored: StoredCommit, run_id: str) -> RunFinished | None:
    for event in stored.commit.events:
        if event.run_id == run_id and isinstance(event.data, RunFinished):
            return event.data
    return None


def calls_of(events: Iterable[Event], run_id: str) -> list[ListedCall]:
    """Return the calls of a run in the order of their results, as its outcome lists them (R102)."""
    requested: dict[str, ToolCall] = {}
    found: list[ListedCall] = []
    iteration = 0
    for event in events:
        if event.run_id != run_id:
            continue
        match event.data:
            case IterationStarted(n=n):
                iteration = n - 1
            case ToolCallRequested(call=call):
                requested[call.id] = call
            case ApprovalResolved(decisions=decisions):
                edited = {one.tool_call_id: one.arguments for one in decisions if one.arguments is not None}
                for call_id, arguments in edited.items():
                    if call_id in requested:
                        requested[call_id] = requested[call_id].model_copy(update={"arguments": arguments})
            case ToolCallCompleted(result=result):
                # A second result of the same call changes nothing.
                call = requested.pop(result.tool_call_id, None)
                if call is not None:
                    listed = ListedCall(
                        tool_call_id=call.id,
                        tool=call.name,
                        params=call.arguments,
                        result=result.content,
                        iteration=iteration,
                    )
                    found.append(listed)
            case _:
                pass
    return found
