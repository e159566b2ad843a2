"""The tools that write, edit and search files of the workspace."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from banksman.contracts.tools import PathChange
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.contracts.workspace_tools import EDIT_FILE, MAX_MATCHES, SEARCH_CODE, WRITE_FILE
from banksman.tool_runner.sandbox.base import Sandbox, SandboxCommand, SandboxOutcome, SandboxUnavailable
from banksman.tool_runner.settings import RunnerLimits
from banksman.tool_runner.tools.texts import (
    SAMPLE_BYTES,
    TextFile,
    binary_kind,
    ends_with_crlf,
    label_of,
    with_crlf,
)
from banksman.tool_runner.tools.toolbox import ToolOutcome, ToolRun, failure
from banksman.tool_runner.workspaces.files import PathRefused, read_part, relative, write_whole

MAX_EDITED_BYTES = 8 * 1024 * 1024
_MAX_SHOWN_CHARS = 200


class _Refused(Exception):
    """An edit that does not apply; the message names it, for the model."""


@dataclass(frozen=True, slots=True)
class EditFileTool:
    limits: RunnerLimits
    definition = EDIT_FILE

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        """Apply all edits in their order, or none."""
        if refused := await full_workspace(run):
            return refused
        edits = cast(list[JsonObject], arguments["edits"])
        return await asyncio.to_thread(self._edit, run, str(arguments["path"]), edits)

    def _edit(self, run: ToolRun, path: str, edits: list[JsonObject]) -> ToolOutcome:
        try:
            file = _read(run, path)
            text, replaced = _applied(file, edits)
            data = _encoded(file, text)
        except PathRefused as refused:
            return failure("tool_error", str(refused), path=path)
        except _Refused as refused:
            return failure("tool_error", f"{path} was not changed: {refused}", path=path)
        return store_file(run, path, data, self.limits, replaced=replaced)


def _read(run: ToolRun, path: str) -> TextFile:
    part = read_part(run.workspace.directory, path, offset=0, max_bytes=MAX_EDITED_BYTES)
    if len(part.data) < part.total_bytes:
        raise _Refused(f"it has {part.total_bytes} bytes; at most {MAX_EDITED_BYTES} can be edited")
    if kind := binary_kind(part.data[:SAMPLE_BYTES]):
        raise _Refused(f"it is no text but {kind}")
    file = TextFile.of(part.data)
    if file is None:
        raise _Refused("its text has bytes that are not valid in its encoding; change it with a command")
    return file


def _encoded(file: TextFile, text: str) -> bytes:
    try:
        return file.mark + text.encode(file.encoding)
    except UnicodeEncodeError as error:
        missing = error.object[error.start : error.start + 1]
        raise _Refused(
            f"its encoding, {label_of(file.encoding)}, does not have the character {missing!r}"
        ) from None


def _applied(file: TextFile, edits: list[JsonObject]) -> tuple[str, int]:
    """Return the edited text and the number of replaced passages."""
    text, replaced, crlf = file.text, 0, ends_with_crlf(file.text)
    for index, edit in enumerate(edits):
        given = (str(edit[name]) for name in ("old_text", "new_text"))
        old, new = map(with_crlf, given) if crlf else given
        found, every = text.count(old), edit.get("replace_all") is True
        if found == 0:
            shown = str(edit["old_text"])[:_MAX_SHOWN_CHARS]
            raise _Refused(f"edits[{index}].old_text is not in the file, white space included: {shown!r}")
        if found > 1 and not every:
            raise _Refused(
                f"edits[{index}].old_text is in the file {found} times; give more of the text around it, "
                "or set replace_all"
            )
        if len(text) + found * (len(new) - len(old)) > MAX_EDITED_BYTES:
            raise _Refused(f"edits[{index}] would make it longer than {MAX_EDITED_BYTES} characters")
        text, replaced = text.replace(old, new), replaced + found
    return text, replaced


DEFAULT_MATCHES = 100
MAX_LINE_CHARS = 300
"""Characters of a line in the result."""
_MAX_OUTPUT_BYTES = 256 * 1024
"""Bytes that grep may write before it is ended."""
_FAILED = 2
"""Exit code of grep; https://www.gnu.org/software/grep/manual/html_node/Exit-Status.html"""
_SKIPPED = ("--exclude-dir=.git", "--exclude-dir=.banksman", "--exclude=.banksman-*")


@dataclass(frozen=True, slots=True)
class WriteFileTool:
    limits: RunnerLimits
    definition = WRITE_FILE

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        """Create or replace a file; a replaced text keeps its CRLF line ends."""
        if refused := await full_workspace(run):
            return refused
        return await asyncio.to_thread(self._write, run, str(arguments["path"]), str(arguments["content"]))

    def _write(self, run: ToolRun, path: str, content: str) -> ToolOutcome:
        existing = ""
        with contextlib.suppress(PathRefused):
            part = read_part(run.workspace.directory, path, offset=0, max_bytes=SAMPLE_BYTES)
            existing = part.data.decode("utf-8", "replace")
        try:
            data = (with_crlf(content) if ends_with_crlf(existing) else content).encode()
        except UnicodeEncodeError:
            return failure("invalid_arguments", "content: expected valid Unicode", path=path)
        return store_file(run, path, data, self.limits)


