"""Runs as they are asked for by id: where they stand, and how they ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.live import LiveHub
from banksman.bus.log import StoredCommit
from banksman.bus.names import RUNS
from banksman.contracts import subjects
from banksman.contracts.errors import NotFound
from banksman.contracts.events import RunFinished, ToolCallCompleted
from banksman.contracts.ids import conversation_of
from banksman.contracts.tools import ToolResult
from banksman.contracts.work import RunWork, StartRun
from banksman.gateway.service.conversations import Conversations
from banksman.gateway.service.views import RunView, Views

WORK: TypeAdapter[RunWork] = TypeAdapter(RunWork)
TIMESTAMP: TypeAdapter[datetime] = TypeAdapter(datetime)


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run, and its outcome when it has one."""

    conversation_id: str
    view: RunView
    outcome: RunFinished | None
    questions: tuple[dict[str, Any], ...] = ()
    """Its open approvals."""

    def shown(self) -> dict[str, Any]:
        """The run as HTTP clients see it."""
        view = self.view
        body: dict[str, Any] = {
            "run_id": view.run_id,
            "conversation_id": self.conversation_id,
            "message_id": view.message_id,
            "status": view.status,
            "model": view.model,
            "iterations": view.iteration,
            "asked_at": view.asked_at,
            "started_at": view.started_at,
            "finished_at": view.finished_at,
            "pending_approvals": self.questions,
        }
        if self.outcome is not None:
            body |= self.outcome.model_dump(mode="json", exclude={"type"})
        return body


class Runs:
    """The runs of all conversations."""

    def __init__(self, bus: Bus, hub: LiveHub, views: Views, conversations: Conversations) -> None:
        self._bus = bus
        self._hub = hub
        self._views = views
        self._conversations = conversations

    async def get(self, tenant: str, run_id: str) -> FoundRun:
        """A run and its outcome.

        Raises:
            BadInput: the id has not the form of a run's.
            NotFound: this tenant has no such run.
        """
        conversation_id = await self._conversation(tenant, run_id)
        run = (await self._views.read(tenant, conversation_id)).runs.get(run_id)
        if run is None:
            run = await self._waiting(tenant, conversation_id, run_id)
        if run is None:
            # It may have left the queue for the log in between.
            run = (await self._views.read(tenant, conversation_id)).runs.get(run_id)
        if run is None:
            raise NotFound("run", run_id)
        return await self._found(tenant, conversation_id, run)

    async def of_conversation(self, tenant: str, conversation_id: str) -> list[FoundRun]:
        """The runs of a conversation, in the order they were asked for, without their outcomes.

        Raises:
            NotFound: this tenant has no such conversation.
        """
        await self._conversations.get(tenant, conversation_id)
        view = await self._views.read(tenant, conversation_id)
        return [FoundRun(conversation_id, replace(run), None) for run in view.runs.values()]

    async def wait(self, tenant: str, run_id: str, timeout_s: float) -> FoundRun:
        """A run when it has ended, or as it stands after `timeout_s`."""
        conversation_id = await self._conversation(tenant, run_id)
        view = await self._views.read(tenant, conversation_id)
        ended = asyncio.Event()

        def on_commit(stored: StoredCommit) -> None:
            for event in stored.commit.events:
                if event.run_id == run_id and isinstance(event.data, RunFinished):
                    ended.set()

        known = view.runs.get(run_id)
        if known is None or not known.finished_in:
            following = await self._hub.follow(
                tenant, conversation_id, after_stream_seq=view.stream_seq, on_commit=on_commit
            )
            try:
                async with asyncio.timeout(timeout_s):
                    await ended.wait()
            except TimeoutError:
                pass
            finally:
                await following.close()
        return await self.get(tenant, run_id)

    async def result(self, tenant: str, run_id: str, tool_call_id: str) -> ToolResult:
        """The result of a call.

        Raises:
            NotFound: this run has no such call, or it has no result yet.
        """
        conversation_id = await self._conversation(tenant, run_id)
        view = await self._views.read(tenant, conversation_id)
        stored = await self._views.commit(tenant, conversation_id, view.outputs.get(tool_call_id, 0))
        for event in stored.commit.events if stored else ():
            match event.data:
                case ToolCallCompleted(result=result) if (
                    event.run_id == run_id and result.tool_call_id == tool_call_id
                ):
                    return result
                case _:
                    continue
        raise NotFound("result of a tool call", tool_call_id)

    async def _conversation(self, tenant: str, run_id: str) -> str:
        conversation_id = conversation_of(run_id)
        try:
            await self._conversations.get(tenant, conversation_id)
        except NotFound as error:
            raise NotFound("run", run_id) from error
        return conversation_id

    async def _waiting(self, tenant: str, conversation_id: str, run_id: str) -> RunView | None:
        """A run whose start is stored and not taken up yet."""
        subject, after = subjects.run_work(tenant, conversation_id), 0
        while message := await jetstream.next_message(self._bus, RUNS, subject, after=after):
            after = message.stream_seq
            try:
                work = WORK.validate_json(message.data)
            except ValidationError:
                continue
            if isinstance(work, StartRun) and work.run_id == run_id:
                asked_at = TIMESTAMP.validate_python(message.time)
                model = work.settings.model
                return RunView(run_id, "queued", asked_at, message_id=work.message_id, model=model)
        return None

    async def _found(self, tenant: str, conversation_id: str, waiting: RunView) -> FoundRun:
        view = await self._views.read(tenant, conversation_id)
        # A copy: the view goes on while the outcome is read, and must not say more than it.
        run = replace(view.runs.get(waiting.run_id, waiting))
        questions = tuple(
            question.asked.model_dump(mode="json", exclude={"type"})
            for question in view.questions.values()
            if question.run_id == run.run_id
        )
        outcome: RunFinished | None = None
        if run.finished_in:
            stored = await self._views.commit(tenant, conversation_id, run.finished_in)
            outcome = _outcome(stored, run.run_id) if stored else None
        return FoundRun(conversation_id, run, outcome, questions)


def _outcome(stored: StoredCommit, run_id: str) -> RunFinished | None:
    for event in stored.commit.events:
        if event.run_id == run_id and isinstance(event.data, RunFinished):
            return event.data
    return None
