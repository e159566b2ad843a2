"""The readiness of a process, read from its `/readyz`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import httpx

NO_RESPONSE = "no response"
_TIMEOUT_S = 3.0


async def readiness_problem(http: httpx.AsyncClient, ready_url: str) -> str | None:
    """Return why a process is not ready, or None when it is."""
    try:
        response = await http.get(ready_url, timeout=_TIMEOUT_S)
    except httpx.HTTPError:
        return NO_RESPONSE
    return None if response.is_success else _problems(response)


def _problems(response: httpx.Response) -> str:
    try:
        body = json.loads(response.content)
    except ValueError:
        body = None
    if isinstance(body, dict):
        problems = cast(Mapping[str, object], body).get("problems")
        if isinstance(problems, dict) and problems:
            found = cast(Mapping[str, object], problems)
            return "; ".join(f"{name}: {problem}" for name, problem in found.items())
    return f"responds with status {response.status_code}"
