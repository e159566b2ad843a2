"""Checks of the calls of a reply before they are recorded."""

from __future__ import annotations

import asyncio
import contextlib

from pydantic import ValidationError

from banksman.agent.protocols.base import RequestedCall
from banksman.contracts.calls import FileRead
from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.contracts.tools import ToolDefinition
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import ArgumentProblem, SchemaChecker
from banksman.runs.state import Conversation

MAX_DIFF_BYTES = 100_000
"""Maximum bytes that are read of an existing file, to show the changes of a write."""
OLD_CONTENTS_S = 3.0
"""Maximum seconds for reading the existing files of all calls of a reply."""


async def argument_problems(
    schemas: SchemaChecker,
    tenant: str,
    calls: tuple[RequestedCall, ...],
    call_ids: tuple[str, ...],
    tools: dict[str, ToolDefinition],
) -> dict[str, ArgumentProblem]:
    """Return why arguments do not fit the schema of their tool, by call id."""
    found: dict[str, ArgumentProblem] = {}
    for call, call_id in zip(calls, call_ids, strict=False):
        tool = tools.get(call.name)
        if tool is None or call.arguments_error is not None:
            continue
        problem = await schemas.argument_problem(tenant, tool, call.arguments or {})
        found |= {} if problem is None else {call_id: problem}
    return found


async def old_contents(
    placements: Placements, state: Conversation, calls: tuple[RequestedCall, ...]
) -> dict[str, str]:
    """Return the contents of the files that calls would overwrite, for the approver to compare, by path.

    Of a file that is new or was not read within `OLD_CONTENTS_S`, the approver sees the new content only.
    """
    written = (call.arguments or {} for call in calls if call.name == "write_file")
    paths = [path for one in written if isinstance(path := one.get("path"), str)]
    found: dict[str, str] = {}
    # The reply is not recorded yet, and a cancel of its run is not noticed meanwhile.
    with contextlib.suppress(TimeoutError, Unavailable):
        async with asyncio.timeout(OLD_CONTENTS_S):
            for path in dict.fromkeys(paths):
                text = await _old_content(placements, state, path)
                found |= {} if text is None else {path: text}
    return found


async def _old_content(placements: Placements, state: Conversation, path: str) -> str | None:
    """Return the content of a file; None if it cannot be read.

    Raises:
        Unavailable: No runner serves the workspace now, so none of its files can be read.
    """
    request = FileRead(path=path[:4096], max_bytes=MAX_DIFF_BYTES)
    try:
        return (await placements.files(state.tenant, state.conversation_id, request)).text
    except Unavailable:
        raise
    except (BanksmanError, ValidationError):
        return None
