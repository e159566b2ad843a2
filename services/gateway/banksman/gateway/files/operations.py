"""Files of a conversation's workspace, complete outputs of tool calls, and processes that outlive calls."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Request, Response
from pydantic import AfterValidator, Field

from banksman.bus.connection import Bus
from banksman.bus.names import OUTPUTS
from banksman.bus.storage.objects import Objects
from banksman.contracts.paths import portable_path
from banksman.contracts.processes import ProcessInfo, ProcessOutput
from banksman.contracts.runner_requests import FileEntry, WorkspaceDiff
from banksman.deployment.users import GATEWAY_FILES, inbox_prefix
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.files.files import ConversationFiles, StoredFile, check_length
from banksman.gateway.files.slice_operations import operations as slice_operations
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
IN_SLICES = "a message has a limited size: `slice_operations` declares the same for slices"

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
    await workspace.unpack(body.path)


@operations.add("file.delete", "DELETE /context/conversations/{conversation_id}/files/{path:path}")
async def delete_file(conversation_id: str, path: FilePath, files: Service, caller: CallerDep) -> None:
    """Delete a file."""
    workspace = await files.workspace(caller, conversation_id)
    await workspace.delete(path)


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
    return Listing[ProcessInfo](items=await workspace.processes())


@process_operations.add("process.read", "GET /context/conversations/{conversation_id}/processes/{process_id}")
async def read_process(
    conversation_id: str, process_id: ProcessId, files: Service, caller: CallerDep, after: After = None
) -> ProcessOutput:
    """Read the output of a process after `after` bytes, or its last part."""
    workspace = await files.workspace(caller, conversation_id)
    return await workspace.process_output(process_id, after)


@process_operations.add(
    "process.stop", "POST /context/conversations/{conversation_id}/processes/{process_id}/stop"
)
async def stop_process(
    conversation_id: str, process_id: ProcessId, files: Service, caller: CallerDep
) -> ProcessInfo:
    """Stop a process with all that it has started; the model is notified with its next result."""
    workspace = await files.workspace(caller, conversation_id)
    return await workspace.stop_process(process_id)


async def build(base: Foundation) -> None:
    services, settings, bus = base.services, base.settings.gateway.outputs, base.bus
    if settings is not None:
        # The account of the runners stores the outputs.
        connection = await Bus(settings, name=GATEWAY_FILES, inbox_prefix=inbox_prefix(GATEWAY_FILES)).open()
        bus = await base.stack.enter_async_context(connection)
    outputs = Objects(bus, OUTPUTS)
    services.add(ConversationFiles(services[Placements], outputs, services[Conversations], services[Runs]))


FEATURE = Feature((*operations, *slice_operations, *process_operations), build)
