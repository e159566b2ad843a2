"""A simulation that a test directs: tasks run until one of them reaches a named await."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from banksman.contracts.approvals import ApprovalRequested
from banksman.contracts.events import EventBody, RunFinished
from banksman.contracts.tools import ToolResult
from banksman.gateway.approvals.decisions import SubmittedDecision
from banksman.runs.state import Conversation, Run
from tests.runs.plans import Plan
from tests.runs.processes import Message, Process, Task
from tests.runs.world import World

MAX_STEPS = 20_000


class Scenario(World):
    """One conversation, `c`, and its runs in the order of their starts."""

    def start(self, *plans: Plan, content: str = "go") -> None:
        """Start runs as a client, one after another."""
        for plan in plans:
            self.client_starts("c", f"q{next(self.ids)}", plan, content)
            self._serve()

    def _serve(self) -> None:
        """Let the gateway handle the requests of clients."""
        while self.gateway.tasks:
            self.step(self.gateway.tasks[0])

    def run_until(self, reached: Callable[[], bool], *, seconds: float = 0.0) -> None:
        """Run, without user actions and for at most `seconds` of simulated time, until `reached()` is
        true."""
        ends = self.now + timedelta(seconds=seconds)
        for _ in range(MAX_STEPS):
            if reached():
                return
            if not self._continue() and not self._wait(ends):
                raise AssertionError(f"no task can continue: {self.story()}")
        raise AssertionError(f"not reached: {self.story()}")

    def run(self, *, seconds: float = 0.0) -> None:
        """Run until no task can continue, without user actions and for at most `seconds` of simulated
        time."""
        ends = self.now + timedelta(seconds=seconds)
        for _ in range(MAX_STEPS):
            if not self._continue() and not self._wait(ends):
                return
        raise AssertionError(f"tasks continue without end: {self.story()}")

    def run_to(self, label: str, *, seconds: float = 0.0) -> Task:
        """Run until a task is at the await `label`, which is not yet executed."""
        found: list[Task] = []

        def reached() -> bool:
            found[:] = [task for task in self.ready if task.op is not None and task.op.label == label]
            return bool(found)

        self.run_until(reached, seconds=seconds)
        return found[0]

    def _continue(self) -> bool:
        ready = self.ready
        if ready:
            self.step(ready[0])
        return bool(ready) or self.deliver_something()

    def _wait(self, ends: datetime) -> bool:
        wake = self.next_wake()
        within = wake is not None and wake <= ends
        moment = wake if wake is not None and within else max(ends, self.now)
        self.pass_time((moment - self.now).total_seconds())
        return within

    def deliver_something(self, number: int = 0) -> bool:
        """Deliver to the first agent that is running."""
        able = [number for number, agent in enumerate(self.agents) if agent.up and not agent.paused]
        return bool(able) and super().deliver_something(able[0])

    def redeliver(self, message: Message, agent: Process, queue: str = "work") -> Task:
        """Redeliver a message to another agent, as if its holder were silent."""
        self.deliver(queue, message, agent)
        assert message.holder is not None
        return message.holder

    def end(self, **how: bool) -> None:
        """Run without faults until nothing changes, and check all invariants."""
        self.settle_down(**how)
        self.invariants.check_at_rest()

    # -- reading -------------------------------------------------------------------------------------------

    @property
    def state(self) -> Conversation:
        return self.broker.fold("c")

    @property
    def open_run(self) -> Run:
        assert self.state.run is not None, self.story()
        return self.state.run

    @property
    def agent(self) -> Process:
        return self.agents[0]

    @property
    def other(self) -> Process:
        return self.agents[1]

    def bodies(self) -> list[EventBody]:
        return [event.data for _, commit in self.broker.logs.get("c", []) for event in commit.events]

    def story(self) -> list[str]:
        """Return the event types of the log in one line."""
        return [body.type for body in self.bodies()]

    def commits(self) -> list[list[str]]:
        """Return the event types of the log per commit."""
        return [[event.data.type for event in commit.events] for _, commit in self.broker.logs.get("c", [])]

    def outcomes(self) -> list[str]:
        return [body.status for body in self.bodies() if isinstance(body, RunFinished)]

    def results(self) -> list[ToolResult]:
        return list(self.invariants.results.values())

    def kinds(self) -> list[str]:
        """Return the error kinds of all results, `ok` for results without one."""
        return [result.error_kind or "ok" for result in self.results()]

    @property
    def approval_request(self) -> ApprovalRequested:
        requests = [body for body in self.bodies() if isinstance(body, ApprovalRequested)]
        return requests[-1]

    def decide(self, verdict: SubmittedDecision | str) -> None:
        """Decide the last approval request through the gateway."""
        if isinstance(verdict, str):
            verdict = SubmittedDecision(by="ann", all=verdict)
        self.client_decides(self.approval_request.approval_id, verdict)
        self._serve()

    def executed(self) -> int:
        """Return the number of executed calls."""
        return sum(self.invariants.effects.values())

    def work(self, position: int = 0) -> Message:
        return self.broker.queues["work"].messages[position]
