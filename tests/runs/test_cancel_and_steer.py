"""Design 5, cancel, steer, limits and deletion: what people may do to a run, whatever it is doing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from banksman.contracts.events import RunFinished
from banksman.contracts.messages import UserMessage
from banksman.contracts.work import RenameConversation
from tests.runs.plans import CallPlan, Plan, asking, calls
from tests.runs.scene import Scene

EFFECT = Plan((calls("effect"),))
HANGS = Plan((calls(CallPlan(hangs=True)),))
ASKS = Plan((calls(asking()),))


def queued(scene: Scene) -> str:
    scene.start(ASKS, Plan())
    scene.run()
    return scene.state.queue[0].run_id


def asked(scene: Scene) -> str:
    scene.start(Plan())
    scene.run_to("model")
    scene.agent.paused = True
    return scene.open_run.run_id


def working(scene: Scene) -> str:
    scene.start(HANGS)
    scene.run()
    return scene.open_run.run_id


def working_and_asking(scene: Scene) -> str:
    scene.start(Plan((calls(CallPlan(hangs=True), asking()),)))
    scene.run()
    return scene.open_run.run_id


def parked(scene: Scene) -> str:
    scene.start(ASKS)
    scene.run()
    return scene.open_run.run_id


def decided(scene: Scene) -> str:
    parked(scene)
    scene.decide("approve")
    scene.fail(scene.run_to("publish work"), done=False)
    scene.broker.queues["replies"].messages[0].not_before = scene.now.replace(year=2030)
    return scene.open_run.run_id


STATES = {
    "queued": queued,
    "asking the model": asked,
    "calls run": working,
    "calls run while a question is open": working_and_asking,
    "parked": parked,
    "decided, not resumed": decided,
}
states = pytest.mark.parametrize("state", STATES.values(), ids=STATES)
Reach = Callable[[Scene], str]


def said(scene: Scene) -> list[str]:
    return [str(message.content) for message in scene.state.history if isinstance(message, UserMessage)]


def ended(scene: Scene, run_id: str) -> RunFinished:
    return scene.ledger.ended[run_id]


def release(scene: Scene) -> None:
    """Whatever a state held back goes on."""
    scene.agent.paused = False
    for queue in scene.broker.queues.values():
        for message in queue.open:
            message.not_before = None


# -- cancel ------------------------------------------------------------------------------------------------


@states
def test_a_run_is_cancelled_in_every_state_and_nothing_of_it_begins_afterwards(state: Reach) -> None:
    """P7, P1."""
    scene = Scene()
    run_id = state(scene)
    scene.cancel(run_id)
    scene.run()
    before = scene.executed()
    release(scene)
    scene.run(seconds=3)
    assert ended(scene, run_id).status == "cancelled"
    assert scene.executed() == before
    scene.end()


@states
def test_a_second_cancel_changes_nothing(state: Reach) -> None:
    """P7."""
    scene = Scene()
    run_id = state(scene)
    for request in ("one", "two"):
        scene.cancel(run_id, request)
    scene.run()
    release(scene)
    scene.run(seconds=3)
    assert scene.story().count("run.cancel_requested") <= 1
    assert ended(scene, run_id).status == "cancelled"
    scene.end()


@pytest.mark.parametrize("label", ["append", "settle approval", "publish work", "nudge", "ack"])
@pytest.mark.parametrize("done", [False, True])
@states
def test_a_cancel_is_honoured_though_its_handler_dies(state: Reach, label: str, done: bool) -> None:
    """P1, P7."""
    scene = Scene()
    run_id = state(scene)
    scene.cancel(run_id)
    scene.agent.paused = True
    signal = scene.broker.queues["signals"].messages[0]
    task = scene.redeliver(signal, scene.other, "signals")
    while not task.over and task.op is not None and task.op.label != label:
        scene.step(task)
    if not task.over:
        scene.crash_at(task, done=done)
    scene.restart(scene.other)
    scene.run()
    release(scene)
    scene.run(seconds=5)
    assert ended(scene, run_id).status == "cancelled"
    scene.end()


def closed_and_not_said_why(scene: Scene) -> None:
    """Whoever closes the question stands before the log; another agent hears that it is closed."""
    held = scene.run_to("settle approval")
    scene.step(held)
    held.process.paused = True
    scene.run()
    assert scene.broker.queues["replies"].messages[0].acked
    held.process.paused = False


def test_a_question_that_a_cancel_closes_brings_no_run_back_to_work() -> None:
    """P7: the answer in the slot comes before the cancel in the log, and is no decision to go on from."""
    scene = Scene()
    run_id = parked(scene)
    scene.cancel(run_id)
    closed_and_not_said_why(scene)
    assert scene.story().count("iteration.started") == 1
    scene.run(seconds=5)
    assert ended(scene, run_id).status == "cancelled"
    assert (scene.kinds(), scene.story().count("iteration.started")) == (["cancelled"], 1)
    scene.end()


def test_a_question_that_a_message_supersedes_is_gone_on_from_with_the_message() -> None:
    """The model is not asked about what it will be told a moment later."""
    scene = Scene()
    parked(scene)
    scene.steer("c", 1, Plan())
    closed_and_not_said_why(scene)
    assert scene.story().count("iteration.started") == 1
    scene.run(seconds=5)
    assert (scene.kinds(), scene.outcomes()) == (["not_executed"], ["completed"])
    assert scene.story().count("iteration.started") == 2
    scene.end()


def test_a_run_that_is_cancelled_before_its_start_is_seen_ends_with_it() -> None:
    scene = Scene()
    scene.start(EFFECT)
    run_id = scene.work().body.run_id
    scene.cancel(run_id)
    scene.redeliver(scene.broker.queues["signals"].messages[0], scene.agent, "signals")
    scene.run_until(lambda: scene.broker.queues["signals"].messages[0].acked)
    scene.run(seconds=5)
    assert scene.story() == ["run.cancel_requested", "run.started", "run.finished"]
    assert scene.executed() == 0
    scene.end()


def test_a_run_that_is_cancelled_before_it_is_queued_never_starts() -> None:
    scene = Scene()
    scene.start(ASKS)
    scene.run()
    scene.start(EFFECT)
    scene.cancel(scene.work(1).body.run_id)
    scene.redeliver(scene.broker.queues["signals"].messages[0], scene.agent, "signals")
    scene.run_until(lambda: scene.broker.queues["signals"].messages[0].acked)
    scene.run()
    assert scene.commits()[-1] == ["run.queued", "run.finished"]
    assert not scene.state.queue
    scene.end()


# -- steer -------------------------------------------------------------------------------------------------


@states
def test_a_message_is_heard_in_every_state_and_exactly_once(state: Reach) -> None:
    scene = Scene()
    state(scene)
    scene.steer("c", 1, Plan())
    scene.run()
    release(scene)
    scene.end()
    assert said(scene).count("and this") == 1


@states
def test_a_steer_that_is_delivered_again_adds_nothing(state: Reach) -> None:
    scene = Scene()
    state(scene)
    scene.steer("c", 1, Plan())
    scene.run()
    signal = scene.broker.queues["signals"].messages[0]
    signal.acked = False
    release(scene)
    scene.end()
    assert said(scene).count("and this") == 1
    signal.acked = False
    scene.end()
    assert said(scene).count("and this") == 1


def test_a_steer_supersedes_the_question_of_a_parked_run_and_the_model_goes_on_with_it() -> None:
    scene = Scene()
    parked(scene)
    scene.steer("c", 1, Plan())
    scene.run(seconds=5)
    assert (scene.kinds(), scene.outcomes()) == (["not_executed"], ["completed"])
    assert said(scene) == ["go", "and this"]
    assert scene.census["approval: superseded"] == 1
    scene.end()


def test_a_steer_that_is_delivered_again_does_not_withdraw_the_next_question() -> None:
    scene = Scene()
    scene.start(Plan((calls(asking()), calls(asking()))))
    scene.run()
    scene.steer("c", 1, Plan())
    scene.run(seconds=5)
    assert scene.open_run.waits
    scene.broker.queues["signals"].messages[0].acked = False
    scene.run()
    assert scene.open_run.waits
    scene.end()


def test_a_steer_before_the_final_answer_is_stored_gets_an_answer_of_its_own() -> None:
    scene = Scene()
    asked(scene)
    scene.steer("c", 1, Plan())
    scene.run()
    release(scene)
    scene.run()
    assert scene.story().count("iteration.started") == 2
    assert scene.outcomes() == ["completed"]
    scene.end()


def test_a_steer_that_finds_nothing_open_is_a_run_of_its_own() -> None:
    scene = Scene()
    run_id = scene.steer("c", 1, EFFECT)
    scene.run(seconds=5)
    assert ended(scene, run_id).status == "completed"
    assert scene.executed() == 1
    scene.end()


@pytest.mark.parametrize("done", [False, True])
def test_a_steer_is_a_run_or_a_message_of_another_and_never_both(done: bool) -> None:
    """Between its two deliveries somebody else starts a run."""
    scene = Scene()
    scene.steer("c", 1, Plan())
    scene.crash_at(scene.run_to("append"), done=done)
    scene.start(ASKS)
    scene.end()
    assert said(scene).count("and this") == 1


def test_a_steer_in_the_last_iteration_gets_a_run_of_its_own_and_an_answer() -> None:
    """The open run has no model request left that could hear it."""
    scene = Scene()
    scene.start(Plan((calls(CallPlan(hangs=True)),), max_iterations=1))
    scene.run()
    run_id = scene.steer("c", 1, Plan())
    scene.run()
    assert scene.state.queue[0].run_id == run_id
    scene.cancel(scene.open_run.run_id)
    scene.end()
    assert ended(scene, run_id).status == "completed"
    assert said(scene).count("and this") == 1


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("label", ["settle approval", "append", "publish work"])
def test_a_steer_that_meets_a_question_of_the_last_iteration_does_not_wait_for_its_answer(
    label: str, done: bool
) -> None:
    """Also when the one who brings it dies at any step."""
    scene = Scene()
    scene.start(Plan((calls(asking()),), max_iterations=1))
    scene.run()
    run_id = scene.steer("c", 1, Plan())
    scene.crash_at(scene.run_to(label), done=done)
    scene.end()
    assert [scene.ledger.ended[one].status for one in scene.ledger.ended] == ["max_iterations", "completed"]
    assert ended(scene, run_id).status == "completed"
    assert scene.kinds()[0] == "not_executed"
    assert said(scene).count("and this") == 1


def test_a_steer_to_a_run_that_ends_waits_for_its_own_turn() -> None:
    scene = Scene()
    working(scene)
    scene.lossy = lambda: True
    scene.cancel(scene.open_run.run_id)
    scene.run()
    run_id = scene.steer("c", 1, Plan())
    scene.run()
    assert scene.state.queue[0].run_id == run_id
    scene.end()
    assert [finished.status for finished in scene.ledger.ended.values()] == ["cancelled", "completed"]


# -- limits ------------------------------------------------------------------------------------------------


def test_a_run_ends_at_its_time_limit() -> None:
    """P12."""
    scene = Scene()
    scene.start(Plan(HANGS.replies, run_timeout_s=20))
    scene.run(seconds=19)
    assert not scene.outcomes()
    scene.run(seconds=3)
    assert scene.outcomes() == ["timed_out"]
    scene.end()


def test_the_time_that_a_run_waits_for_a_person_does_not_count() -> None:
    scene = Scene()
    scene.start(Plan(ASKS.replies, run_timeout_s=20))
    scene.run()
    scene.run(seconds=1_000)
    scene.decide("approve")
    scene.run(seconds=5)
    assert scene.outcomes() == ["completed"]
    scene.end()


def test_the_time_that_calls_run_beside_an_open_question_counts() -> None:
    """Otherwise a call that hangs there keeps its owner busy until the question expires."""
    scene = Scene()
    scene.start(Plan((calls(CallPlan("pure", hangs=True), asking()),), run_timeout_s=20))
    scene.run(seconds=25)
    assert scene.outcomes() == ["timed_out"]
    scene.end()


def test_a_run_ends_at_its_iteration_limit() -> None:
    """P12."""
    scene = Scene()
    scene.start(Plan((calls("effect"),) * 5, max_iterations=3))
    scene.run(seconds=20)
    assert scene.outcomes() == ["max_iterations"]
    assert scene.executed() == 3
    scene.end()


def test_a_run_ends_at_its_token_limit() -> None:
    """P12."""
    scene = Scene()
    scene.start(Plan((calls("effect"),) * 5, max_tokens=30))
    scene.run(seconds=20)
    assert scene.census["end: failed token_limit"] == 1
    assert scene.executed() == 2
    scene.end()


# -- deletion ----------------------------------------------------------------------------------------------


@states
def test_a_deletion_ends_what_is_open_and_all_that_waits_behind_it(state: Reach) -> None:
    scene = Scene()
    run_id = state(scene)
    scene.delete("c")
    scene.run()
    release(scene)
    scene.run(seconds=10)
    assert ended(scene, run_id).status == "cancelled"
    assert scene.census["delete: purged"] == 1
    assert not scene.state.history
    scene.end()


def test_a_start_that_arrives_after_the_purge_finds_the_conversation_deleted() -> None:
    """P1. What was accepted has an end, also here."""
    scene = Scene()
    parked(scene)
    scene.delete("c")
    scene.run(seconds=10)
    scene.start(EFFECT)
    scene.run(seconds=10)
    assert scene.outcomes() == ["cancelled"]
    assert scene.executed() == 0
    scene.end()


@pytest.mark.parametrize("late", ["start", "rename"])
def test_what_comes_between_the_tombstone_and_the_purge_brings_no_deleted_conversation_back(
    late: str,
) -> None:
    """P1."""
    scene = Scene()
    parked(scene)
    scene.delete("c")
    purge = scene.run_to("purge", seconds=10)
    if late == "start":
        scene.client_starts("c", "late", EFFECT)
    else:
        named = RenameConversation(tenant="acme", conversation_id="c", title="Pumps", request_id="r1")
        scene.signal("rename", named)
    purge.process.paused = True
    scene.run(seconds=10)
    purge.process.paused = False
    scene.run(seconds=10)
    assert scene.census["delete: purged behind what came late"] == 1
    scene.start(EFFECT)
    scene.run(seconds=10)
    assert set(scene.outcomes()) == {"cancelled"}
    assert scene.executed() == 0
    scene.end()


def test_a_renaming_that_is_delivered_again_brings_no_older_title_back() -> None:
    scene = Scene()
    for number, title in enumerate(("Pumps", "Valves")):
        named = RenameConversation(tenant="acme", conversation_id="c", title=title, request_id=f"r{number}")
        scene.signal(f"rename-{number}", named)
        scene.run()
    scene.broker.queues["signals"].messages[0].acked = False
    scene.run()
    assert scene.state.title == "Valves"
    assert scene.story().count("conversation.updated") == 2
    scene.end()


def test_a_title_is_set_whatever_the_run_does() -> None:
    scene = Scene()
    working(scene)
    scene.signal("rename", RenameConversation(tenant="acme", conversation_id="c", title="Pumps"))
    scene.run()
    assert scene.state.title == "Pumps"
    assert scene.open_run.cancel is None
    scene.end()
