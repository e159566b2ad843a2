"""One process of the system: started, watched until it is ready, started again when it ends, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import cast

import httpx

from banksman.cli.local.logs import ChildLog
from banksman.cli.local.plan import ProcessSpec, launched
from banksman.cli.local.processes import ProcessIdentity
from banksman.cli.local.screen import Screen

FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 10.0
STEADY_S = 30.0
"""A process that ran for so long starts again without the delays of its earlier ends."""
WRONG_SETTING = 2
"""Exit code of a process that a setting keeps from starting: it would end so each time."""
_POLL_S = 0.1
_PROBE_TIMEOUT_S = 3.0
_LAST_OUTPUT_S = 1.0
_NO_ANSWER = "no answer"


class CannotStart(Exception):
    """A process ended over a wrong setting; `reason` is its own sentence."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(reason or f"{name} ended over a wrong setting")


class Child:
    """One process over all its starts."""

    def __init__(
        self,
        spec: ProcessSpec,
        log: ChildLog,
        screen: Screen,
        http: httpx.AsyncClient,
        *,
        on_change: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        """Set once it said, after its latest start, that it is ready."""
        self.identity: ProcessIdentity | None = None
        """Which process it is now; None between two starts."""
        self._log = log
        self._screen = screen
        self._http = http
        self._on_change = on_change
        self._on_failure = on_failure
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._started_at = 0.0
        self._starts = 0
        self._backoff_s = FIRST_BACKOFF_S
        self._problem = _NO_ANSWER

    @property
    def problem(self) -> str:
        """What keeps it from being ready, as far as is known."""
        return self._log.last_words or self._problem if self._problem == _NO_ANSWER else self._problem

    async def keep_alive(self) -> None:
        """Start the process, and start it again whenever it ends, until it is told to stop.

        One that ended over a wrong setting is not started again: `on_failure` is told.
        """
        try:
            while not self._stopping.is_set():
                code = await self._run_once()
                if self._stopping.is_set():
                    return
                if code == WRONG_SETTING:
                    self._on_failure(CannotStart(self.spec.name, self._log.last_words))
                    return
                await self._pause(code)
        finally:
            self.kill()
            self._ended.set()
            self._log.close()

    async def stop(self, timeout_s: float) -> None:
        """Ask the process to end; kill it when it has not after `timeout_s` seconds."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            self._screen.warning(self.spec.name, f"did not end within {timeout_s:.0f} s and is killed")
            self.kill()
            await self._ended.wait()
        self._screen.stopped(self.spec.name)

    def kill(self) -> None:
        """End the process and the group it leads at once."""
        self._stopping.set()
        if self.identity is not None:
            self.identity.kill_group()

    async def _run_once(self) -> int:
        """Start the process and wait for its end; returns its exit code."""
        read, write = os.pipe()
        try:
            process = await self._spawn(write)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        pump = asyncio.create_task(self._log.pump(read), name=f"log {self.spec.name}")
        watch = asyncio.create_task(self._watch(), name=f"readiness {self.spec.name}")
        try:
            return await process.wait()
        finally:
            watch.cancel()
            # What the process left behind may hold the pipe for longer.
            await asyncio.wait([pump], timeout=_LAST_OUTPUT_S)
            pump.cancel()
            self._forget()

    async def _spawn(self, output: int) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *launched(self.spec.command, os.getpid()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(self.spec.environment),
            # A group of its own: a Ctrl-C at the terminal is for the supervisor, which ends all in order.
            process_group=0,
        )
        self._starts += 1
        self._started_at = time.monotonic()
        self.identity = ProcessIdentity.of(process.pid)
        self._on_change()
        if self._stopping.is_set():
            self._signal(signal.SIGTERM)
        return process

    def _forget(self) -> None:
        self.identity = None
        self.ready.clear()
        self._on_change()

    async def _watch(self) -> None:
        """Wait until the process says that it is ready, and tell."""
        while (problem := await problem_of(self._http, self.spec.ready_url)) is not None:
            self._problem = problem
            await asyncio.sleep(_POLL_S)
        self.ready.set()
        self._screen.ready(self.spec.name, time.monotonic() - self._started_at, again=self._starts > 1)

    async def _pause(self, code: int) -> None:
        if time.monotonic() - self._started_at > STEADY_S:
            self._backoff_s = FIRST_BACKOFF_S
        self._screen.ended(self.spec.name, self._how(code), self._backoff_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._backoff_s):
                await self._stopping.wait()
        self._backoff_s = min(self._backoff_s * 2, MAX_BACKOFF_S)

    def _how(self, code: int) -> str:
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        words = self._log.last_words
        return f"ended with exit code {code}{f' ({words})' if words else ''}"

    def _signal(self, number: signal.Signals) -> None:
        if self.identity is not None:
            self.identity.send(number)


async def problem_of(http: httpx.AsyncClient, ready_url: str) -> str | None:
    """What a process says keeps it from being ready; None when it is."""
    try:
        answer = await http.get(ready_url, timeout=_PROBE_TIMEOUT_S)
    except httpx.HTTPError:
        return _NO_ANSWER
    return None if answer.is_success else _problems(answer)


def _problems(answer: httpx.Response) -> str:
    try:
        body = json.loads(answer.content)
    except ValueError:
        body = None
    if isinstance(body, dict):
        problems = cast(Mapping[str, object], body).get("problems")
        if isinstance(problems, dict) and problems:
            found = cast(Mapping[str, object], problems)
            return "; ".join(f"{name}: {problem}" for name, problem in found.items())
    return f"answers {answer.status_code}"
