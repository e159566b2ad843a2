"""The events of an imported conversation in the log of a new one."""

from __future__ import annotations

from datetime import UTC, datetime

from banksman.contracts.approvals import ApprovalRequested, ApprovalResolved
from banksman.contracts.assistants import Branch, RunSettings
from banksman.contracts.events import (
    Event,
    EventBody,
    IterationStarted,
    MessageCompleted,
    RunFinished,
    RunStarted,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.messages import Usage
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.usage import CommitUsage
from banksman.contracts.work import ImportEvents
from banksman.runs.approval.policy import approval_item
from tests.runs.plans import Plan
from tests.runs.scenario import Scenario

TS = datetime(2024, 1, 1, tzinfo=UTC)
SETTINGS = RunSettings(assistant_id="default", model="demo:demo")


def _run(number: int, after: str | None = None) -> tuple[tuple[str, EventBody], ...]:
    settings = SETTINGS.model_copy(update={"branch": None if after is None else Branch(after=after)})
    call = ToolCall(id=f"call{number}", name="bash", arguments={"command": "ls"})
    asked = ApprovalRequested(approval_id=f"a{number}", expires_at=TS, items=(approval_item(call),))
    decided = ApprovalResolved(
        approval_id=f"a{number}", outcome="approved", by="ann", remember="conversation"
    )
    text, usage = f"Reply {number}", Usage(input_tokens=1_000)
    bodies: tuple[EventBody, ...] = (
        RunStarted(message_id=f"u{number}", message=f"Request {number}", settings=settings),
        IterationStarted(n=1, max=10),
        MessageCompleted(message_id=f"c{number}", role="assistant", content=None, model="m", usage=usage),
        ToolCallRequested(call=call),
        asked,
        decided,
        ToolCallCompleted(result=ToolResult(tool_call_id=call.id, content={"success": True})),
        IterationStarted(n=2, max=10),
        MessageCompleted(message_id=f"r{number}", role="assistant", content=text, model="m"),
        RunFinished(status="completed", content=text, service="banksman", model="m", iterations=2),
    )
    return tuple((f"c-00000000000{number}", body) for body in bodies)


def _parts() -> tuple[ImportEvents, ...]:
    """Return three runs in two parts; the second one begins within the second run."""
    bodies = (*_run(1), *_run(2), *_run(3, after="r1"))
    events = [
        Event(seq=seq, ts=TS, run_id=run_id, imported=True, data=body)
        for seq, (run_id, body) in enumerate(bodies, start=1)
    ]
    parts = (events[:14], events[14:])
    return tuple(ImportEvents(tenant="acme", conversation_id="c", events=tuple(one)) for one in parts)


def test_imported_events_are_appended_once_and_the_conversation_continues_after_them() -> None:
    """An agent that ends halfway leaves the rest to the next one; the model reads the newest branch.

    No decision of the file applies to a later call, no call of it is executed, and its usage does not count.
    """
    scenario = Scenario()
    parts = _parts()
    for number, part in enumerate(parts):
        scenario.signal(f"import-{number}", part)
    scenario.run_to("append").process.crash()
    scenario.run(seconds=60)
    for message in scenario.broker.queues["signals"].messages:
        message.acked = False
    scenario.run(seconds=60)
    assert scenario.story().count("run.finished") == 3
    texts = [str(getattr(one, "content", "result")) for one in scenario.state.history]
    expected = ["Request 1", "None", "result", "Reply 1", "Request 3", "None", "result", "Reply 3"]
    assert texts == expected
    assert scenario.state.run is None and scenario.executed() == 0
    assert scenario.state.imported == 30 and scenario.state.remembered == ()
    assert CommitUsage.of(parts[0].events) == CommitUsage()
    scenario.start(Plan())
    scenario.run(seconds=60)
    assert scenario.outcomes()[-1] == "completed"
    scenario.end()


def test_a_part_waits_for_the_part_before_it_and_no_agent_drives_its_open_run() -> None:
    """Parts are delivered in any order; between them a run of the file is open."""
    scenario = Scenario()
    first, second = _parts()
    scenario.signal("import-1", first)
    scenario.run(seconds=60)
    assert scenario.state.run is not None and scenario.state.imported == 14
    assert scenario.executed() == 0
    scenario.signal("import-2", second)
    scenario.start(Plan())
    scenario.run(seconds=60)
    assert scenario.outcomes() == ["completed"] * 4
    scenario.end()
