"""Files of a conversation's workspace, and complete outputs of tool calls."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import Request, Response

from banksman.contracts.calls import FileEntry
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.operation.streaming import StreamedResponse
from banksman.gateway.service.bodies import StoredFile
from banksman.gateway.service.dependencies import CallerDep, ServiceDep
from banksman.gateway.service.routing import router

BYTES = "application/octet-stream"
BINARY: dict[str, Any] = {BYTES: {"schema": {"type": "string", "format": "binary"}}}
DOWNLOADED: dict[int | str, dict[str, Any]] = {200: {"content": BINARY}}

routes = router("files")


@routes.get("/context/conversations/{conversation_id}/files")
async def list_files(
    conversation_id: str, gateway: ServiceDep, caller: CallerDep, path: str = ""
) -> Listing[FileEntry]:
    """List the files below a path, at most 10,000."""
    await gateway.conversations.get(caller.tenant, conversation_id)
    return Listing[FileEntry](items=await gateway.files.list(caller.tenant, conversation_id, path))


@routes.get(
    "/context/conversations/{conversation_id}/archive",
    response_class=Response,
    responses=DOWNLOADED,
)
async def download_archive(conversation_id: str, gateway: ServiceDep, caller: CallerDep) -> StreamedResponse:
    """Download all files of the workspace as a zip file: at most 10,000 files of 512 MiB together."""
    record = await gateway.conversations.get(caller.tenant, conversation_id)
    pieces = await gateway.files.archive(caller.tenant, conversation_id)
    return StreamedResponse(pieces, headers=_download(f"{record.title or 'workspace'}.zip"))


@routes.get(
    "/context/conversations/{conversation_id}/files/{path:path}",
    response_class=Response,
    responses=DOWNLOADED,
)
async def download_file(
    conversation_id: str, path: str, gateway: ServiceDep, caller: CallerDep
) -> StreamedResponse:
    """Download a file."""
    await gateway.conversations.get(caller.tenant, conversation_id)
    pieces = await gateway.files.read(caller.tenant, conversation_id, path)
    return StreamedResponse(pieces, headers=_download(path))


@routes.put(
    "/context/conversations/{conversation_id}/files/{path:path}",
    status_code=201,
    openapi_extra={"requestBody": {"required": True, "content": BINARY}},
)
async def upload_file(
    conversation_id: str, path: str, request: Request, gateway: ServiceDep, caller: CallerDep
) -> StoredFile:
    """Upload a file, replacing an existing file of the same path."""
    await gateway.conversations.get(caller.tenant, conversation_id)
    size = await gateway.files.write(caller.tenant, conversation_id, path, request.stream())
    return StoredFile(path=path, size=size)


@routes.delete("/context/conversations/{conversation_id}/files/{path:path}", status_code=204)
async def delete_file(conversation_id: str, path: str, gateway: ServiceDep, caller: CallerDep) -> None:
    """Delete a file."""
    await gateway.conversations.get(caller.tenant, conversation_id)
    await gateway.files.delete(caller.tenant, conversation_id, path)


@routes.get(
    "/context/runs/{run_id}/tool-calls/{tool_call_id}/output",
    response_class=Response,
    responses=DOWNLOADED,
)
async def read_output(run_id: str, tool_call_id: str, gateway: ServiceDep, caller: CallerDep) -> Response:
    """Download the complete output of a call whose result was truncated."""
    result = await gateway.runs.result(caller.tenant, run_id, tool_call_id)
    return Response(await gateway.files.output(result), headers=_download(f"{tool_call_id}.txt"))


def _download(path: str) -> dict[str, str]:
    # A model may have written an HTML page: a browser must not show it in our origin.
    name = quote(path.rpartition("/")[2])
    return {
        "content-type": BYTES,
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "content-security-policy": "default-src 'none'; sandbox",
    }
