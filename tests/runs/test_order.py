"""What was acknowledged first runs first (P19), in whatever order messages are delivered."""

from __future__ import annotations

from itertools import permutations

import pytest

from banksman.contracts.events import MessageCompleted
from banksman.contracts.messages import UserMessage
from tests.runs.plans import Plan
from tests.runs.scenario import Scenario

ORDERS = list(permutations(range(4)))


def arrived(scenario: Scenario, order: tuple[int, ...]) -> None:
    """Deliver work messages in an order, each when the handler before it drives a run or has ended."""
    for number in order:
        scenario.deliver("work", scenario.work(number), scenario.agents[number % 2])
        scenario.run_until(lambda: all(task.op and task.op.label == "model" for task in scenario.ready))


def signalled(scenario: Scenario, order: tuple[int, ...]) -> None:
    """Deliver signals in an order, during a model request of the agent that drives the run."""
    scenario.agent.paused = True
    for number in order:
        scenario.redeliver(scenario.broker.queues["signals"].messages[number], scenario.other, "signals")
        scenario.run_until(lambda: not scenario.other.tasks)
    scenario.agent.paused = False


def said(scenario: Scenario) -> list[str]:
    return [str(one.content) for one in scenario.state.history if isinstance(one, UserMessage)]


@pytest.mark.parametrize("order", ORDERS)
def test_runs_begin_in_the_order_of_their_messages(order: tuple[int, ...]) -> None:
    scenario = Scenario()
    for number in range(4):
        scenario.start(Plan(), content=f"{number}")
    arrived(scenario, order)
    scenario.run(seconds=10)
    assert said(scenario) == ["0", "1", "2", "3"]
    scenario.end()


@pytest.mark.parametrize("order", ORDERS)
def test_messages_too_long_for_one_commit_keep_their_order(order: tuple[int, ...]) -> None:
    """The handler of the last one may record the others in several commits before its own."""
    scenario = Scenario()
    for number in range(4):
        scenario.start(Plan(), content=f"{number}" * 200_000)
    arrived(scenario, order)
    scenario.run(seconds=10)
    assert [text[0] for text in said(scenario)] == ["0", "1", "2", "3"]
    scenario.end()


def test_an_agent_that_dies_after_the_claim_of_an_earlier_message_loses_none() -> None:
    """It claimed under the later message, which is redelivered."""
    scenario = Scenario()
    scenario.start(Plan(), content="0")
    scenario.start(Plan(), content="1")
    scenario.deliver("work", scenario.work(1), scenario.agent)
    scenario.crash_at(scenario.run_to("model"), done=True)
    scenario.run(seconds=10)
    assert said(scenario) == ["0", "1"]
    assert scenario.outcomes() == ["completed", "completed"]
    scenario.end()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_messages_that_steer_keep_their_order(order: tuple[int, ...]) -> None:
    scenario = Scenario()
    scenario.start(Plan((), max_iterations=4))
    scenario.run_to("model")
    steers = [scenario.steer("c", number, Plan()) for number in range(2)]
    signalled(scenario, order)
    scenario.run(seconds=10)
    told = [body.message_id for body in scenario.bodies() if isinstance(body, MessageCompleted)]
    assert [one for one in told if one.startswith("m-")] == [f"m-{steer}" for steer in steers]
    scenario.end()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_cancel_ends_a_message_that_steered_before_it(order: tuple[int, ...]) -> None:
    """It does not become a run of its own, and one that steers after the cancel does."""
    scenario = Scenario()
    scenario.start(Plan())
    scenario.run_to("model")
    scenario.steer("c", 1, Plan())
    scenario.cancel(scenario.open_run.run_id)
    signalled(scenario, order)
    later = scenario.steer("c", 2, Plan())
    scenario.run(seconds=10)
    assert set(scenario.invariants.ended) == {scenario.work().body.run_id, later}
    assert scenario.outcomes() == ["cancelled", "completed"]
    scenario.end()


def test_a_deletion_ends_all_queued_runs_in_one_commit() -> None:
    scenario = Scenario()
    for _ in range(5):
        scenario.start(Plan())
    scenario.run_to("model")
    scenario.agent.paused = True
    scenario.run()
    scenario.delete("c")
    scenario.run()
    ended = [kinds for kinds in scenario.commits() if "conversation.updated" in kinds]
    assert ended[0] == ["run.finished"] * 4 + ["conversation.updated"]
    scenario.agent.paused = False
    scenario.run(seconds=10)
    assert [end.status for end in scenario.invariants.ended.values()] == ["cancelled"] * 5
    scenario.end()


def test_a_message_that_steers_no_run_keeps_its_place() -> None:
    """The handler of the last message records the two before it."""
    scenario = Scenario()
    scenario.start(Plan(), content="first")
    scenario.steer("c", 1, Plan())
    scenario.start(Plan(), content="last")
    scenario.deliver("work", scenario.work(1), scenario.agent)
    scenario.run(seconds=10)
    assert said(scenario) == ["first", "and this", "last"]
    scenario.end()
