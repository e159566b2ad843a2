"""Random schedules: seeded simulations, each with its own mix of faults and user actions.

A seed determines the kinds of faults and users, their rates, and the replies of the model. So some schedules
contain one fault a thousand times and others many kinds at once (swarm testing, Groce et al. 2012,
https://doi.org/10.1145/2338965.2336763). Equal seeds produce equal schedules.

    python -m tests.runs.random_schedule 1000 2000      # seeds 1000 to 1999, and the situations they reach
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from banksman.contracts.approvals import ApprovalItem, ItemDecision
from banksman.contracts.work import ApprovalReply, ApprovalRequest
from banksman.gateway.approvals.decisions import SubmittedDecision
from banksman.runs.approval.requests import sign
from tests.runs.plans import CallPlan, Plan, Reply
from tests.runs.processes import Process, Task
from tests.runs.situations import EXPECTED, SituationCounter
from tests.runs.world import KEY, World

ACTIONS = 260
"""Actions of one schedule; a `go on` is several steps."""

MAX_QUEUED = 2
"""The maximum of queued runs; only active runs meet interesting faults."""

FAULTS = {
    "crash": 0.04,
    "unavailable": 0.04,
    "pause": 0.03,
    "redelivery": 0.06,
    "reordering": 0.2,
    "duplicate": 0.02,
    "cut off": 0.05,
    "late lease": 0.03,
    "loss": 0.15,
    "forgery": 0.03,
    "broker forgets ids": 0.02,
}
USERS = {
    "start": 0.06,
    "repeat": 0.03,
    "decide": 0.09,
    "cancel": 0.03,
    "steer": 0.03,
    "delete": 0.01,
    "long time": 0.03,
}
ALWAYS = {"go on": 0.6, "deliver": 0.15, "short time": 0.05, "recover": 0.08}

TARGETS = (
    "ack", "append", "request approval", "call", "declare", "discard", "effect", "effect ends", "finish",
    "forget", "model", "publish work", "queued", "read log", "settle approval", "start", "void",
)  # fmt: skip
"""Awaits that a schedule may target: a task at such an await may meet a fault."""


@dataclass(frozen=True)
class Emphasis:
    """The actions that a schedule makes likelier, in addition to the choice of its seed."""

    rates: dict[str, float] = field(default_factory=dict)
    targets: tuple[str, ...] = TARGETS
    needs_approval: float = 0.3
    hangs: float = 0.06
    feedback: float = 0.5
    calm: bool = False
    """True for only the faults in `rates`."""


EMPHASES = (
    Emphasis(),
    Emphasis(),
    Emphasis(
        {"cut off": 0.1, "loss": 0.2, "crash": 0.03, "redelivery": 0.05},
        ("start", "queued", "call"),
        needs_approval=0.1,
    ),
    Emphasis(
        {"cut off": 0.05, "crash": 0.05, "long time": 0.06}, ("queued", "start", "effect"), needs_approval=0.1
    ),
    Emphasis({"crash": 0.05}, ("model", "read slots", "alive"), needs_approval=0.2),
    Emphasis(
        {"decide": 0.2, "crash": 0.03},
        ("request approval", "publish work", "settle approval", "append"),
        needs_approval=0.7,
    ),
    Emphasis(
        {"decide": 0.2, "steer": 0.05, "cancel": 0.05},
        ("publish work", "model"),
        needs_approval=0.5,
        feedback=0.9,
    ),
    Emphasis({"decide": 0.25, "deliver": 0.3}, ("", "publish work"), needs_approval=0.8, calm=True),
    Emphasis({"decide": 0.25, "steer": 0.1, "cancel": 0.1}, ("publish work",), needs_approval=0.8, calm=True),
    Emphasis({"crash": 0.02, "loss": 0.1}, ("start",), needs_approval=0.0, calm=True),
    Emphasis({"cut off": 0.06, "crash": 0.06}, ("call", "effect ends"), needs_approval=0.0, calm=True),
    Emphasis(
        {"crash": 0.1, "recover": 0.01, "long time": 0.1, "start": 0.1},
        ("place",),
        needs_approval=0.1,
        calm=True,
    ),
    Emphasis(
        {"cancel": 0.1, "short time": 0.15},
        ("void", "declare", "cancel call", "start"),
        needs_approval=0.1,
        hangs=0.4,
    ),
)


@dataclass
class RandomSchedule:
    """The simulation of one seed, and its possible actions."""

    seed: int
    actions: int = ACTIONS
    chance: random.Random = field(init=False)
    world: World = field(init=False)
    rates: dict[str, float] = field(init=False)
    started: list[tuple[str, str, Plan]] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.emphasis = self.chance.choice(EMPHASES)
        often = 0.0 if self.emphasis.calm else 0.45
        faults = {name: rate for name, rate in FAULTS.items() if self.chance.random() < often}
        users = {name: rate for name, rate in USERS.items() if self.chance.random() < 0.6}
        if self.chance.random() < 0.7:
            users.pop("delete", None)
        self.rates = {
            **ALWAYS,
            **{name: rate * self.chance.choice((1, 1, 3)) for name, rate in faults.items()},
        }
        self.rates |= {"start": USERS["start"], **users, **self.emphasis.rates}
        self.target = self.chance.choice((*self.emphasis.targets, ""))
        self.fault_rate = self.chance.choice((0.05, 0.3, 0.8))
        self.slow = self.chance.choice((self.target, self.chance.choice(TARGETS), ""))
        loss = self.rates.pop("loss", 0.0)
        self.conversations = self.chance.randint(1, 3)
        # A separate generator, so these draws do not change the other choices of a seed.
        self.housekeeping = random.Random(f"housekeeping {self.seed}")
        self.snapshots = self.housekeeping.choice((0.0, 0.02, 0.1))
        self.floods = self.housekeeping.choice((0.0, 0.0, 0.02))
        self.world = World(lossy=lambda: loss > 0 and self.chance.random() < loss)
        self.happens: dict[str, Callable[[], None]] = {
            "go on": self._continue,
            "deliver": self._deliver,
            "redelivery": self._redeliver,
            "reordering": self._reorder,
            "short time": lambda: self.world.pass_time(self.chance.choice((0.3, 1, 2, 3, 10))),
            "long time": lambda: self.world.pass_time(self.chance.choice((30, 65, 120, 400, 4_000))),
            "recover": self._recover,
            "crash": self._crash,
            "unavailable": self._unavailable,
            "pause": self._pause,
            "duplicate": self._duplicate,
            "cut off": self._cut_off,
            "late lease": self._late_lease,
            "forgery": self._forge,
            "broker forgets ids": self._forget_ids,
            "start": self._start,
            "repeat": self._repeat,
            "decide": self._decide,
            "cancel": self._cancel,
            "steer": self._steer,
            "delete": self._delete,
        }

    def run(self) -> SituationCounter:
        """Run all actions, and then run without faults until nothing changes.

        Raises:
            AssertionError: An invariant is violated; the message contains the seed.
        """
        try:
            names, weights = list(self.rates), list(self.rates.values())
            self._start()
            for name in self.chance.choices(names, weights, k=self.actions):
                self.happens[name]()
                self._snapshot()
            self.world.settle_down(users_decide=self.chance.random() < 0.8)
            self.world.invariants.check_at_rest()
        except Exception as error:
            raise AssertionError(f"schedule of seed {self.seed}: {type(error).__name__}: {error}") from error
        return self.world.situations

    # -- progress ------------------------------------------------------------------------------------------

    def _continue(self) -> None:
        ready = self.world.ready
        if not ready:
            if self.chance.random() < 0.3:
                self._recover()
            elif not self.world.deliver_something(self.chance.randrange(2)):
                self.world.pass_time(0.25)
            return
        task = self.chance.choice(ready)
        for _ in range(self.chance.choice((1, 2, 4, 12))):
            if task.op is None or task.over or not task.op.ready():
                return
            if task.op.label == self.target and self.chance.random() < self.fault_rate:
                self._inject_fault(task)
                return
            if task.op.label == self.slow and self.chance.random() < 0.8:
                return
            self.world.step(task)

    def _inject_fault(self, task: Task) -> None:
        """Inject a fault into the task at the targeted await."""
        assert task.op is not None
        done = self.chance.random() < 0.5
        match self.chance.randrange(4):
            case 0 if task.op.may_fail:
                self.world.fail(task, done=done)
            case 1:
                self._cut_off(task.process)
                for agent in self.world.agents:
                    if agent.up and self.chance.random() < 0.4:
                        self.world.crash(agent)
            case 2:
                self._pause(task.process)
            case _:
                self.world.crash_at(task, done=done)

    def _deliver(self) -> None:
        self.world.deliver_something(self.chance.randrange(2))

    def _redeliver(self) -> None:
        queue = self.chance.choice(("work", "work", "signals", "replies", "timers"))
        messages = self.world.broker.queues[queue].open
        if messages:
            self.world.deliver(queue, self.chance.choice(messages), self.chance.choice(self.world.agents))

    def _reorder(self) -> None:
        """Deliver a message before those that were stored earlier."""
        queue = self.chance.choice(("work", "work", "signals"))
        waiting = [message for message in self.world.broker.queues[queue].open if not message.held]
        if len(waiting) > 1:
            self.world.situations["fault: deliveries reordered"] += 1
            message = self.chance.choice(waiting[1:])
            self.world.deliver(queue, message, self.chance.choice(self.world.agents))

    # -- faults --------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        for process in self.world.processes:
            if self.chance.random() < 0.5:
                self.world.restart(process)
            if self.chance.random() < 0.3:
                process.paused = False
            if process.lease_lost and process not in self.world.zombies and self.chance.random() < 0.5:
                process.lease_lost = False

    def _crash(self) -> None:
        process = self.chance.choice(self.world.processes)
        if not process.up:
            return
        if process.tasks and self.chance.random() < 0.7:
            task = self.chance.choice(process.tasks)
            ready = task.op is not None and task.op.ready()
            self.world.crash_at(task, done=ready and self.chance.random() < 0.6)
        else:
            self.world.crash(process)

    def _unavailable(self) -> None:
        failing = [task for task in self.world.ready if task.op and task.op.may_fail]
        if failing:
            self.world.fail(self.chance.choice(failing), done=self.chance.random() < 0.5)

    def _pause(self, process: Process | None = None) -> None:
        process = process or self.chance.choice([*self.world.agents, *self.world.runners.values()])
        if process.up and not process.paused:
            self.world.situations["fault: agent paused"] += process in self.world.agents
            process.paused = True

    def _duplicate(self) -> None:
        self.world.broker.duplicate(self.chance.choice(("work", "signals")), self.chance.randrange(64))

    def _cut_off(self, process: Process | None = None) -> None:
        runners = list(self.world.runners.values())
        runner = process if process in runners else self.chance.choice(runners)
        if runner.up and len(self.world.zombies) < 6:
            # Every second runner does not know that an agent ended its lease when its connection closed.
            self.world.cut_off(runner, knows=len(self.world.zombies) % 2 == 0)

    def _late_lease(self) -> None:
        runner = self.chance.choice(list(self.world.runners.values()))
        self.world.situations["fault: lease late"] += 1
        runner.lease_lost = True

    def _forget_ids(self) -> None:
        for queue in self.world.broker.queues.values():
            queue.recent_ids.clear()

    def _forge(self) -> None:
        names = self.world.open_approval_requests
        if names:
            request = self.world.broker.requests[self.chance.choice(names)]
            self.world.broker.store_approval_reply(forged(request, self.chance, self.world))

    def _snapshot(self) -> None:
        if self.housekeeping.random() < self.snapshots:
            self.world.store_snapshot(f"c{self.housekeeping.randrange(self.conversations)}")
        if self.housekeeping.random() < self.floods:
            lasts = self.housekeeping.choice((2, 10, 60))
            self.world.full_until = self.world.now + timedelta(seconds=lasts)

    # -- users ---------------------------------------------------------------------------------------------

    def _conversation(self) -> str:
        return f"c{self.chance.randrange(self.conversations)}"

    def _start(self) -> None:
        self.number += 1
        request = (self._conversation(), f"q{self.number}", self._plan())
        if len(self.world.broker.fold(request[0]).queue) >= MAX_QUEUED:
            return
        self.started.append(request)
        self.world.client_starts(*request)

    def _repeat(self) -> None:
        if self.started:
            body = "other" if self.chance.random() < 0.2 else "go"
            self.world.client_starts(*self.chance.choice(self.started), body=body)

    def _decide(self) -> None:
        requests = self.world.broker.requests
        names = self.world.open_approval_requests if self.chance.random() < 0.7 else list(requests)[-4:]
        if names:
            request = requests[self.chance.choice(names)]
            self.world.client_decides(request.approval_id, self._verdict(request))

    def _verdict(self, request: ApprovalRequest) -> SubmittedDecision:
        remember = self.chance.choice((None, None, None, "run", "conversation"))
        kind = self.chance.random()
        if kind < 0.3:
            return SubmittedDecision(by="ann", all="approve", remember=remember)
        if kind < 0.45:
            return SubmittedDecision(by="ann", all="reject")
        decisions = tuple(self._item_decision(item) for item in request.items)
        return SubmittedDecision(by="ann", decisions=decisions, remember=remember)

    def _item_decision(self, item: ApprovalItem) -> ItemDecision:
        decision = self.chance.choice(("approve", "approve", "reject"))
        arguments = {**item.arguments, "edited": True} if self.chance.random() < 0.4 else None
        if decision == "reject":
            return ItemDecision(tool_call_id=item.tool_call_id, decision="reject", reason="no")
        return ItemDecision(tool_call_id=item.tool_call_id, decision="approve", arguments=arguments)

    def _cancel(self) -> None:
        runs = [run for run in self.world.plans if run not in self.world.invariants.ended]
        if runs:
            self.world.cancel(self.chance.choice(runs), f"cancel-{self.chance.randrange(10**6)}")

    def _steer(self) -> None:
        self.number += 1
        self.world.steer(self._conversation(), self.number, self._plan())

    def _delete(self) -> None:
        self.world.delete(self._conversation())

    def _plan(self) -> Plan:
        chance = self.chance
        return Plan(
            tuple(self._reply() for _ in range(chance.choice((0, 1, 1, 2, 3)))),
            max_iterations=chance.choice((1, 2, 4, 4)),
            feedback=chance.random() < self.emphasis.feedback,
            run_timeout_s=chance.choice((20, 300, 300)),
            expires_s=chance.choice((60, 3_600, 7 * 86_400)),
            final_summary=chance.random() < 0.5,
            max_tokens=chance.choice((None, None, None, 20)),
            compacts=self.housekeeping.random() < 0.5,
            first=self.housekeeping.random() < 0.5,
        )

    def _reply(self) -> Reply:
        chance = self.chance
        if chance.random() < 0.04:
            return Reply(fails=True)
        malformed = chance.choice((0,) * 12 + (1, 2, 4))
        return Reply(tuple(self._call() for _ in range(chance.choice((1, 2, 2, 3)))), malformed=malformed)

    def _call(self) -> CallPlan:
        chance = self.chance
        return CallPlan(
            chance.choice(("effect", "effect", "pure")),
            needs_approval=chance.random() < self.emphasis.needs_approval,
            terminate=chance.random() < 0.1,
            hangs=chance.random() < self.emphasis.hangs,
            lasts_s=chance.choice((0, 0, 0, 1, 5)),
            unreadable=chance.random() < 0.04,
        )


def forged(request: ApprovalRequest, chance: random.Random, world: World) -> ApprovalReply:
    """Return a decision that no process may accept."""
    decisions = tuple(
        ItemDecision(tool_call_id=item.tool_call_id, decision="approve", arguments={"forged": True})
        for item in request.items
    )
    reply = ApprovalReply(
        tenant=request.tenant,
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        approval_id=request.approval_id,
        outcome="approved",
        by="mallory",
        decisions=decisions,
        digests=tuple(item.digest for item in request.items),
        decided_at=world.now,
    )
    match chance.randrange(5):
        case 0:
            return reply
        case 1:
            return sign(reply, b"another key")
        case 2:
            return sign(reply.model_copy(update={"digests": ("0" * 64,)}), KEY)
        case 3:
            return reply.model_copy(update={"outcome": "cancelled", "remember": "conversation"})
        case _:
            late = request.expires_at + timedelta(seconds=1)
            return sign(reply.model_copy(update={"decided_at": late}), KEY)


def reached(seed: int) -> SituationCounter | str:
    """Return the situations of a schedule, or its failure."""
    try:
        return RandomSchedule(seed).run()
    except AssertionError as error:
        return str(error)


def main() -> None:
    """Run the seeds given on the command line."""
    first, last = int(sys.argv[1]), int(sys.argv[2])
    begun, situations, failed = time.monotonic(), SituationCounter(), 0
    for seed in range(first, last):
        result = reached(seed)
        if isinstance(result, str):
            failed += 1
            sys.stdout.write(f"{result}\n")
        else:
            situations.update(result)
    for name in (*EXPECTED, *sorted(set(situations) - set(EXPECTED))):
        sys.stdout.write(f"{situations[name]:8} {name}\n")
    sys.stdout.write(f"{failed} of {last - first} failed, {time.monotonic() - begun:.1f} s\n")


if __name__ == "__main__":
    main()