async def full_workspace(run: ToolRun) -> ToolOutcome | None:
    """Return the failure of a call that would write to a workspace above its limits; None below them.

    The quota is a watchdog: a workspace that a command has filled refuses the next write.
    """
    meter = run.workspace.meter
    await meter.before_write()
    excess = meter.excess()
    return failure("tool_error", f"nothing was written: {excess}; delete files first") if excess else None


def store_file(run: ToolRun, path: str, data: bytes, limits: RunnerLimits, **facts: JsonValue) -> ToolOutcome:
    """Write a whole file, and return the outcome of the call; `facts` are further values of its result."""
    if len(data) > (most := limits.sandbox.file_size_bytes):
        error = f"content: expected at most {most} bytes (got {len(data)})"
        return failure("invalid_arguments", error, path=path)
    try:
        created = write_whole(run.workspace.directory, path, data, run.workspace.identity)
    except PathRefused as refused:
        return failure("tool_error", str(refused), path=path)
    name, verb = relative(path), "Created" if created else "Replaced"
    value: JsonObject = {
        "success": True,
        "path": name,
        "bytes": len(data),
        "created": created,
        **facts,
        "message": f"{verb} {name} ({len(data)} bytes).",
    }
    change = PathChange(path=name, change="created" if created else "modified")
    run.workspace.record(name, change.change, run.run_id)
    return ToolOutcome(value=value, changed=(change,))


@dataclass(frozen=True, slots=True)
class SearchCodeTool:
    """Searches the files of the workspace with grep in the sandbox, which bounds its time and memory."""

    sandbox: Sandbox
    limits: RunnerLimits
    definition = SEARCH_CODE

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        try:
            command = SandboxCommand(_script(arguments), run.workspace.directory, run.timeout_s)
            outcome = await self.sandbox.run(command, stop=run.stop)
        except PathRefused as refused:
            return failure("tool_error", str(refused))
        except SandboxUnavailable as error:
            return failure("unavailable", f"the sandbox could not be started: {error}")
        return await asyncio.to_thread(self._result, outcome, run, _most(arguments))

    def _result(self, outcome: SandboxOutcome, run: ToolRun, most: int) -> ToolOutcome:
        written, problem = outcome.output.whole(), outcome.output.stderr.text()
        outcome.output.close()
        match outcome.killed_reason:
            case None:
                pass
            case "timeout":
                return failure("timeout", f"the search was ended after its time-out of {run.timeout_s:g} s")
            case "cancelled":
                return failure("cancelled", "the search was cancelled")
            case reason:
                return failure("tool_error", f"the search was ended: {reason}")
        if outcome.exit_code == _FAILED and problem:
            missing = "No such file" in problem
            kind = "tool_error" if missing else "invalid_arguments"
            return failure(kind, problem[:MAX_LINE_CHARS].strip())
        found = sorted(_matches(written), key=lambda one: (one[0], one[1]))
        shown = _fitting(found[:most], self.limits.max_output_chars)
        truncated = len(shown) < len(found) or len(written) >= _MAX_OUTPUT_BYTES
        value: JsonObject = {"success": True, "matches": shown, "truncated": truncated}
        if truncated:
            value["more"] = "There are more matches. Search a directory with `path`, or files with `glob`."
        return ToolOutcome(value=value, truncated=truncated)


def _most(arguments: JsonObject) -> int:
    given = arguments.get("max_results")
    return min(int(given), MAX_MATCHES) if isinstance(given, int | float) else DEFAULT_MATCHES


def _script(arguments: JsonObject) -> str:
    path, glob = str(arguments.get("path") or "."), arguments.get("glob")
    inside = posixpath.normpath(relative(path))
    if inside == ".." or inside.startswith("../"):
        raise PathRefused(path, "the path leaves the workspace")
    options = [
        # One match more than requested shows that there are more.
        *("-HrnIZ", "-m", str(_most(arguments) + 1)),
        "-E" if arguments.get("regex") is True else "-F",
        *(() if arguments.get("case_sensitive") is True else ("-i",)),
        # A file that no option matches is searched unless the first one is an `--include`.
        *((f"--include={glob}",) if isinstance(glob, str) else ()),
        *_SKIPPED,
    ]
    grep = shlex.join(
        ["grep", *options, "-e", str(arguments["query"]), "--", "." if inside == "." else f"./{inside}"]
    )
    # grep also fails for a single unreadable file, so its complaints count only if nothing was found.
    return (
        f"{grep} 2>/tmp/problem | head -c {_MAX_OUTPUT_BYTES} | tee /tmp/found; status=${{PIPESTATUS[0]}}; "
        f"if [ $status -eq {_FAILED} ] && ! [ -s /tmp/found ]; then head -n 1 /tmp/problem >&2; "
        f"exit {_FAILED}; fi; exit 0"
    )


def _matches(written: bytes) -> Iterator[tuple[str, int, str]]:
    """Yield path, line number and line of each match. The last one may be cut off."""
    for line in written.decode("utf-8", "replace").split("\n"):
        path, null, rest = line.partition("\0")
        number, colon, text = rest.partition(":")
        if null and colon and number.isdecimal():
            yield path.removeprefix("./"), int(number), text


def _fitting(found: list[tuple[str, int, str]], max_chars: int) -> list[JsonValue]:
    shown: list[JsonValue] = []
    room = max_chars
    for path, number, text in found:
        line = text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"
        room -= len(path) + len(line) + 40
        if room < 0:
            break
        shown.append({"path": path, "line": number, "text": line})
    return shown
