"""What people say while a run changes its owner: nothing of it is lost, and nothing counts twice."""

from __future__ import annotations

import pytest

from banksman.contracts.events import ItemDecision
from banksman.contracts.messages import UserMessage
from banksman.contracts.work import RenameConversation
from banksman.gateway.service.door import Verdict
from tests.runs.plans import Plan, asking, calls
from tests.runs.processes import Task
from tests.runs.scene import Scene

EFFECT = Plan((calls("effect"),))
dies = pytest.mark.parametrize("died_at", ["model", "append", "call", "forget"])
comes = pytest.mark.parametrize("comes_at", ["read log", "append", "model"])
handled = pytest.mark.parametrize("handler", ["", "append", "nudge", "ack"], ids=lambda at: at or "lives")


def taken_over(died_at: str, comes_at: str) -> tuple[Scene, Task]:
    """An owner has died there, and who takes its run over stands here."""
    scene = Scene()
    scene.start(EFFECT)
    scene.crash(scene.run_to(died_at, seconds=3).process)
    successor = scene.redeliver(scene.work(), scene.other)
    walk(scene, successor, comes_at)
    return scene, successor


def walk(scene: Scene, task: Task, label: str) -> None:
    """Let a task go on until it stands there, waits for somebody, or is over."""
    while task in scene.ready and task.op is not None and task.op.label != label:
        scene.step(task)


def hear(scene: Scene, handler: str) -> None:
    """Another agent acts on the signal, and may die of it; then it is delivered once more."""
    scene.restart(scene.agent)
    signal = scene.broker.queues["signals"].messages[0]
    task = scene.redeliver(signal, scene.agent, "signals")
    walk(scene, task, handler)
    if not task.over:
        scene.crash_at(task, done=True)
        scene.restart(scene.agent)
    signal.acked = False


@dies
@comes
@handled
def test_a_message_that_steers_is_heard_once(died_at: str, comes_at: str, handler: str) -> None:
    """P1, P2."""
    scene, _ = taken_over(died_at, comes_at)
    scene.steer("c", 1, Plan())
    hear(scene, handler)
    scene.end()
    said = [str(message.content) for message in scene.state.history if isinstance(message, UserMessage)]
    assert said.count("and this") == 1
    assert set(scene.outcomes()) == {"completed"}
    assert scene.executed() == 1


@dies
@comes
@handled
def test_a_cancel_ends_the_run_once(died_at: str, comes_at: str, handler: str) -> None:
    """P1, P7: unless it had ended."""
    scene, _ = taken_over(died_at, comes_at)
    scene.cancel(scene.work().body.run_id)
    hear(scene, handler)
    heard = "run.cancel_requested" in scene.story()
    scene.end()
    assert scene.story().count("run.cancel_requested") <= 1
    assert scene.outcomes() == (["cancelled"] if heard else ["completed"])
    assert scene.executed() <= 1


@dies
@comes
@handled
def test_a_title_is_given_once(died_at: str, comes_at: str, handler: str) -> None:
    scene, _ = taken_over(died_at, comes_at)
    scene.signal("rename", RenameConversation(tenant="acme", conversation_id="c", title="Pumps"))
    hear(scene, handler)
    scene.end()
    assert scene.state.title == "Pumps"
    assert scene.story().count("conversation.updated") == 1
    assert scene.outcomes() == ["completed"]


@pytest.mark.parametrize("label", ["read log", "append", "place", "call", "model", "forget", "ack"])
@pytest.mark.parametrize("done", [False, True])
def test_arguments_that_a_person_edited_are_executed_once_whoever_resumes(label: str, done: bool) -> None:
    """P3, P4: whoever claims after the decision dies; the next one has the same arguments."""
    scene = Scene()
    scene.start(Plan((calls(asking()),)))
    scene.run()
    (item,) = scene.question.items
    edit = ItemDecision(tool_call_id=item.tool_call_id, decision="approve", arguments={"edited": True})
    scene.decide(Verdict(by="ann", decisions=(edit,)))
    scene.crash_at(scene.run_to(label, seconds=3), done=done)
    scene.run(seconds=10)
    assert scene.outcomes() == ["completed"]
    [ended] = scene.ledger.ended.values()
    assert [tracked.params for tracked in ended.tool_calls] == [{"edited": True}]
    assert scene.executed() == 1
    scene.end()
