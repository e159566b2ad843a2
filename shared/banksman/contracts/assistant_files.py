"""The files of an assistant, with which each new workspace of its conversations starts."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from banksman.contracts.wire import Stored

MAX_FILES = 100
MAX_FILES_BYTES = 256 * 1024
"""Maximum bytes of JSON of all files of an assistant. They share a message of at most 1 MiB with it."""
MAX_PATH_CHARS, MAX_NAME_BYTES, MAX_PARTS = 512, 255, 16
RESERVED_PREFIX = ".banksman-"
"""Prefix of the names that the tool-runner reserves for files that it is still writing."""


def _checked_path(path: str) -> str:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ValueError("must be a path relative to the workspace, without empty parts, '.' and '..'")
    if len(parts) > MAX_PARTS or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise ValueError(f"must have at most {MAX_PARTS} parts of at most {MAX_NAME_BYTES} bytes each")
    if any(part.startswith(RESERVED_PREFIX) for part in parts):
        raise ValueError(f"must have no name that begins with {RESERVED_PREFIX!r}, which is reserved")
    return path


class AssistantFile(Stored):
    """One initial file of a workspace."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS), AfterValidator(_checked_path)]
    """Path relative to the workspace, with `/` between its parts."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """How `content` encodes the file's bytes."""
    executable: bool = False
    content: str | None = None
    """The content in this encoding; None in lists of assistants, which omit contents."""

    @field_validator("content")
    @classmethod
    def _decodes(cls, content: str | None, info: ValidationInfo) -> str | None:
        if content is not None and info.data.get("encoding") == "base64":
            try:
                base64.b64decode(content, validate=True)
            except binascii.Error as error:
                raise ValueError(f"must be base64 with padding ({error})") from error
        return content

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        content = self.content or ""
        return base64.b64decode(content) if self.encoding == "base64" else content.encode()


def _checked_set(files: tuple[AssistantFile, ...]) -> tuple[AssistantFile, ...]:
    paths = {file.path for file in files}
    if len(paths) < len(files):
        raise ValueError("must contain each path once")
    if both := sorted(path for path in paths if any(above in paths for above in _above(path))):
        raise ValueError(f"must not contain {both[0]!r} below another file: a file is not a directory")
    return files


def _above(path: str) -> list[str]:
    """Return the directories above a path, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _checked_contents(files: tuple[AssistantFile, ...]) -> tuple[AssistantFile, ...]:
    for file in files:
        if file.content is None:
            raise ValueError(
                f"must contain the content of {file.path!r}; lists of assistants omit it, `read` returns it"
            )
    size = sum(len(file.model_dump_json().encode()) for file in files)
    if size > MAX_FILES_BYTES:
        raise ValueError(f"must have at most {MAX_FILES_BYTES} bytes of JSON in total, not {size}")
    return files


AssistantFiles = Annotated[
    tuple[AssistantFile, ...], Field(max_length=MAX_FILES), AfterValidator(_checked_set)
]
"""Files with distinct paths, none below another."""

SubmittedFiles = Annotated[AssistantFiles, AfterValidator(_checked_contents)]
"""Files in a client's request: with contents, at most `MAX_FILES_BYTES` in total."""
