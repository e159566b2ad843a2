"""The tools that read and write one file of the workspace."""

from __future__ import annotations

import asyncio
import codecs

from banksman.contracts.tools import PathChange
from banksman.contracts.wire import JsonObject
from banksman.contracts.workspace_tools import READ_FILE, WRITE_FILE
from banksman.tool_runner.limits import RunnerLimits
from banksman.tool_runner.sandbox.output import MAX_UTF8_BYTES
from banksman.tool_runner.tools.base import UTF_8, ToolOutcome, ToolRun, continuation, failure, page
from banksman.tool_runner.workspaces.files import PathRefused, read_part, relative, write_whole


class ReadFileTool:
    definition = READ_FILE

    def __init__(self, limits: RunnerLimits) -> None:
        self._max_chars = limits.max_output_chars

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
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


class WriteFileTool:
    definition = WRITE_FILE

    def __init__(self, limits: RunnerLimits) -> None:
        self._max_bytes = limits.sandbox.file_size_bytes

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        # The quota is a watchdog: a workspace that a command has filled refuses the next write.
        meter = run.workspace.meter
        await meter.before_write()
        if excess := meter.excess():
            return failure("tool_error", f"nothing was written: {excess}; delete files first")
        return await asyncio.to_thread(self._write, run, str(arguments["path"]), str(arguments["content"]))

    def _write(self, run: ToolRun, path: str, content: str) -> ToolOutcome:
        try:
            data = content.encode("utf-8")
        except UnicodeEncodeError:
            return failure("invalid_arguments", "content: expected valid Unicode", path=path)
        if len(data) > self._max_bytes:
            error = f"content: expected at most {self._max_bytes} bytes (got {len(data)})"
            return failure("invalid_arguments", error, path=path)
        try:
            created = write_whole(run.workspace.directory, path, data, run.workspace.identity)
        except PathRefused as refused:
            return failure("tool_error", str(refused), path=path)
        name = relative(path)
        verb = "Created" if created else "Replaced"
        value: JsonObject = {
            "success": True,
            "path": name,
            "bytes": len(data),
            "created": created,
            "message": f"{verb} {name} ({len(data)} bytes).",
        }
        change = PathChange(path=name, change="created" if created else "modified")
        return ToolOutcome(value=value, changed=(change,))
