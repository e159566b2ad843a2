"""Requests of users, each recorded from its first attempt to its reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from banksman.contracts.approvals import Remember
from banksman.contracts.ids import new_id
from banksman.contracts.wire import JsonObject
from tests.support.chaos.simulated_user import Frame, OnPhase, SimulatedUser
from tests.support.history.records import Cancel, Decide, Line, Phase, Recording, Send, Start


@dataclass(frozen=True)
class Requests:
    """The requests of all users, in one recording."""

    recording: Recording

    async def send(
        self, user: SimulatedUser, conversation_id: str, text: str, *, mode: str = "queue"
    ) -> Frame:
        """`chat.send`; return the `ack`."""
        request_id = new_id("q")

        def line(phase: Phase, frame: Frame) -> Line:
            return Send(
                phase=phase,
                request_id=request_id,
                conversation_id=conversation_id,
                run_id=_given(phase, frame, "run_id"),
                message_id=_given(phase, frame, "message_id"),
                problem=_problem(phase, frame),
                steers=mode == "steer",
            )

        frame: Frame = {"type": "chat.send", "conversation_id": conversation_id, "content": text}
        return await user.request({**frame, "mode": mode, "id": request_id}, on_phase=self._recorder(line))

    async def cancel(self, user: SimulatedUser, run_id: str) -> None:
        """`run.cancel`."""
        request_id = new_id("q")

        def line(phase: Phase, frame: Frame) -> Line:
            problem = _problem(phase, frame)
            return Cancel(phase=phase, request_id=request_id, run_id=run_id, problem=problem)

        await user.request(
            {"type": "run.cancel", "run_id": run_id, "id": request_id}, on_phase=self._recorder(line)
        )

    async def decide(
        self, user: SimulatedUser, approval_id: str, verdict: Frame, *, remember: Remember | None = None
    ) -> None:
        """`approval.reply`."""
        request_id = new_id("q")

        def line(phase: Phase, frame: Frame) -> Line:
            return Decide(
                phase=phase,
                request_id=request_id,
                approval_id=approval_id,
                outcome=_given(phase, frame, "outcome"),
                already_resolved=bool(_given(phase, frame, "already_resolved")),
                problem=_problem(phase, frame),
            )

        frame: Frame = {"type": "approval.reply", "approval_id": approval_id, "id": request_id, **verdict}
        remembered: Frame = {} if remember is None else {"remember": remember}
        await user.request({**frame, **remembered}, on_phase=self._recorder(line))

    async def start_workflow(
        self,
        user: SimulatedUser,
        workflow: str,
        parameters: JsonObject,
        *,
        fits: bool = True,
        conversation_id: str | None = None,
    ) -> Frame:
        """`workflow.start`; return the `ack`."""
        request_id = new_id("q")

        def line(phase: Phase, frame: Frame) -> Line:
            return Start(
                phase=phase,
                request_id=request_id,
                workflow=workflow,
                fits=fits,
                in_conversation=conversation_id,
                conversation_id=_given(phase, frame, "conversation_id"),
                run_id=_given(phase, frame, "run_id"),
                problem=_problem(phase, frame),
            )

        frame: Frame = {"type": "workflow.start", "workflow": workflow, "parameters": parameters}
        where: Frame = {} if conversation_id is None else {"conversation_id": conversation_id}
        return await user.request({**frame, **where, "id": request_id}, on_phase=self._recorder(line))

    def _recorder(self, line: Callable[[Phase, Frame], Line]) -> OnPhase:
        return lambda phase, frame: self.recording.add(line(cast(Phase, phase), frame))


def _given(phase: Phase, frame: Frame, name: str) -> Any:
    """Return a field of an `ack`; None in every other phase."""
    return frame.get(name) if phase == "ok" else None


def _problem(phase: Phase, frame: Frame) -> str | None:
    return frame.get("message") if phase in ("fail", "info") else None
