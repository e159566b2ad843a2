"""The loop of a run: model → calls → approval → execution → result → model.

Agents and workflows drive their runs with this loop. The log decides each step, so a loop that continues
after a crash is the same as a loop that begins.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol, assert_never

from banksman.contracts.errors import CallerMistake, Refused
from banksman.contracts.events import EventBody
from banksman.runs.approval.requests import close_request, open_request, publish_requests, resolution
from banksman.runs.coordinator import ToolCallCoordinator
from banksman.runs.outcome import Ending, finished
from banksman.runs.owner import Build, Draft, Ownership, nothing
from banksman.runs.state import Conversation
from banksman.runs.steps import CloseApproval, ExecuteCalls, Idle, Park, RecordEvents, RequestModel, next_step

logger = logging.getLogger(__name__)


class ModelPort(Protocol):
    """Writes the replies of a run: a model behind a provider, or the function of a workflow."""

    async def complete(self, owned: Ownership) -> Build:
        """Request the next reply; return the `Build` of its commit."""
        ...

    def unrecorded(self, error: Exception, reply: Build) -> tuple[Ending, Build] | None:
        """Return the ending if the log cannot store a reply, and the `Build` to commit; None to raise.

        `reply` is what `complete` returned, or `nothing` if it raised `error`. Its usage was paid for.
        """
        ...


async def drive(owned: Ownership, model: ModelPort) -> None:
    """Drive a claimed run until it ends or waits for a decision, after which its message may be acked.

    Raises:
        Fenced: A higher claim owns the run; its work message is neither acked nor nakked.
        Refused: The run is parked or ended, and a message that follows from it is not stored yet.
    """
    calls, published = ToolCallCoordinator.of(owned), False
    driven = ""
    # Each round acts on the log as it is now, because others append too: cancels, decisions, messages.
    while owned.holds:
        if owned.run.run_id != driven and owned.before_run is not None:
            await owned.before_run()
        driven = owned.run.run_id
        try:
            if not published:
                # The process that committed the request may have crashed before it published it.
                await publish_requests(owned.ports, owned.state)
                published = True
            step = next_step(owned.state, owned.ports.clock.now())
            match step:
                case RequestModel():
                    await _request_model(owned, model)
                case ExecuteCalls():
                    await calls.execute(step)
                case CloseApproval(approval_id):
                    await _close_approval(owned, approval_id)
                case RecordEvents() | Park() | Idle():
                    await owned.commit(nothing)
                case _:
                    assert_never(step)
        except Refused as cause:
            logger.info("%s: waiting for the broker: %s", owned.state.conversation_id, cause)
            await owned.wait_for_broker(cause)
            # The broker may have stored what it refused, so the memory of this owner about its calls is no
            # longer valid.
            calls, published = ToolCallCoordinator.resumed(owned), False


async def _request_model(owned: Ownership, model: ModelPort) -> None:
    reply: Build = nothing
    try:
        reply = await model.complete(owned)
        await _record_reply(owned, reply)
    except (CallerMistake, ValueError) as error:
        # The run ends, because the next reply would probably fail as this one does.
        ended = model.unrecorded(error, reply)
        if ended is None:
            raise
        ending, instead = ended
        logger.warning("%s: the reply is not recorded: %s", owned.state.conversation_id, error)
        await _record_reply(owned, partial(_ended, owned, ending, instead))


async def _record_reply(owned: Ownership, reply: Build) -> None:
    """Commit a reply; repeat while the broker refuses it, because another request would be paid for again."""
    request, attempt = _open_request(owned.state), 0
    while True:
        try:
            return await owned.commit(reply)
        except Refused as cause:
            attempt += 1
            level = logging.WARNING if attempt == 1 else logging.INFO
            text = "%s: the reply waits for the broker, attempt %d: %s"
            logger.log(level, text, owned.state.conversation_id, attempt, cause)
            await owned.wait_for_broker(cause)
            # The broker may have stored a commit that it refused; then the log has the reply of this request.
            if _open_request(owned.state) != request:
                raise


def _open_request(state: Conversation) -> tuple[object, ...]:
    """Return the identity of the model request that has no reply in the log yet; () if there is none."""
    run = state.run
    if run is None or not run.asking:
        return ()
    return run.run_id, run.iteration, run.malformed, state.compaction


async def _close_approval(owned: Ownership, approval_id: str) -> None:
    # Read the log first: the slot accepts a write of any owner, and another process may have claimed the run
    # while this one was frozen.
    await owned.refresh()
    request = open_request(owned.state, approval_id) if owned.holds else None
    if request is None:
        return
    stored = await close_request(owned.ports, request, "cancelled")
    await owned.commit(lambda state: resolution(stored, request) if open_request(state, approval_id) else ())


def _ended(owned: Ownership, ending: Ending, instead: Build, state: Conversation) -> tuple[EventBody, ...]:
    """Return the events in place of a reply, and the terminal event unless a stronger reason ends the run."""
    bodies, now = tuple(instead(state)), owned.ports.clock.now()
    if state.run is None or not isinstance(next_step(state, now), RequestModel):
        return bodies
    # The terminal event includes the usage that the events before it record.
    draft = Draft(state, now)
    draft.add(state.run.run_id, bodies)
    return (*bodies, finished(draft.state.run or state.run, ending.status, ending.message, ending))
