"""Text that is too long for a model: one page shown, the whole kept where `read_file` can page through it."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass

from banksman.tool_runner.workspaces.files import PathRefused, write_whole
from banksman.tool_runner.workspaces.workspace import Workspace

_OUTPUT_DIRECTORY = ".banksman/output"


@dataclass(frozen=True, slots=True)
class Page:
    """A beginning of some bytes as text."""

    text: str
    consumed_bytes: int
    """Bytes of the source that `text` stands for."""


def page(data: bytes, max_chars: int) -> Page:
    """The first characters of UTF-8 text; each byte that is no UTF-8 becomes U+FFFD and counts as one."""
    # Escaping keeps one character a bad byte, so encoding the cut gives back exactly the bytes it came from.
    cut = data.decode("utf-8", "surrogateescape")[:max_chars]
    source = cut.encode("utf-8", "surrogateescape")
    shown = "".join("\ufffd" if "\udc80" <= char <= "\udcff" else char for char in cut)
    return Page(shown, len(source))


def how_to_go_on(path: str, offset: int = 0) -> str:
    """What a model is told beside a page: the call that shows it the next one."""
    return f"Call read_file with path {json.dumps(path, ensure_ascii=False)} and offset {offset} to read on."


def keep_whole(workspace: Workspace, data: bytes) -> str | None:
    """Put an output into the workspace; its path there, or None when the workspace does not take it."""
    path = f"{_OUTPUT_DIRECTORY}/{secrets.token_hex(6)}.txt"
    if workspace.meter.excess() is not None:
        return None
    try:
        write_whole(workspace.directory, path, data, workspace.identity)
    except PathRefused:
        return None
    return path
