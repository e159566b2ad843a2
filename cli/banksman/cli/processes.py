"""Processes, identified by pid and start time because the system reuses pids, and their readiness."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from banksman.runtime.http_get import HttpReply, http_get

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    started: str
    """Boot id and start time in clock ticks, or the time from `ps`. Empty if it had ended already."""

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        return cls(pid=pid, started=_started(pid) or "")

    @property
    def alive(self) -> bool:
        return bool(self.started) and _started(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> bool:
        """Kill the process group that it leads; return False if it had ended."""
        if not self.alive:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return True

    def wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True


def _started(pid: int) -> str | None:
    """Return when a process started, or None if it does not exist. A zombie counts as ended."""
    try:
        # The program's name may contain spaces and parentheses; the fields after its last `)` do not.
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if _BOOT_ID.exists() else _started_by_ps(pid)
    return None if after_name[0] == "Z" else f"{_BOOT_ID.read_text().strip()} {after_name[19]}"


def _started_by_ps(pid: int) -> str | None:
    """Return the start time on systems without /proc (macOS)."""
    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return done.stdout.strip() or None


NO_RESPONSE = "no response"
_TIMEOUT_S = 3.0
_READY_POLL_S = 0.1


async def until_ready(ready_url: str, on_problem: Callable[[str], None]) -> None:
    while (problem := await readiness_problem(ready_url)) is not None:
        on_problem(problem)
        await asyncio.sleep(_READY_POLL_S)


async def readiness_problem(ready_url: str) -> str | None:
    try:
        reply = await http_get(ready_url, timeout_s=_TIMEOUT_S)
    except (OSError, ValueError):
        return NO_RESPONSE
    return None if reply.ok else _problems(reply)


def _problems(reply: HttpReply) -> str:
    try:
        body = json.loads(reply.body)
    except ValueError:
        body = None
    if isinstance(body, dict):
        problems = cast(Mapping[str, object], body).get("problems")
        if isinstance(problems, dict) and problems:
            found = cast(Mapping[str, object], problems)
            return "; ".join(f"{name}: {problem}" for name, problem in found.items())
    return f"responds with status {reply.status}"
