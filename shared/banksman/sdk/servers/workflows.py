"""A workflow server, which registers its workflows and executes their turns.

A server may have any number of processes. They share its runs: each turn goes to one process, and processes
have no state between two turns.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable
from contextlib import AsyncExitStack
from functools import partial

from pydantic import ValidationError

from banksman.bus.connection import NatsSettings
from banksman.bus.errors import RemoteError, checked_reply, error_envelope
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput, NotFound, Unavailable
from banksman.contracts.registry import RegisterWorkflow, WithdrawWorkflow, WorkflowRegistration
from banksman.contracts.subjects import ANY
from banksman.contracts.workflows import TURN_S, Progress, ReportProgress, TurnReply, WorkflowTurn
from banksman.sdk.servers.registry import RegisteredServer
from banksman.sdk.servers.turns import take_turn
from banksman.sdk.workflows import Workflow

logger = logging.getLogger(__name__)

REPORT_TIMEOUT_S = 5.0
"""Timeout of a progress report in seconds."""


class WorkflowServer(RegisteredServer):
    """Serves workflows over NATS. As a context manager, it serves while the block runs.

    The workflows are registered when the block starts, and stay registered after it: their runs wait until a
    process serves them again. `withdraw` removes one.
    """

    kind = "workflow"

    def __init__(self, name: str, workflows: Iterable[Workflow], *, nats: NatsSettings | None = None) -> None:
        """Create a server without connecting it.

        Args:
            name: The server's id, the same in all of its processes.
            workflows: The workflows to serve, at least one.
            nats: The connection settings; None reads the environment or the local system (`sdk.local`).
        """
        super().__init__(name, nats)
        self.workflows = {one.name: one for one in workflows}
        if not self.workflows:
            raise ValueError(f"workflow server {name!r} has no workflows")
        self._turns: dict[asyncio.Task[None], str] = {}
        """The turns in progress, each with the tenant and the conversation of its run."""

    async def withdraw(self, name: str) -> None:
        """Remove a registration of this server. Its open runs end as failed."""
        await self._request("withdraw", WithdrawWorkflow(name=name, server=self.name))

    async def _enter(self, scope: AsyncExitStack) -> None:
        bus = await scope.enter_async_context(await self._connect())
        for workflow in self.workflows.values():
            definition = workflow.definition.model_copy(update={"server": self.name})
            body = RegisterWorkflow(definition=definition)
            reply = await self._request("register", body, budget_s=math.inf)
            WorkflowRegistration.model_validate_json(reply)
        # In one queue group: each turn goes to one of the processes.
        turns = subjects.workflow_turn(self.name, ANY, ANY)
        scope.push_async_callback((await bus.subscribe(turns, self._received, self.name)).unsubscribe)
        # In no queue group, because the broker does not know which process has the turn.
        cancels = await bus.subscribe(subjects.workflow_cancel(self.name, ANY, ANY), self._cancelled)
        scope.push_async_callback(cancels.unsubscribe)
        await bus.ready()
        scope.push_async_callback(self._cancel_turns)

    async def _cancel_turns(self) -> None:
        # Another process repeats an unfinished turn.
        for turn in self._turns:
            turn.cancel()
        if self._turns:
            await asyncio.wait(self._turns)

    async def _until_stopped(self) -> None:
        async with self:
            await self._stop.wait()

    async def _received(self, message: Message) -> None:
        turn = asyncio.create_task(self._reply(message), name=message.subject)
        self._turns[turn] = _run_of(message)
        turn.add_done_callback(self._turns.pop)

    async def _cancelled(self, message: Message) -> None:
        for turn, of_run in self._turns.items():
            if of_run == _run_of(message):
                turn.cancel()

    async def _reply(self, message: Message) -> None:
        try:
            reply = (await self._take(message)).model_dump_json(by_alias=True).encode()
        except (BadInput, NotFound, Unavailable) as error:
            reply = error_envelope(error)
        try:
            await self._bus.publish(message.reply, reply)
        except Unavailable as error:
            logger.warning("%s: the reply was not sent and the turn is repeated: %s", message.subject, error)

    async def _take(self, message: Message) -> TurnReply:
        try:
            turn = WorkflowTurn.model_validate_json(message.data)
        except ValidationError as error:
            raise BadInput("turn", None, f"a turn: {error.error_count()} fields are wrong") from error
        workflow = self.workflows.get(turn.workflow)
        if workflow is None:
            raise NotFound("workflow", turn.workflow)
        try:
            async with asyncio.timeout(TURN_S):
                return await take_turn(workflow, turn, partial(self._report, turn))
        except TimeoutError as error:
            text = f"{turn.workflow} reached no step within {TURN_S:g} s: each long operation must be a step"
            raise BadInput("turn", None, text) from error

    async def _report(self, turn: WorkflowTurn, progress: Progress) -> None:
        report = ReportProgress(
            server=self.name,
            tenant=turn.tenant,
            conversation_id=turn.conversation_id,
            run_id=turn.run_id,
            progress=progress,
        )
        try:
            subject = subjects.registry("workflow", "progress")
            checked_reply(
                await self._bus.request(subject, report.model_dump_json().encode(), REPORT_TIMEOUT_S)
            )
        except (RemoteError, Unavailable) as error:
            logger.info("%s: progress is stored with the reply to the turn: %s", turn.run_id, error)


def _run_of(message: Message) -> str:
    """Return tenant and conversation of a turn or a cancel; each run has its own conversation."""
    return ".".join(message.subject.split(".")[-2:])
