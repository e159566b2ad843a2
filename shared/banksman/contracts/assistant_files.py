"""Files that an assistant carries: the workspaces of its conversations start with them."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from banksman.contracts.wire import Stored

MAX_FILES = 100
MAX_FILES_BYTES = 256 * 1024
"""Of all files of an assistant as JSON. They are stored with it, in one message of at most 1 MiB."""
MAX_PATH_CHARS, MAX_NAME_BYTES, MAX_PARTS = 512, 255, 16
RESERVED_PREFIX = ".banksman-"
"""Names that the tool-runner keeps for files that are not complete yet."""


def _checked_path(path: str) -> str:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ValueError("a path relative to the workspace is expected, without empty parts, '.' and '..'")
    if len(parts) > MAX_PARTS or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise ValueError(f"at most {MAX_PARTS} parts of at most {MAX_NAME_BYTES} bytes each are expected")
    if any(part.startswith(RESERVED_PREFIX) for part in parts):
        raise ValueError(f"names that begin with {RESERVED_PREFIX!r} are reserved")
    return path


class AssistantFile(Stored):
    """One file."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS), AfterValidator(_checked_path)]
    """Relative to the workspace, with `/`."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """How `content` stands for the file's bytes."""
    executable: bool = False
    content: str | None = None
    """None only in lists of assistants, which leave it out."""

    @field_validator("content")
    @classmethod
    def _decodes(cls, content: str | None, info: ValidationInfo) -> str | None:
        if content is not None and info.data.get("encoding") == "base64":
            try:
                base64.b64decode(content, validate=True)
            except binascii.Error as error:
                raise ValueError(f"base64 with padding is expected ({error})") from error
        return content

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        content = self.content or ""
        return base64.b64decode(content) if self.encoding == "base64" else content.encode()


def _checked_set(files: tuple[AssistantFile, ...]) -> tuple[AssistantFile, ...]:
    paths = {file.path for file in files}
    if len(paths) < len(files):
        raise ValueError("each path once is expected")
    if both := sorted(path for path in paths if any(above in paths for above in _above(path))):
        raise ValueError(f"{both[0]!r} is below another file of the list; a file is no directory")
    return files


def _above(path: str) -> list[str]:
    """The directories that a path goes through."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _checked_contents(files: tuple[AssistantFile, ...]) -> tuple[AssistantFile, ...]:
    for file in files:
        if file.content is None:
            raise ValueError(
                f"{file.path!r} has no content; lists leave it out, reading one assistant does not"
            )
    size = sum(len(file.model_dump_json().encode()) for file in files)
    if size > MAX_FILES_BYTES:
        raise ValueError(f"at most {MAX_FILES_BYTES} bytes of JSON are expected in all (got {size})")
    return files


AssistantFiles = Annotated[
    tuple[AssistantFile, ...], Field(max_length=MAX_FILES), AfterValidator(_checked_set)
]
"""Each path once, and none below another."""

SubmittedFiles = Annotated[AssistantFiles, AfterValidator(_checked_contents)]
"""As a client writes them: with contents, and not too much of them."""
