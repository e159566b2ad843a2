"""What an agent does about each message it is given. Every handler is safe to run twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from banksman.agent.loop import drive
from banksman.agent.thinking import Thinker
from banksman.bus.log import EventLog
from banksman.bus.outcomes import Done, Later, Outcome, WorkMessage
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.work import (
    ApprovalReply,
    CancelRun,
    DeleteConversation,
    RenameConversation,
    RunSignal,
    RunWork,
    SteerRun,
)
from banksman.runs import handlers
from banksman.runs.owner import accept
from banksman.runs.ports import Ports
from banksman.runs.stores import Watch

T = TypeVar("T")

RUN_WORK: TypeAdapter[RunWork] = TypeAdapter(RunWork)
RUN_SIGNAL: TypeAdapter[RunSignal] = TypeAdapter(RunSignal)
DELETE_AGAIN_S = 0.5
"""Seconds until a deletion looks again whether the open run has ended."""


class _Expiry(BaseModel):
    """The payload of an approval's timer."""

    tenant: str
    conversation_id: str
    approval_id: str


@dataclass(frozen=True, slots=True)
class Worker:
    """The handlers of one agent process."""

    ports: Ports
    log: EventLog
    watch: Watch
    thinker: Thinker

    async def on_work(self, message: WorkMessage) -> Outcome:
        """Drive a run as far as it goes. Idempotent by the log: a claim names the message it works under.

        Raises:
            Poison: the message cannot be read, or came on another's subject.
            Fenced: another agent took the run over.
        """
        work: RunWork = _decode(RUN_WORK, message)
        _check_subject(message, subjects.run_work(work.tenant, work.conversation_id))
        owned = await accept(self.ports, work, message.stream_seq)
        if owned is not None:
            async with self.watch.driving(owned.state):
                await drive(owned, self.thinker.think)
        return Done()

    async def on_signal(self, message: WorkMessage) -> Outcome:
        """Cancel, steer, rename, delete. Idempotent by run, message or conversation id.

        Raises:
            Poison: the message cannot be read, or came on another's subject.
        """
        signal: RunSignal = _decode(RUN_SIGNAL, message)
        _check_subject(message, subjects.run_signal(signal.tenant, signal.conversation_id))
        match signal:
            case CancelRun():
                await handlers.on_cancel(self.ports, signal)
            case SteerRun():
                await handlers.on_steer(self.ports, signal)
            case RenameConversation():
                await handlers.on_rename(self.ports, signal)
            case DeleteConversation():
                if not await handlers.on_delete(self.ports, signal):
                    return Later(DELETE_AGAIN_S)
                await self.log.purge(signal.tenant, signal.conversation_id)
        return Done()

    async def on_decision(self, message: WorkMessage) -> Outcome:
        """Bring a stored answer into the log. Idempotent by approval id.

        An answer that must not be honoured is kept among the dead letters, and the question is open again.
        """
        reply: ApprovalReply = _decode(TypeAdapter(ApprovalReply), message)
        _check_subject(message, subjects.approval_reply(reply.tenant, reply.approval_id))
        await handlers.on_decision(self.ports, reply)
        return Done()

    async def on_timer(self, message: WorkMessage) -> Outcome:
        """Expire an approval that nobody answered. Idempotent by approval id: the first answer stays."""
        expiry = _decode(TypeAdapter(_Expiry), message)
        await handlers.on_expiry(self.ports, expiry.tenant, expiry.conversation_id, expiry.approval_id)
        return Done()


def _decode(adapter: TypeAdapter[T], message: WorkMessage) -> T:
    try:
        return adapter.validate_json(message.data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Poison(message.subject, f"{where}: {first['msg']}") from error


def _check_subject(message: WorkMessage, expected: str) -> None:
    if message.subject != expected:
        raise Poison(message.subject, f"the message belongs to {expected}")
