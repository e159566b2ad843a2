"""The protocol under crashes, duplicates, reordering and delay at every await.

Each step of the machine is one port call of one process, or one fault. After each, the invariants of
`World.check` hold; when the faults end and people answer, every accepted run has exactly one end, every call
exactly one result, and no effect happened twice.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from banksman.contracts.work import CancelRun, SteerRun
from banksman.runs.door import Verdict
from tests.runs.world import TENANT, Plan, Process, World, start_of

CONVERSATIONS = ("c1", "c2")
index = st.integers(0, 63)
plans = st.lists(
    st.lists(st.tuples(st.sampled_from(["effect", "pure"]), st.booleans()), min_size=1, max_size=2).map(tuple),
    max_size=2,
).map(lambda iterations: Plan(tuple(iterations)))


class Protocol(RuleBasedStateMachine):
    """Two agents, a gateway, a runner and the broker."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[bool] = []
        self.world = World(lossy=lambda: self.losses.pop() if self.losses else False)

    @rule(conversation=st.sampled_from(CONVERSATIONS), request=st.integers(0, 5), plan=plans)
    def a_client_starts_a_run_or_repeats_its_request(self, conversation: str, request: int, plan: Plan) -> None:
        self.world.client_start(conversation, f"{conversation}-q{request}", plan)

    @precondition(lambda self: self.world.ready_tasks())
    @rule(which=index, steps=st.integers(1, 12), losses=st.lists(st.booleans(), max_size=4))
    def somebody_goes_on(self, which: int, steps: int, losses: list[bool]) -> None:
        self.losses = losses
        for _ in range(steps):
            ready = self.world.ready_tasks()
            if ready:
                ready[which % len(ready)].step()
                self.world.check()

    @precondition(lambda self: self.world.ready_tasks())
    @rule(which=index, applied=st.booleans())
    def somebody_crashes_at_an_await(self, which: int, applied: bool) -> None:
        ready = self.world.ready_tasks()
        task = ready[which % len(ready)]
        if applied and task.op is not None:
            task.op.do()
        task.process.crash()
        self.world.check()

    @rule(which=index)
    def a_process_comes_back(self, which: int) -> None:
        down = [process for process in self.world.processes if not process.up]
        if down:
            self.world.restart(down[which % len(down)])

    @rule(which=index, agent=st.integers(0, 1))
    def work_is_delivered_or_redelivered(self, which: int, agent: int) -> None:
        self.world.deliver(self.world.work, which, self.world.agents[agent])

    @rule(which=index, agent=st.integers(0, 1))
    def a_signal_is_delivered_or_redelivered(self, which: int, agent: int) -> None:
        self.world.deliver(self.world.signals, which, self.world.agents[agent])

    @rule(which=index, agent=st.integers(0, 1))
    def a_decision_is_delivered_or_redelivered(self, which: int, agent: int) -> None:
        self.world.deliver(self.world.replies, which, self.world.agents[agent])

    @rule(which=index)
    def a_message_is_stored_twice(self, which: int) -> None:
        self.world.duplicate(self.world.work, which)

    @rule()
    def the_runner_is_cut_off_and_replaced(self) -> None:
        if self.world.runner.up and len(self.world.zombies) < 2:
            self.world.pause_runner()

    @rule()
    def time_passes(self) -> None:
        self.world.advance_to_next_wake()

    @rule(which=index, verdict=st.sampled_from(["approve", "reject"]))
    def a_person_decides(self, which: int, verdict: str) -> None:
        asked = list(self.world.requests)
        if asked:
            self.world.client_decide(asked[which % len(asked)], Verdict(by="ann", all=verdict))

    @rule(which=index)
    def a_person_cancels(self, which: int) -> None:
        known = sorted(self.world.plans)
        if known:
            run_id = known[which % len(known)]
            cancel = CancelRun(
                tenant=TENANT, conversation_id=run_id.partition("-")[0], run_id=run_id, by="ann"
            )
            self.world.client_signal(f"cancel-{run_id}", cancel)

    @rule(conversation=st.sampled_from(CONVERSATIONS), request=st.integers(0, 2))
    def a_person_steers(self, conversation: str, request: int) -> None:
        run_id, message_id = f"{conversation}-steer{request}", f"m-steer{request}"
        self.world.plans.setdefault(run_id, Plan(()))
        start = start_of(conversation, run_id, message_id)
        steer = SteerRun(
            tenant=TENANT,
            conversation_id=conversation,
            message_id=message_id,
            content="and this",
            start=start,
            by="ann",
        )
        self.world.client_signal(f"steer-{run_id}", steer)

    def teardown(self) -> None:
        self.losses = []
        self.world.settle_down()
        self.world.check_end()


Protocol.TestCase.settings = settings(
    max_examples=600,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class TestProtocol(Protocol.TestCase):  # type: ignore[name-defined,misc]  # hypothesis builds the class
    """No lost run, no double start, one terminal event, one result a call, whatever fails and when."""


@pytest.mark.parametrize("seed", range(8))
def test_ten_thousand_random_steps_lose_nothing_and_repeat_nothing(seed: int) -> None:
    """The same world under a longer, seeded storm. The seed is the test's parameter."""
    chance = random.Random(seed)
    world = World(lossy=lambda: chance.random() < 0.1)
    for number in range(1_250):
        _storm(world, chance, number)
        world.check()
    world.lossy = lambda: False
    world.settle_down(most=200_000)
    world.check_end()


def _storm(world: World, chance: random.Random, number: int) -> None:
    if chance.random() < 0.02:
        _start_something(world, chance, number)
    if chance.random() < 0.1:
        agent = chance.choice(world.agents)
        world.deliver(chance.choice([world.work, world.signals, world.replies]), chance.randrange(64), agent)
    if chance.random() < 0.02:
        _fail_something(world, chance)
    if chance.random() < 0.05 and world.requests:
        verdict = Verdict(by="ann", all=chance.choice(["approve", "approve", "reject"]))
        world.client_decide(chance.choice(list(world.requests)), verdict)
    if chance.random() < 0.02:
        world.advance_to_next_wake()
    ready = world.ready_tasks()
    if ready:
        chance.choice(ready).step()


def _start_something(world: World, chance: random.Random, number: int) -> None:
    iterations = tuple(
        tuple((chance.choice(["effect", "pure"]), chance.random() < 0.3) for _ in range(chance.randint(1, 2)))
        for _ in range(chance.randint(0, 3))
    )
    world.client_start(f"c{chance.randrange(4)}", f"q{number}", Plan(iterations))


def _fail_something(world: World, chance: random.Random) -> None:
    process: Process = chance.choice(world.processes)
    if process.up:
        process.crash()
    for down in world.processes:
        if not down.up and chance.random() < 0.7:
            world.restart(down)
