"""Paging of long text: the model gets one page, and the whole text is stored for `read_file`."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass

from banksman.tool_runner.workspaces.files import PathRefused, write_whole
from banksman.tool_runner.workspaces.workspace import Workspace

_OUTPUT_DIRECTORY = ".banksman/output"


@dataclass(frozen=True, slots=True)
class Page:
    """The beginning of some bytes as text."""

    text: str
    consumed_bytes: int
    """Bytes of the source that `text` represents."""


UTF_8 = "utf-8"
_SINGLE_BYTE = frozenset({"ascii", "iso8859-1", "cp1252"})
"""Python's names of the encodings in which each byte is one character."""


def page(data: bytes, max_chars: int, encoding: str = UTF_8) -> Page:
    """Return the first characters of a text; each invalid byte becomes one U+FFFD.

    `encoding` is UTF-8, or one in which each byte is one character.
    """
    if encoding in _SINGLE_BYTE:
        cut_bytes = data[:max_chars]
        return Page(cut_bytes.decode(encoding, "replace"), len(cut_bytes))
    # surrogateescape maps each invalid byte to one character, so encoding the cut returns its exact bytes.
    cut = data.decode("utf-8", "surrogateescape")[:max_chars]
    source = cut.encode("utf-8", "surrogateescape")
    shown = "".join("\ufffd" if "\udc80" <= char <= "\udcff" else char for char in cut)
    return Page(shown, len(source))


def continuation(path: str, offset: int = 0, encoding: str = UTF_8) -> str:
    """Return the sentence that names the call for the next page."""
    same = "" if encoding == UTF_8 else f" and the same encoding, {encoding},"
    named = json.dumps(path, ensure_ascii=False)
    return f"Call read_file with path {named} and offset {offset}{same} to read on."


def store_output(workspace: Workspace, data: bytes) -> str | None:
    """Store an output in the workspace; return its path, or None if the workspace is full.

    The caller measures the workspace before, if a measurement is due.
    """
    path = f"{_OUTPUT_DIRECTORY}/{secrets.token_hex(6)}.txt"
    if workspace.meter.excess() is not None or not workspace.meter.has_room(len(data)):
        return None
    try:
        write_whole(workspace.directory, path, data, workspace.identity)
    except PathRefused:
        return None
    return path
