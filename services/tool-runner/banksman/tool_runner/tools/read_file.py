from __future__ import annotations

import asyncio

from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.tool_runner.files import PathRefused, read_part, relative
from banksman.tool_runner.limits import RunnerLimits
from banksman.tool_runner.sandbox.output import MAX_UTF8_BYTES
from banksman.tool_runner.tools.base import ToolOutcome, ToolRun, failure
from banksman.tool_runner.tools.pages import page


class ReadFile:
    """Reads one page of a text file of the workspace."""

    exclusive = True

    def __init__(self, limits: RunnerLimits) -> None:
        self._max_chars = limits.max_output_chars
        self.definition = _definition(limits)

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        """Read from byte `offset` (0 when absent) as many characters as one result may show."""
        offset = arguments.get("offset", 0)
        start = int(offset) if isinstance(offset, int | float) else 0
        return await asyncio.to_thread(self._read, run, str(arguments["path"]), start)

    def _read(self, run: ToolRun, path: str, offset: int) -> ToolOutcome:
        try:
            part = read_part(
                run.workspace.directory, path, offset=offset, max_bytes=self._max_chars * MAX_UTF8_BYTES
            )
        except PathRefused as refused:
            return failure("tool_error", str(refused), path=path)
        shown = page(part.data, self._max_chars)
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
            value["next_offset"] = end
        # Nothing is lost by the cut: the file itself holds the rest, so there is no output to store.
        return ToolOutcome(value=value, truncated=end < part.total_bytes)


def _definition(limits: RunnerLimits) -> ToolDefinition:
    return ToolDefinition(
        name="read_file",
        description=(
            "Read a text file of the workspace. Returns content, total_bytes and truncated; at most "
            f"{limits.max_output_chars} characters at a time. When truncated, call again with offset set to "
            "next_offset."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "path": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Path relative to the workspace, for example data/report.md.",
                },
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": 2**62,
                    "description": "Byte to start at. Default 0.",
                },
            },
            "required": ["path"],
            "additionalProperties": False,
        },
        requires_approval=False,
        category="workspace",
        idempotent=True,
        timeout_s=30.0,
        priority=30,
    )
