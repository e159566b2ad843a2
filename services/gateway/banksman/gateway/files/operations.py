"""Files of a conversation's workspace, complete outputs of tool calls, and processes that outlive calls."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Request, Response
from pydantic import AfterValidator, Field

from banksman.bus.connection import Bus
from banksman.bus.names import OUTPUTS
from banksman.bus.storage.objects import Objects
from banksman.contracts.errors import BadInput, NotFound
from banksman.contracts.ids import new_id
from banksman.contracts.paths import portable_path
from banksman.contracts.processes import ProcessInfo, ProcessOutput
from banksman.contracts.runner_requests import (
    FileDelete,
    FileEntry,
    FileUnpack,
    ProcessList,
    ProcessRead,
    ProcessStop,
    WorkspaceDiff,
)
from banksman.contracts.wire import Stored, Token, Wire
from banksman.deployment.users import GATEWAY_FILES, inbox_prefix
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.files.files import (
    MAX_PATH_CHARS,
    SLICE_BYTES,
    ConversationFiles,
    StoredFile,
    check_length,
)
from banksman.gateway.operation.caller import CHAT
from banksman.gateway.operation.declaration import BodyLimit, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestBody, StrictBody, provided
from banksman.gateway.operation.streaming import StreamedResponse
from banksman.gateway.runs.runs import Runs
from banksman.runs.runners.placement import Placements

Service = Annotated[ConversationFiles, provided(ConversationFiles)]
ProcessId = Annotated[str, Field(max_length=200)]
After = Annotated[int | None, Field(ge=0)]
FilePath = Annotated[str, AfterValidator(check_length)]
RunId = Annotated[str, Field(max_length=200)]
BYTES = "application/octet-stream"
BINARY: dict[str, Any] = {BYTES: {"schema": {"type": "string", "format": "binary"}}}
DOWNLOADED: dict[int | str, dict[str, Any]] = {200: {"content": BINARY}}
IN_SLICES = "a message has a limited size: declared below for slices"

operations = Operations("files")


@operations.add("file.list", "GET /context/conversations/{conversation_id}/files", not_over_nats=IN_SLICES)
async def list_files(
    conversation_id: str, files: Service, caller: CallerDep, path: FilePath = ""
) -> Listing[FileEntry]:
    """List the files below a path, at most 10,000."""
    workspace = await files.workspace(caller, conversation_id)
    return Listing[FileEntry](items=await workspace.list(path))


@operations.add("file.diff", "GET /context/conversations/{conversation_id}/diff")
async def compare_files(
    conversation_id: str, files: Service, caller: CallerDep, since: RunId = "", path: FilePath = ""
) -> WorkspaceDiff:
    """Show what has changed in the workspace since run `since` began, or since the workspace began."""
    workspace = await files.workspace(caller, conversation_id)
    return await workspace.diff(since=since, path=path)


@operations.add(
    "file.patch",
    "GET /context/conversations/{conversation_id}/patch",
    not_over_nats="`file.diff` contains the patch",
    response_class=Response,
    responses=DOWNLOADED,
)
async def download_patch(
    conversation_id: str, files: Service, caller: CallerDep, since: RunId = ""
) -> Response:
    """Download what has changed as a patch for `git apply`; it names the files that it does not contain."""
    workspace = await files.workspace(caller, conversation_id)
    diff = await workspace.diff(since=since, path="")
    return Response(diff.patch.encode(), headers=_download(f"{workspace.title or 'workspace'}.patch"))


@operations.add(
    "file.archive",
    "GET /context/conversations/{conversation_id}/archive",
    not_over_nats="`file.read` reads the files one by one",
    response_class=Response,
    responses=DOWNLOADED,
)
async def download_archive(conversation_id: str, files: Service, caller: CallerDep) -> StreamedResponse:
    """Download all files of the workspace as a zip file: at most 10,000 files of 512 MiB together."""
    workspace = await files.workspace(caller, conversation_id)
    return StreamedResponse(
        await workspace.archive(), headers=_download(f"{workspace.title or 'workspace'}.zip")
    )


@operations.add(
    "file.read",
    "GET /context/conversations/{conversation_id}/files/{path:path}",
    not_over_nats=IN_SLICES,
    response_class=Response,
    responses=DOWNLOADED,
)
async def download_file(
    conversation_id: str, path: FilePath, files: Service, caller: CallerDep
) -> StreamedResponse:
    """Download a file."""
    workspace = await files.workspace(caller, conversation_id)
    return StreamedResponse(await workspace.read(path), headers=_download(path))


@operations.add(
    "file.write",
    "PUT /context/conversations/{conversation_id}/files/{path:path}",
    status=201,
    not_over_nats=IN_SLICES,
    body=BodyLimit.FILE,
    openapi_extra={"requestBody": {"required": True, "content": BINARY}},
)
async def upload_file(
    conversation_id: str, path: FilePath, request: Request, files: Service, caller: CallerDep
) -> StoredFile:
    """Upload a file, replacing an existing file of the same path."""
    workspace = await files.workspace(caller, conversation_id)
    return StoredFile(path=path, size=await workspace.write(path, request.stream()))


class UnpackedArchive(RequestBody):
    """An archive that was uploaded: `.zip` or `.tar`, also compressed."""

    path: str = Field(max_length=255, pattern=r"^[^/\x00]+$")


@operations.add("file.unpack", "POST /context/conversations/{conversation_id}/unpack")
async def unpack_archive(
    conversation_id: str, body: StrictBody[UnpackedArchive], files: Service, caller: CallerDep
) -> None:
    """Let the workspace start from an uploaded archive, its only file, which is replaced by its content."""
    workspace = await files.workspace(caller, conversation_id)
    await workspace.request(body.path, FileUnpack(path=body.path))


@operations.add("file.delete", "DELETE /context/conversations/{conversation_id}/files/{path:path}")
async def delete_file(conversation_id: str, path: FilePath, files: Service, caller: CallerDep) -> None:
    """Delete a file."""
    workspace = await files.workspace(caller, conversation_id)
    await workspace.request(path, FileDelete(path=path))


@operations.add(
    "output.read",
    "GET /context/runs/{run_id}/tool-calls/{tool_call_id}/output",
    not_over_nats=IN_SLICES,
    response_class=Response,
    responses=DOWNLOADED,
)
async def read_output(run_id: str, tool_call_id: str, files: Service, caller: CallerDep) -> Response:
    """Download the complete output of a call whose result was truncated."""
    output = await files.output(caller, run_id, tool_call_id)
    return Response(output, headers=_download(f"{tool_call_id}.txt"))


def _download(path: str) -> dict[str, str]:
    # A model may have written an HTML page: a browser must not show it in our origin.
    name = quote(portable_path(path).rpartition("/")[2])
    return {
        "content-type": BYTES,
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "content-security-policy": "default-src 'none'; sandbox",
    }


process_operations = Operations("processes")


@process_operations.add("process.list", "GET /context/conversations/{conversation_id}/processes")
async def list_processes(conversation_id: str, files: Service, caller: CallerDep) -> Listing[ProcessInfo]:
    """List the processes of a conversation that run, and the last ones that ended."""
    workspace = await files.workspace(caller, conversation_id)
    return Listing[ProcessInfo](items=(await workspace.request("", ProcessList())).processes)


@process_operations.add("process.read", "GET /context/conversations/{conversation_id}/processes/{process_id}")
async def read_process(
    conversation_id: str, process_id: ProcessId, files: Service, caller: CallerDep, after: After = None
) -> ProcessOutput:
    """Read the output of a process after `after` bytes, or its last part."""
    workspace = await files.workspace(caller, conversation_id)
    reply = await workspace.request("", ProcessRead(process_id=process_id, after=after))
    if reply.output is None:
        raise NotFound("process", process_id)
    return reply.output


@process_operations.add(
    "process.stop", "POST /context/conversations/{conversation_id}/processes/{process_id}/stop"
)
async def stop_process(
    conversation_id: str, process_id: ProcessId, files: Service, caller: CallerDep
) -> ProcessInfo:
    """Stop a process with all that it has started; the model is notified with its next result."""
    workspace = await files.workspace(caller, conversation_id)
    reply = await workspace.request("", ProcessStop(process_id=process_id))
    if not reply.processes:
        raise NotFound("process", process_id)
    # It is still "running" if its end is not confirmed in time.
    return reply.processes[0]


SlicePath = Annotated[str, Field(max_length=MAX_PATH_CHARS)]
MAX_ENTRIES = 1_000
MAX_BASE64 = 4 * (SLICE_BYTES // 3 + 1)
WHOLE = "declared above for whole files"


class ListFiles(Wire):
    """Request a page of the files below a path, sorted by path."""

    path: SlicePath = ""
    after: SlicePath = ""
    """`next` of the previous page: the path of its last file."""
    limit: int = Field(default=MAX_ENTRIES, ge=1, le=MAX_ENTRIES)


class FilePage(Stored):
    """A page of the files of a workspace."""

    items: tuple[FileEntry, ...]
    next: str | None
    """`after` of the next page; null at the end."""


class ReadFile(Wire):
    """Request a slice of a file."""

    path: SlicePath
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

    path: SlicePath
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
async def list_file_page(
    conversation_id: str, request: ListFiles, files: Service, caller: CallerDep
) -> FilePage:
    """List the files below a path, sorted by path; a page may have fewer files than its limit."""
    workspace = await files.workspace(caller, conversation_id)
    page, more = await workspace.page(request.path, after=request.after, limit=request.limit)
    return FilePage(items=page, next=page[-1].path if more and page else None)


@operations.over_nats("file.read", "conversation_id", not_over_http=WHOLE)
async def read_slice(conversation_id: str, request: ReadFile, files: Service, caller: CallerDep) -> FileSlice:
    """Read a slice of a file."""
    workspace = await files.workspace(caller, conversation_id)
    reply = await workspace.slice(request.path, request.offset)
    return FileSlice(offset=request.offset, data_base64=reply.data_base64 or "", more=reply.more)


@operations.over_nats("file.write", "conversation_id", right=CHAT, not_over_http=WHOLE)
async def write_slice(
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
async def read_output_slice(run_id: str, request: ReadOutput, files: Service, caller: CallerDep) -> FileSlice:
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


async def build(base: Foundation) -> None:
    services, settings, bus = base.services, base.settings.gateway.outputs, base.bus
    if settings is not None:
        # The account of the runners stores the outputs.
        connection = await Bus(settings, name=GATEWAY_FILES, inbox_prefix=inbox_prefix(GATEWAY_FILES)).open()
        bus = await base.stack.enter_async_context(connection)
    outputs = Objects(bus, OUTPUTS)
    services.add(ConversationFiles(services[Placements], outputs, services[Conversations], services[Runs]))


FEATURE = Feature((*operations, *process_operations), build)
