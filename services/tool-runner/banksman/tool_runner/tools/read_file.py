"""The tool that reads texts of the workspace in pages, also those of documents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from banksman.contracts.wire import JsonObject
from banksman.contracts.workspace_tools import READ_FILE
from banksman.tool_runner.sandbox.base import MAX_UTF8_BYTES, run_until
from banksman.tool_runner.settings import RunnerLimits
from banksman.tool_runner.tools.converter import ConversionFailed, Converter
from banksman.tool_runner.tools.images import Images
from banksman.tool_runner.tools.texts import (
    MAX_TRANSCODED_BYTES,
    SAMPLE_BYTES,
    UTF_8,
    binary_kind,
    document_type,
    encoding_of,
    is_image,
    known_encoding,
    label_of,
)
from banksman.tool_runner.tools.toolbox import (
    ToolOutcome,
    ToolRun,
    continuation,
    failure,
    growth_problem,
    page,
    store_output,
)
from banksman.tool_runner.workspaces.files import FilePiece, PathRefused, read_part, relative

MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
MAX_SCANNED_BYTES = 256 * 1024 * 1024
"""Maximum bytes that are read to find a line by its number."""


class _Unreadable(Exception):
    """The file has no text; the message states why, for the model."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What is read: a part of a file in UTF-8, or a whole file that was decoded."""

    data: bytes
    """UTF-8, from `offset` on."""
    offset: int
    total_bytes: int
    encoding: str = UTF_8


_Later = Callable[[], Awaitable[ToolOutcome]]
"""Reads what a separate process decodes: an image or a document."""


@dataclass(frozen=True, slots=True)
class ReadFileTool:
    limits: RunnerLimits
    converter: Converter
    images: Images
    definition = READ_FILE

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        label = arguments.get("encoding")
        encoding = known_encoding(label) if isinstance(label, str) else None
        if label is not None and encoding is None:
            error = f"encoding: expected a name such as windows-1252, utf-16le or shift_jis (got {label!r})"
            return failure("invalid_arguments", error)
        found = await asyncio.to_thread(self._read, arguments, run, encoding)
        return found if isinstance(found, ToolOutcome) else await found()

    async def _shown(self, path: str, total_bytes: int, run: ToolRun) -> ToolOutcome:
        """Return a result whose image a model sees that takes images."""
        try:
            showing = self.images.shown(run.workspace, path)
            shown = await run_until(showing, run.stop.wait())
        except (ConversionFailed, PathRefused) as failed:
            error = f"{path}: this image could not be read: {failed}"
            return failure("tool_error", error, path=path)
        if shown is None:
            return failure("cancelled", "the reading was cancelled", path=path)
        if shown.path is None:
            return failure("tool_error", growth_problem(run.workspace), path=path)
        value: JsonObject = {
            "success": True,
            "path": relative(path),
            "images": [shown.path],
            "total_bytes": total_bytes,
        }
        return ToolOutcome(value=value | ({"note": shown.note} if shown.note else {}))

    async def _text_of(self, path: str, media_type: str, content: bytes, run: ToolRun) -> ToolOutcome:
        """Return the first part of a document's text; the whole text is stored as a file to read on."""
        try:
            text = self.converter.document(content, media_type, identity=run.workspace.identity)
            whole = await run_until(text, run.stop.wait())
        except ConversionFailed as failed:
            error = f"{path}: this document could not be read: {failed}"
            return failure("tool_error", error, path=path)
        if whole is None:
            return failure("cancelled", "the reading was cancelled", path=path)
        await run.workspace.meter.before_write()
        return await asyncio.to_thread(self._converted, whole, path, media_type, run)

    def _converted(self, whole: str, path: str, media_type: str, run: ToolRun) -> ToolOutcome:
        data = whole.encode("utf-8", "replace")
        shown = page(data, self.limits.max_output_chars)
        rest = shown.consumed_bytes < len(data)
        value: JsonObject = {
            "success": True,
            "path": relative(path),
            "content": shown.text,
            "truncated": rest,
            "total_bytes": len(data),
            "media_type": media_type,
        }
        if not whole:
            value["note"] = "The document has no text; its pages may be images."
        if rest and (stored := store_output(run.workspace, data)):
            value |= {"full_output_path": stored, "more": continuation(stored, shown.consumed_bytes)}
        return ToolOutcome(value=value, truncated=rest, output=data if rest else None)

    def _read(self, arguments: JsonObject, run: ToolRun, encoding: str | None) -> ToolOutcome | _Later:
        path, directory = str(arguments["path"]), run.workspace.directory
        try:
            beginning = read_part(directory, path, offset=0, max_bytes=SAMPLE_BYTES)
            if media_type := document_type(path, beginning.data):
                content = _whole(directory, path, beginning, MAX_DOCUMENT_BYTES, "this document")
                return partial(self._text_of, path, media_type, content, run)
            if encoding is None and is_image(beginning.data):
                return partial(self._shown, path, beginning.total_bytes, run)
            source = self._source(directory, path, beginning, arguments, encoding)
        except PathRefused as refused:
            return failure("tool_error", str(refused), path=path)
        except _Unreadable as reason:
            return failure("tool_error", f"{path}: {reason}", path=path)
        return self._page(relative(path), source, _number(arguments, "limit"))

    def _source(
        self, directory: Path, path: str, beginning: FilePiece, arguments: JsonObject, encoding: str | None
    ) -> _Source:
        mark, likely = encoding_of(beginning.data)
        if encoding is None and (kind := binary_kind(beginning.data)):
            raise _Unreadable(f"this is no text but {kind} ({beginning.total_bytes} bytes)")
        line, start = _number(arguments, "offset") or 1, _number(arguments, "byte_offset")
        encoding, most = encoding or likely, self.limits.max_output_chars * MAX_UTF8_BYTES
        if encoding != UTF_8:
            # Offsets in bytes are those of the text in UTF-8.
            what = f"this text in {label_of(encoding)} (iconv converts it to UTF-8, without this limit)"
            whole = _whole(directory, path, beginning, MAX_TRANSCODED_BYTES, what)
            text = whole[len(mark) :].decode(encoding, "backslashreplace").encode()
            start = _start_of_line(text, line) if start is None else start
            return _Source(text[start : start + most], start, len(text), label_of(encoding))
        if start is None:
            start = find_line(directory, path, line, MAX_SCANNED_BYTES)
        if start is None:
            raise _Unreadable(f"line {line} does not begin within its first {MAX_SCANNED_BYTES} bytes")
        start = start or len(mark)
        data = beginning.data[start : start + most]
        if min(start + most, beginning.total_bytes) > len(beginning.data):
            data = read_part(directory, path, offset=start, max_bytes=most).data
        return _Source(data, start, beginning.total_bytes)

    def _page(self, path: str, source: _Source, lines: int | None) -> ToolOutcome:
        data = source.data
        if lines is not None:
            data = data[: _start_of_line(data, lines + 1)]
        shown = page(data, self.limits.max_output_chars)
        end = source.offset + shown.consumed_bytes
        rest = end < source.total_bytes
        value: JsonObject = {
            "success": True,
            "path": path,
            "content": shown.text,
            "truncated": rest,
            "total_bytes": source.total_bytes,
            "byte_offset": source.offset,
        }
        if source.encoding != UTF_8:
            value["encoding"] = source.encoding
        if shown.escaped:
            value["note"] = "Bytes that are not UTF-8 are shown as \\x and two digits."
        if rest:
            value |= {"next_byte_offset": end, "more": continuation(path, end)}
        # The file itself contains the rest, so there is no output to store.
        return ToolOutcome(value=value, truncated=rest)


