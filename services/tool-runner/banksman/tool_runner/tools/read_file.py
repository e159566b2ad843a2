"""The tool that reads texts of the workspace in pages, also those of documents."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import PurePosixPath

from banksman.contracts.wire import JsonObject
from banksman.contracts.workspace_tools import READ_FILE
from banksman.tool_runner.sandbox.base import MAX_UTF8_BYTES, run_until
from banksman.tool_runner.settings import RunnerLimits
from banksman.tool_runner.tools.converter import ConversionFailed, Converter
from banksman.tool_runner.tools.texts import (
    DOCUMENTS,
    MAX_TRANSCODED_BYTES,
    SAMPLE_BYTES,
    UTF_8,
    binary_kind,
    encoding_of,
    known_encoding,
)
from banksman.tool_runner.tools.toolbox import ToolOutcome, ToolRun, continuation, failure, page, store_output
from banksman.tool_runner.workspaces.files import PathRefused, find_line, read_part, relative

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


@dataclass(frozen=True, slots=True)
class ReadFileTool:
    limits: RunnerLimits
    converter: Converter
    definition = READ_FILE

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        path = str(arguments["path"])
        try:
            document = await asyncio.to_thread(_document, run, path)
            if document is not None:
                return await self._text_of(document, path, run)
        except (PathRefused, _Unreadable) as refused:
            return failure("tool_error", str(refused), path=path)
        label = arguments.get("encoding")
        encoding = known_encoding(label) if isinstance(label, str) else None
        if label is not None and encoding is None:
            error = f"encoding: expected a name such as windows-1252, utf-16le or shift_jis (got {label!r})"
            return failure("invalid_arguments", error)
        return await asyncio.to_thread(self._read, arguments, run, encoding)

    async def _text_of(self, document: _Document, path: str, run: ToolRun) -> ToolOutcome:
        """Return the first part of a document's text; the whole text is stored as a file to read on."""
        identity = run.workspace.identity
        try:
            text = self.converter.document(document.content, document.media_type, identity=identity)
            whole = await run_until(text, run.stop.wait())
        except ConversionFailed as failed:
            raise _Unreadable(f"{path}: this document could not be read: {failed}") from None
        if whole is None:
            return failure("cancelled", "the reading was cancelled", path=path)
        await run.workspace.meter.before_write()
        return await asyncio.to_thread(self._converted, whole, document.media_type, path, run)

    def _converted(self, whole: str, media_type: str, path: str, run: ToolRun) -> ToolOutcome:
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

    def _read(self, arguments: JsonObject, run: ToolRun, encoding: str | None) -> ToolOutcome:
        path = str(arguments["path"])
        try:
            source = self._source(run, path, arguments, encoding)
        except PathRefused as refused:
            return failure("tool_error", str(refused), path=path)
        except _Unreadable as reason:
            return failure("tool_error", f"{path}: {reason}", path=path)
        return self._page(relative(path), source, _number(arguments, "limit"))

    def _source(self, run: ToolRun, path: str, arguments: JsonObject, encoding: str | None) -> _Source:
        directory = run.workspace.directory
        beginning = read_part(directory, path, offset=0, max_bytes=SAMPLE_BYTES)
        mark, likely = encoding_of(beginning.data)
        if encoding is None and (kind := binary_kind(beginning.data)):
            raise _Unreadable(f"this is no text but {kind} ({beginning.total_bytes} bytes)")
        line, start = _number(arguments, "offset") or 1, _number(arguments, "byte_offset")
        encoding = encoding or likely
        if encoding != UTF_8:
            text = _transcoded(run, path, encoding, mark)
            start = _start_of_line(text, line) if start is None else start
            return _Source(text[start:], start, len(text), encoding)
        if start is None:
            start = find_line(directory, path, line, MAX_SCANNED_BYTES)
        if start is None:
            raise _Unreadable(f"line {line} does not begin within its first {MAX_SCANNED_BYTES} bytes")
        start = start or len(mark)
        max_bytes = self.limits.max_output_chars * MAX_UTF8_BYTES
        part = read_part(directory, path, offset=start, max_bytes=max_bytes)
        return _Source(part.data, start, part.total_bytes)

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


@dataclass(frozen=True, slots=True)
class _Document:
    content: bytes
    media_type: str


def _document(run: ToolRun, path: str) -> _Document | None:
    """Return a file that is a document by its name and its beginning; None for any other file."""
    beginning, media_type = DOCUMENTS.get(PurePosixPath(path).suffix.lower(), (b"", ""))
    if not beginning:
        return None
    directory = run.workspace.directory
    if not read_part(directory, path, offset=0, max_bytes=len(beginning)).data.startswith(beginning):
        return None
    part = read_part(directory, path, offset=0, max_bytes=MAX_DOCUMENT_BYTES)
    if len(part.data) < part.total_bytes:
        most = f"at most {MAX_DOCUMENT_BYTES} can be read"
        raise _Unreadable(f"{path}: this document has {part.total_bytes} bytes; {most}")
    return _Document(part.data, media_type)


def _number(arguments: JsonObject, name: str) -> int | None:
    value = arguments.get(name)
    return int(value) if isinstance(value, int | float) else None


def _transcoded(run: ToolRun, path: str, encoding: str, mark: bytes) -> bytes:
    """Return a whole file as UTF-8; offsets in bytes are those of this text."""
    whole = read_part(run.workspace.directory, path, offset=0, max_bytes=MAX_TRANSCODED_BYTES)
    if len(whole.data) < whole.total_bytes:
        raise _Unreadable(
            f"this text in {encoding} has {whole.total_bytes} bytes; only texts in UTF-8 can be longer "
            f"than {MAX_TRANSCODED_BYTES} bytes; convert it with iconv"
        )
    return whole.data[len(mark) :].decode(encoding, "backslashreplace").encode()


def _start_of_line(data: bytes, line: int) -> int:
    """Return the index of a line by its number from 1; the length if there are fewer lines."""
    index = 0
    for _ in range(line - 1):
        found = data.find(b"\n", index)
        if found < 0:
            return len(data)
        index = found + 1
    return index
