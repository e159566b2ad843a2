"""The readiness of a process, read from its `/readyz`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import cast

from banksman.runtime.http_get import HttpReply, http_get

NO_RESPONSE = "no response"
_TIMEOUT_S = 3.0
_POLL_S = 0.1


async def until_ready(ready_url: str, on_problem: Callable[[str], None]) -> None:
    """Wait until a process is ready, and report after each request why it is not."""
    while (problem := await readiness_problem(ready_url)) is not None:
        on_problem(problem)
        await asyncio.sleep(_POLL_S)


async def readiness_problem(ready_url: str) -> str | None:
    """Return why a process is not ready, or None when it is."""
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
