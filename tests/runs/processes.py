"""Processes that stop at every await, so that a test chooses the next step and the next fault."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from banksman.bus.storage.slots import AttemptSlots
from banksman.contracts.errors import BanksmanError, Fenced, Overloaded, Unavailable
from banksman.runs.runners.calls import RunnerCalls
from banksman.runs.state import Conversation


def _always() -> bool:
    return True


@dataclass
class Op:
    """One port call of a process."""

    label: str
    do: Callable[[], Any]
    ready: Callable[[], bool] = _always
    wakes_at: datetime | None = None
    """The time at which it becomes ready without an action of the test."""
    may_fail: bool = True
    """Whether the port may raise `Unavailable`, either before or after the operation."""
    about: str = ""
    """The attempt that the call requests."""

    def __await__(self) -> Generator[Op, Any, Any]:
        return (yield self)


@dataclass(eq=False)
class Message:
    """One message of a queue."""

    seq: int
    body: Any
    alone: bool = False
    """Whether no other message of its conversation waited when it was stored."""
    acked: bool = False
    holder: Task | None = None
    not_before: datetime | None = None
    """The time until which a nak delays the redelivery."""

    @property
    def held(self) -> bool:
        """True while a task handles the message."""
        return self.holder is not None and not self.holder.over


@dataclass(eq=False)
class Task:
    """A coroutine of a process, and the op at which it waits."""

    process: Process
    name: str
    coroutine: Coroutine[Op, Any, Any]
    op: Op | None = None
    attempt: str = ""
    """The attempt that a runner's task executes."""
    commits: int = 0
    """Commits that it appended."""
    over: bool = False
    failure: BaseException | None = None

    def start(self) -> None:
        self._continue(lambda: self.coroutine.send(None))

    def step(self) -> None:
        """Execute its op and run it to its next await."""
        assert self.op is not None
        try:
            value = self.op.do()
        except BanksmanError as error:
            self._continue(lambda error=error: self.coroutine.throw(error))
            return
        self._continue(lambda: self.coroutine.send(value))

    def fail(self, *, done: bool) -> None:
        """Raise `Unavailable` in it, after executing the op if `done`."""
        assert self.op is not None
        if done:
            self.op.do()
        self._continue(lambda: self.coroutine.throw(Unavailable(f"{self.op and self.op.label}: no response")))

    def refuse(self) -> None:
        """Raise the error of full storage in it, without executing the op."""
        full = Overloaded(f"{self.op and self.op.label}: storage is full")
        self._continue(lambda: self.coroutine.throw(full))

    def _continue(self, go: Callable[[], Op]) -> None:
        try:
            self.op = go()
        except StopIteration:
            self._end()
        except (BanksmanError, Fenced) as error:
            self.failure = error
            self._end()

    def _end(self) -> None:
        self.op = None
        self.over = True
        if self in self.process.tasks:
            self.process.tasks.remove(self)


@dataclass(eq=False)
class Process:
    """A process that may crash: it then loses its tasks and its memory, and nothing else."""

    name: str
    generation: int = 1
    up: bool = True
    paused: bool = False
    """True while it is frozen; it will continue where it stopped."""
    tasks: list[Task] = field(default_factory=list)
    seen: dict[str, AttemptSlots] = field(default_factory=dict)
    """Slots that an agent was notified of."""
    folds: dict[str, Conversation] = field(default_factory=dict)
    """The newest state of each conversation that an agent knows."""
    news: set[str] = field(default_factory=set)
    """Conversations whose slots changed, as an agent was notified."""
    newest: dict[str, int] = field(default_factory=dict)
    """By conversation: the newest commit that an agent was notified of."""
    hinted: set[str] = field(default_factory=set)
    """Conversations that an agent was requested to read."""
    calls: RunnerCalls | None = None
    lease_lost: bool = False
    """Whether a runner believes that its lease has ended."""
    cancelled: set[str] = field(default_factory=set)
    """Attempts that a runner was requested to cancel."""

    @property
    def id(self) -> str:
        return f"{self.name}-{self.generation}"

    def crash(self) -> None:
        for task in self.tasks:
            task.coroutine.close()
            task.over = True
        self.tasks.clear()
        self.seen.clear()
        self.folds.clear()
        self.news.clear()
        self.newest.clear()
        self.hinted.clear()
        self.cancelled.clear()
        self.calls = None
        self.up = False
        self.paused = False