def _number(arguments: JsonObject, name: str) -> int | None:
    value = arguments.get(name)
    return int(value) if isinstance(value, int | float) else None


def _whole(directory: Path, path: str, beginning: FilePiece, most: int, what: str) -> bytes:
    """Return a file that cannot be read in parts; `what` names it for the model."""
    if beginning.total_bytes > most:
        raise _Unreadable(f"{what} has {beginning.total_bytes} bytes; at most {most} can be read")
    if len(beginning.data) == beginning.total_bytes:
        return beginning.data
    return read_part(directory, path, offset=0, max_bytes=most).data


def _start_of_line(data: bytes, line: int) -> int:
    """Return the index of a line by its number from 1; the length if there are fewer lines."""
    return line_start(lambda at: data[at : at + SCANNED_BYTES], line, len(data) + 1) or 0


SCANNED_BYTES = 128 * 1024
"""Bytes that are searched for line ends at a time."""


def find_line(workspace: Path, path: str, line: int, max_bytes: int) -> int | None:
    """Return the byte at which a line begins, by its number from 1; the size if the file has fewer lines.

    None if the line does not begin within the first `max_bytes`. Raises `PathRefused` as `read_part`.
    """

    def piece(at: int) -> bytes:
        return read_part(workspace, path, offset=at, max_bytes=SCANNED_BYTES).data

    return line_start(piece, line, max_bytes)


def line_start(piece: Callable[[int], bytes], line: int, max_bytes: int) -> int | None:
    """Do the same for any text, of which `piece` returns `SCANNED_BYTES` at an index, fewer at the end."""
    position, missing = 0, line - 1
    while missing > 0:
        if position >= max_bytes:
            return None
        data = piece(position)
        if not data:
            break
        if (found := data.count(b"\n")) < missing:
            position, missing = position + len(data), missing - found
            continue
        index = -1
        for _ in range(missing):
            index = data.index(b"\n", index + 1)
        return position + index + 1
    return position
