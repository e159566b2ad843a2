"""How the log records the messages of users that arrive: a run starts, or is queued behind another."""

from __future__ import annotations

from collections.abc import Iterable

from banksman.contracts.events import EventBody, RunQueued, RunStarted
from banksman.contracts.work import StartRun
from banksman.runs.outcome import never_started
from banksman.runs.owner import Part
from banksman.runs.ports import Ports
from banksman.runs.state import Conversation
from banksman.runs.steps import CANCELLED, DELETED

BATCH_CHARS = 256 * 1024
"""Characters of messages after which a commit records no further one."""


def batch(state: Conversation, starts: Iterable[StartRun]) -> tuple[StartRun, ...]:
    """Return the first starts that the log does not know, as many as fit one commit; at least one."""
    new: dict[str, StartRun] = {}
    room = BATCH_CHARS
    for start in starts:
        if not state.knows(start.run_id) and start.run_id not in new:
            room -= len(start.model_dump_json())
            if new and room < 0:
                break
            new[start.run_id] = start
    return tuple(new.values())


def queued(ports: Ports, start: StartRun) -> Part:
    """Return the events of a run that waits for an earlier one; a run that can never start ends at once."""
    work = ports.capped(start)

    def build(state: Conversation) -> tuple[EventBody, ...]:
        waits = RunQueued(
            position=len(state.queue) + 1,
            message_id=work.message_id,
            message=work.content,
            settings=work.settings,
            provenance=work.provenance,
        )
        if state.deleted:
            return waits, never_started(work.settings, DELETED)
        if work.run_id in state.cancelled_early:
            return waits, never_started(work.settings, CANCELLED)
        return (waits,)

    return work.run_id, build


def started(ports: Ports, start: StartRun) -> Part:
    """Return the start of a run, which is queued if another one is open or queued."""
    work, (_, as_queued) = ports.capped(start), queued(ports, start)

    def build(state: Conversation) -> Iterable[EventBody]:
        if state.run is not None or state.queue:
            return as_queued(state)
        begins = RunStarted(
            message_id=work.message_id,
            message=work.content,
            settings=work.settings,
            provenance=work.provenance,
        )
        return (begins,)

    return work.run_id, build
