"""Files and complete outputs of tool calls in slices that fit a message, as NATS clients transfer them."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from pydantic import Field

from banksman.contracts.errors import BadInput
from banksman.contracts.ids import new_id
from banksman.contracts.runner_requests import FileEntry
from banksman.contracts.wire import Stored, Token, Wire
from banksman.gateway.files.files import MAX_PATH_CHARS, SLICE_BYTES, ConversationFiles, StoredFile
from banksman.gateway.operation.caller import CHAT
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, provided

Service = Annotated[ConversationFiles, provided(ConversationFiles)]
Path = Annotated[str, Field(max_length=MAX_PATH_CHARS)]
MAX_ENTRIES = 1_000
MAX_BASE64 = 4 * (SLICE_BYTES // 3 + 1)
WHOLE = "`files.operations` declares the same for whole files"

operations = Operations("files")


class ListFiles(Wire):
    """Request a page of the files below a path, sorted by path."""

    path: Path = ""
    after: Path = ""
    """`next` of the previous page: the path of its last file."""
    limit: int = Field(default=MAX_ENTRIES, ge=1, le=MAX_ENTRIES)


class FilePage(Stored):
    """A page of the files of a workspace."""

    items: tuple[FileEntry, ...]
    next: str | None
    """`after` of the next page; null at the end."""


class ReadFile(Wire):
    """Request a slice of a file."""

    path: Path
    offset: int = Field(default=0, ge=0)
    """Bytes before the slice."""


class FileSlice(Stored):
    """A slice of a file or of an output, of at most 524,288 bytes."""

    offset: int
    data_base64: str
    more: bool
    """Whether bytes follow: request them with the offset after this slice."""


class WriteFile(Wire):
    """Store a file, or a slice of it; the last slice replaces the file."""

    path: Path
    data_base64: str = Field(max_length=MAX_BASE64)
    """At most 524,288 bytes."""
    upload: Token | None = None
    """A new id, the same in all slices of a file; None for a file of one slice."""
    offset: int = Field(default=0, ge=0)
    """Bytes before the slice."""
    last: bool = True


class ReadOutput(Wire):
    """Request a slice of the complete output of a call."""

    tool_call_id: Token
    offset: int = Field(default=0, ge=0)


@operations.over_nats("file.list", "conversation_id", not_over_http=WHOLE)
async def list_files(conversation_id: str, request: ListFiles, files: Service, caller: CallerDep) -> FilePage:
    """List the files below a path, sorted by path; a page may have fewer files than its limit."""
    workspace = await files.workspace(caller, conversation_id)
    page, more = await workspace.page(request.path, after=request.after, limit=request.limit)
    return FilePage(items=page, next=page[-1].path if more and page else None)


@operations.over_nats("file.read", "conversation_id", not_over_http=WHOLE)
async def read_file(conversation_id: str, request: ReadFile, files: Service, caller: CallerDep) -> FileSlice:
    """Read a slice of a file."""
    workspace = await files.workspace(caller, conversation_id)
    reply = await workspace.slice(request.path, request.offset)
    return FileSlice(offset=request.offset, data_base64=reply.data_base64 or "", more=reply.more)


@operations.over_nats("file.write", "conversation_id", right=CHAT, not_over_http=WHOLE)
async def write_file(
    conversation_id: str, request: WriteFile, files: Service, caller: CallerDep
) -> StoredFile:
    """Store a file or one slice of it, replacing an existing file of the same path."""
    workspace = await files.workspace(caller, conversation_id)
    data = _decoded(request.data_base64)
    if request.upload is None and (request.offset or not request.last):
        raise BadInput("upload", None, "the id that all slices of the file have")
    upload = request.upload or new_id("u")
    await workspace.put_slice(request.path, upload, request.offset, data, last=request.last)
    return StoredFile(path=request.path, size=request.offset + len(data))


@operations.over_nats("output.read", "run_id", not_over_http=WHOLE)
async def read_output(run_id: str, request: ReadOutput, files: Service, caller: CallerDep) -> FileSlice:
    """Read a slice of the complete output of a call whose result was truncated."""
    whole = await files.output(caller, run_id, request.tool_call_id)
    end = request.offset + SLICE_BYTES
    data = base64.b64encode(whole[request.offset : end]).decode()
    return FileSlice(offset=request.offset, data_base64=data, more=end < len(whole))


def _decoded(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise BadInput("data_base64", text, "base64") from error
    if len(data) > SLICE_BYTES:
        raise BadInput("data_base64", None, f"at most {SLICE_BYTES} bytes; send the file in slices")
    return data
