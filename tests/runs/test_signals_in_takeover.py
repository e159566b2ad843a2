"""Signals during a takeover: none is lost, and none takes effect twice."""

from __future__ import annotations

import pytest

from banksman.contracts.approvals import ItemDecision
from banksman.contracts.messages import UserMessage
from banksman.contracts.work import RenameConversation
from banksman.gateway.approvals.decisions import SubmittedDecision
from tests.runs.plans import Plan, calls, needing_approval
from tests.runs.processes import Task
from tests.runs.scenario import Scenario

EFFECT = Plan((calls("effect"),))
dies = pytest.mark.parametrize("died_at", ["model", "append", "call", "forget"])
arrives = pytest.mark.parametrize("arrives_at", ["read log", "append", "model"])
handled = pytest.mark.parametrize("handler", ["", "append", "nudge", "ack"], ids=lambda at: at or "lives")


def taken_over(died_at: str, arrives_at: str) -> tuple[Scenario, Task]:
    """Return a scenario whose owner died at `died_at` and whose new owner is at `arrives_at`."""
    scenario = Scenario()
    scenario.start(EFFECT)
    scenario.crash(scenario.run_to(died_at, seconds=3).process)
    successor = scenario.redeliver(scenario.work(), scenario.other)
    walk(scenario, successor, arrives_at)
    return scenario, successor


def walk(scenario: Scenario, task: Task, label: str) -> None:
    """Run a task until it reaches `label`, waits, or ends."""
    while task in scenario.ready and task.op is not None and task.op.label != label:
        scenario.step(task)


def handle_signal(scenario: Scenario, handler: str) -> None:
    """Let another agent handle the signal; it may die, and then the signal is redelivered."""
    scenario.restart(scenario.agent)
    signal = scenario.broker.queues["signals"].messages[0]
    task = scenario.redeliver(signal, scenario.agent, "signals")
    walk(scenario, task, handler)
    if not task.over:
        scenario.crash_at(task, done=True)
        scenario.restart(scenario.agent)
    signal.acked = False


@dies
@arrives
@handled
def test_a_steer_during_a_takeover_takes_effect_once(died_at: str, arrives_at: str, handler: str) -> None:
    """P1, P2."""
    scenario, _ = taken_over(died_at, arrives_at)
    scenario.steer("c", 1, Plan())
    handle_signal(scenario, handler)
    scenario.end()
    messages = [
        str(message.content) for message in scenario.state.history if isinstance(message, UserMessage)
    ]
    assert messages.count("and this") == 1
    assert set(scenario.outcomes()) == {"completed"}
    assert scenario.executed() == 1


@dies
@arrives
@handled
def test_a_cancel_during_a_takeover_ends_the_run_once(died_at: str, arrives_at: str, handler: str) -> None:
    """P1, P7. A cancel after the end of the run has no effect."""
    scenario, _ = taken_over(died_at, arrives_at)
    scenario.cancel(scenario.work().body.run_id)
    handle_signal(scenario, handler)
    cancelled = "run.cancel_requested" in scenario.story()
    scenario.end()
    assert scenario.story().count("run.cancel_requested") <= 1
    assert scenario.outcomes() == (["cancelled"] if cancelled else ["completed"])
    assert scenario.executed() <= 1


@dies
@arrives
@handled
def test_a_rename_during_a_takeover_takes_effect_once(died_at: str, arrives_at: str, handler: str) -> None:
    scenario, _ = taken_over(died_at, arrives_at)
    scenario.signal(
        "rename", RenameConversation(tenant="acme", conversation_id="c", title="Pumps", request_id="r1")
    )
    handle_signal(scenario, handler)
    scenario.end()
    assert scenario.state.title == "Pumps"
    assert scenario.story().count("conversation.updated") == 1
    assert scenario.outcomes() == ["completed"]


@pytest.mark.parametrize("label", ["read log", "append", "place", "call", "model", "forget", "ack"])
@pytest.mark.parametrize("done", [False, True])
def test_edited_arguments_are_executed_once_after_any_takeover(label: str, done: bool) -> None:
    """P3, P4. The agent that claims after the decision dies; the next one has the same arguments."""
    scenario = Scenario()
    scenario.start(Plan((calls(needing_approval()),)))
    scenario.run()
    (item,) = scenario.approval_request.items
    edit = ItemDecision(tool_call_id=item.tool_call_id, decision="approve", arguments={"edited": True})
    scenario.decide(SubmittedDecision(by="ann", decisions=(edit,)))
    scenario.crash_at(scenario.run_to(label, seconds=3), done=done)
    scenario.run(seconds=10)
    assert scenario.outcomes() == ["completed"]
    [ended] = scenario.invariants.ended.values()
    assert [tracked.params for tracked in ended.tool_calls] == [{"edited": True}]
    assert scenario.executed() == 1
    scenario.end()
