"""Processes that stand still at every await, so that a test chooses what happens next, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from banksman.contracts.errors import BanksmanError, Fenced, Overloaded, Unavailable
from banksman.runs.ports import Facts
from banksman.runs.runner import CallDesk


def _always() -> bool:
    return True


@dataclass
class Op:
    """One thing a process asks of the world."""

    label: str
    do: Callable[[], Any]
    ready: Callable[[], bool] = _always
    wakes_at: datetime | None = None
    """When it becomes ready without anybody's doing."""
    may_fail: bool = True
    """Whether the port may answer `Unavailable`, with the thing done or not."""
    about: str = ""
    """The attempt that is asked for."""

    def __await__(self) -> Generator[Op, Any, Any]:
        return (yield self)


@dataclass(eq=False)
class Message:
    """A message of a queue."""

    seq: int
    body: Any
    acked: bool = False
    holder: Task | None = None
    not_before: datetime | None = None
    """When it was given back to be delivered later."""

    @property
    def held(self) -> bool:
        """True while somebody works on it."""
        return self.holder is not None and not self.holder.over


@dataclass(eq=False)
class Task:
    """A coroutine of a process, and the op it stands at."""

    process: Process
    name: str
    coroutine: Coroutine[Op, Any, Any]
    op: Op | None = None
    attempt: str = ""
    """The attempt that a runner's task performs."""
    commits: int = 0
    """Commits it appended."""
    over: bool = False
    failure: BaseException | None = None

    def start(self) -> None:
        self._go_on(lambda: self.coroutine.send(None))

    def step(self) -> None:
        """Do what it asks for and run it to its next await."""
        assert self.op is not None
        try:
            value = self.op.do()
        except BanksmanError as error:
            self._go_on(lambda error=error: self.coroutine.throw(error))
            return
        self._go_on(lambda: self.coroutine.send(value))

    def fail(self, *, done: bool) -> None:
        """Answer that the broker is away; what was asked for may have been done all the same."""
        assert self.op is not None
        if done:
            self.op.do()
        self._go_on(lambda: self.coroutine.throw(Unavailable(f"{self.op and self.op.label}: no answer")))

    def refuse(self) -> None:
        """Answer that storage is full; nothing of what was asked for was done."""
        full = Overloaded(f"{self.op and self.op.label}: storage is full")
        self._go_on(lambda: self.coroutine.throw(full))

    def _go_on(self, go: Callable[[], Op]) -> None:
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
    """Something that may crash: it loses its tasks and its memory, nothing else."""

    name: str
    generation: int = 1
    up: bool = True
    paused: bool = False
    """Stopped, and unaware of it: it will go on where it stood."""
    tasks: list[Task] = field(default_factory=list)
    seen: dict[str, Facts] = field(default_factory=dict)
    """What an agent heard of slots."""
    news: set[str] = field(default_factory=set)
    """Conversations an agent has news of."""
    desk: CallDesk | None = None
    lease_lost: bool = False
    """What a runner believes of its own lease."""
    told_to_end: set[str] = field(default_factory=set)
    """Attempts that a runner was told to end."""

    @property
    def id(self) -> str:
        return f"{self.name}-{self.generation}"

    def crash(self) -> None:
        for task in self.tasks:
            task.coroutine.close()
            task.over = True
        self.tasks.clear()
        self.seen.clear()
        self.news.clear()
        self.told_to_end.clear()
        self.desk = None
        self.up = False
        self.paused = False
