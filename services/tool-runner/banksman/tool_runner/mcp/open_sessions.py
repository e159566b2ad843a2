"""Sessions with servers that stay open between the calls of a conversation, so that their state survives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from banksman.quotas.places import Shares
from banksman.runtime.background import first_error
from banksman.runtime.waits import set_within
from banksman.tool_runner.mcp.connection import ConnectionState
from banksman.tool_runner.mcp.held_calls import Questions
from banksman.tool_runner.sandbox.base import Stop

if TYPE_CHECKING:
    from banksman.tool_runner.mcp.session import Session

logger = logging.getLogger(__name__)

MAX_AGE_S: Final = 3600.0
"""Seconds after its beginning at which a session gets no further call."""

RESPOND_S: Final = 1.0
"""Seconds for a server to respond after a cancelled call; a program that does not is killed."""

Key: TypeAlias = tuple[str, str, str]
"""Tenant, conversation, and a digest of the server and of the account that is used there."""


@dataclass(eq=False)
class OpenSession:
    state: ConnectionState = field(default_factory=ConnectionState)
    stop: Stop = field(default_factory=Stop)
    """Kills the server if it is a program."""
    kept: bool = False
    """Whether it stays open after its first call."""
    users: int = 0
    calls: int = 0
    began: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    last_used: float = 0.0
    opened: asyncio.Future[Session] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def usable(self) -> bool:
        young = asyncio.get_running_loop().time() - self.began < MAX_AGE_S
        return young and not self.closing.is_set()

    @contextlib.asynccontextmanager
    async def used(self) -> AsyncGenerator[Session]:
        """Use the session for the block; raise why it cannot be opened."""
        self.users += 1
        self.calls += 1
        self.state.begin_call()
        try:
            yield await asyncio.shield(self.opened)
        finally:
            self.users -= 1
            self.last_used = asyncio.get_running_loop().time()
            if not self.kept or self.opened.cancelled() or not self.opened.done():
                self.closing.set()

    @contextlib.contextmanager
    def answering(self, questions: Questions) -> Generator[None]:
        """Let the server ask the user of a call during the block, unless the session ends with the call."""
        if self.kept:
            self.state.questions = questions
        try:
            yield
        finally:
            if self.state.questions is questions:
                self.state.questions = None

    async def closed(self, idle_s: float) -> None:
        """Wait until the session is to be closed: after `idle_s` seconds without a call at the latest."""
        while not self.closing.is_set():
            idle = 0.0 if self.users else asyncio.get_running_loop().time() - self.last_used
            if idle >= idle_s:
                return
            await set_within(self.closing, idle_s - idle)

    async def responds(self) -> bool:
        try:
            async with asyncio.timeout(RESPOND_S):
                await self.opened.result().client.send_ping()
        except Exception:
            return False
        return True

    async def end(self) -> None:
        self.closing.set()
        if self.task is not None:
            await asyncio.wait((self.task,))


Connect: TypeAlias = Callable[[OpenSession], "AbstractAsyncContextManager[Session]"]


@dataclass
class OpenSessions:
    """The open sessions of a runner. Tenants share their number; a session above it ends with its call."""

    shares: Shares
    idle_s: float
    """Seconds without a call after which a session is closed."""
    _open: dict[Key, OpenSession] = field(default_factory=dict[Key, OpenSession])

    def __len__(self) -> int:
        return len(self._open)

    async def get(self, key: Key, connect: Connect) -> OpenSession:
        """Return the session of a key; begin one if there is none."""
        while (ended := self._open.get(key) or self._surplus(key[0])) is not None:
            if self._open.get(key) is ended and ended.usable:
                return ended
            await ended.end()
        session = OpenSession(kept=self.shares.allows(key[0]))
        if session.kept:
            self.shares.take(key[0])
            self._open[key] = session
        session.task = asyncio.create_task(self._hold(key, session, connect))
        return session

    async def end(self, tenant: str, conversation: str) -> None:
        """Close the sessions of a conversation, whose workspace is about to be replaced or removed."""
        await self._end([self._open[key] for key in self._open if key[:2] == (tenant, conversation)])

    async def close(self) -> None:
        """Close all sessions; their programs are killed."""
        await self._end(list(self._open.values()))

    async def _end(self, sessions: list[OpenSession]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for session in sessions:
                tasks.create_task(session.end())

    def _surplus(self, tenant: str) -> OpenSession | None:
        """Return the session that must end before a tenant may keep another; None if none can or must."""
        if self.shares.allows(tenant):
            return None
        idle = [one for key, one in self._open.items() if key[0] == tenant and not one.users]
        return min(idle, key=lambda one: one.last_used, default=None)

    async def _hold(self, key: Key, session: OpenSession, connect: Connect) -> None:
        # One task enters and leaves the contexts of a session, as the task groups of the SDK demand.
        session.opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())
        try:
            async with connect(session) as opened:
                session.opened.set_result(opened)
                await session.closed(self.idle_s)
        except Exception as error:
            if not session.opened.done():
                session.opened.set_exception(first_error(error))
            else:
                logger.info("%s: a session with a server failed: %s", key[1], type(error).__name__)
        finally:
            session.closing.set()
            if self._open.get(key) is session:
                del self._open[key]
                self.shares.give_back(key[0])
