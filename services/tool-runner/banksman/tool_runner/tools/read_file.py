from __future__ import annotations

import asyncio
import codecs

from banksman.contracts.wire import JsonObject
from banksman.contracts.workspace_tools import READ_FILE
from banksman.tool_runner.limits import RunnerLimits
from banksman.tool_runner.sandbox.output import MAX_UTF8_BYTES
from banksman.tool_runner.tools.base import ToolOutcome, ToolRun, failure
from banksman.tool_runner.tools.pages import UTF_8, continuation, page
from banksman.tool_runner.workspaces.files import PathRefused, read_part, relative


class ReadFile:
    """Reads one page of a text file of the workspace."""

    definition = READ_FILE

    def __init__(self, limits: RunnerLimits) -> None:
        self._max_chars = limits.max_output_chars

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        """Read one page from byte `offset`, by default from the beginning."""
        offset = arguments.get("offset", 0)
        start = int(offset) if isinstance(offset, int | float) else 0
        encoding = codecs.lookup(str(arguments.get("encoding") or UTF_8)).name
        return await asyncio.to_thread(self._read, run, str(arguments["path"]), start, encoding)

    def _read(self, run: ToolRun, path: str, offset: int, encoding: str) -> ToolOutcome:
        try:
            part = read_part(
                run.workspace.directory, path, offset=offset, max_bytes=self._max_chars * MAX_UTF8_BYTES
            )
        except PathRefused as refused:
            return failure("tool_error", str(refused), path=path)
        shown = page(part.data, self._max_chars, encoding)
        end = offset + shown.consumed_bytes
        value: JsonObject = {
            "success": True,
            "path": relative(path),
            "content": shown.text,
            "truncated": end < part.total_bytes,
            "total_bytes": part.total_bytes,
            "offset": offset,
        }
        if end < part.total_bytes:
            value |= {"next_offset": end, "more": continuation(relative(path), end, encoding)}
        # The file itself contains the rest, so there is no output to store.
        return ToolOutcome(value=value, truncated=end < part.total_bytes)
