"""The tool that replaces parts of a text file."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from banksman.contracts.wire import JsonObject
from banksman.contracts.workspace_tools import EDIT_FILE
from banksman.tool_runner.settings import RunnerLimits
from banksman.tool_runner.tools.files import full_workspace, store_file
from banksman.tool_runner.tools.texts import (
    SAMPLE_BYTES,
    TextFile,
    binary_kind,
    ends_with_crlf,
    label_of,
    with_crlf,
)
from banksman.tool_runner.tools.toolbox import ToolOutcome, ToolRun, failure
from banksman.tool_runner.workspaces.files import PathRefused, read_part

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
