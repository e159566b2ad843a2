"""The protocol under crashes, duplicates, reordering and delay at every await, shrunk by hypothesis.

Each step of the machine is one port call of one process, or one fault. The invariants are those of the random
schedules; instead of a seed, a failure prints the shortest sequence of steps that Hypothesis finds.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from banksman.gateway.approvals.decisions import SubmittedDecision
from tests.runs.plans import CallPlan, Plan, Reply
from tests.runs.world import World

CONVERSATIONS = ("c1", "c2")
QUEUES = ("work", "signals", "replies", "timers")
index = st.integers(0, 63)
planned = st.builds(
    CallPlan, name=st.sampled_from(["effect", "pure"]), needs_approval=st.booleans(), terminate=st.booleans()
)
replies = st.builds(Reply, calls=st.lists(planned, min_size=1, max_size=2).map(tuple))
plans = st.builds(
    Plan, replies=st.lists(replies, max_size=2).map(tuple), feedback=st.booleans(), compacts=st.booleans()
)


class Protocol(RuleBasedStateMachine):
    """Two agents, a gateway, two runners and the broker."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[bool] = []
        self.world = World(lossy=lambda: self.losses.pop() if self.losses else False)

    @rule(conversation=st.sampled_from(CONVERSATIONS), request=st.integers(0, 5), plan=plans)
    def a_client_starts_a_run_or_repeats_its_request(
        self, conversation: str, request: int, plan: Plan
    ) -> None:
        self.world.client_starts(conversation, f"{conversation}-q{request}", plan)

    @precondition(lambda self: self.world.ready)
    @rule(which=index, steps=st.integers(1, 12), losses=st.lists(st.booleans(), max_size=4))
    def a_task_continues(self, which: int, steps: int, losses: list[bool]) -> None:
        self.losses = losses
        for _ in range(steps):
            ready = self.world.ready
            if ready:
                self.world.step(ready[which % len(ready)])

    @rule(conversation=st.sampled_from(CONVERSATIONS))
    def store_snapshot(self, conversation: str) -> None:
        self.world.store_snapshot(conversation)

    @precondition(lambda self: self.world.ready)
    @rule(which=index, done=st.booleans())
    def a_process_crashes_at_an_await(self, which: int, done: bool) -> None:
        ready = self.world.ready
        self.world.crash_at(ready[which % len(ready)], done=done)

    @precondition(lambda self: self.world.ready)
    @rule(which=index, done=st.booleans())
    def the_broker_fails_one_request(self, which: int, done: bool) -> None:
        failing = [task for task in self.world.ready if task.op and task.op.may_fail]
        if failing:
            self.world.fail(failing[which % len(failing)], done=done)

    @rule(which=index)
    def a_process_stops_or_comes_back(self, which: int) -> None:
        process = self.world.processes[which % len(self.world.processes)]
        process.paused = process.up and not process.paused
        self.world.restart(process)

    @rule(queue=st.sampled_from(QUEUES), which=index, agent=st.integers(0, 1))
    def a_message_is_delivered_or_redelivered(self, queue: str, which: int, agent: int) -> None:
        messages = self.world.broker.queues[queue].open
        if messages:
            self.world.deliver(queue, messages[which % len(messages)], self.world.agents[agent])

    @rule(queue=st.sampled_from(QUEUES[:2]), which=index)
    def a_message_is_stored_twice(self, queue: str, which: int) -> None:
        self.world.broker.duplicate(queue, which)

    @rule(which=st.integers(0, 1))
    def a_runner_is_cut_off_and_replaced(self, which: int) -> None:
        runner = list(self.world.runners.values())[which]
        if runner.up and len(self.world.zombies) < 2:
            self.world.cut_off(runner)

    @rule()
    def time_passes(self) -> None:
        self.world.pass_time_to_next_wake()

    @rule(which=index, verdict=st.sampled_from(["approve", "reject"]))
    def a_user_decides(self, which: int, verdict: str) -> None:
        requests = list(self.world.broker.requests)
        if requests:
            self.world.client_decides(
                requests[which % len(requests)], SubmittedDecision(by="ann", all=verdict)
            )

    @rule(which=index)
    def a_user_cancels(self, which: int) -> None:
        known = sorted(self.world.plans)
        if known:
            self.world.cancel(known[which % len(known)])

    @rule(conversation=st.sampled_from(CONVERSATIONS), number=st.integers(0, 2), plan=plans)
    def a_user_steers(self, conversation: str, number: int, plan: Plan) -> None:
        self.world.steer(conversation, number, plan)

    def teardown(self) -> None:
        self.losses = []
        self.world.settle_down()
        self.world.invariants.check_at_rest()


Protocol.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class TestProtocol(Protocol.TestCase):
    """No lost run, no double start, one terminal event and one result per call, under any faults."""
