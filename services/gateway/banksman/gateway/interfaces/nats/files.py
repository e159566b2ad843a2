"""Files of a conversation's workspace, and complete outputs of tool calls, in slices."""

from __future__ import annotations

import base64
import binascii

from banksman.bus.control import Received
from banksman.contracts.errors import BadInput, ErrorCode
from banksman.contracts.ids import new_id
from banksman.gateway.files.files import SLICE_BYTES
from banksman.gateway.interfaces.nats.endpoints import ApiEndpoints, Deleted, named_by, tenant_of
from banksman.gateway.interfaces.nats.messages import (
    DeleteFile,
    FilePage,
    FileSlice,
    ListFiles,
    ReadFile,
    ReadOutput,
    WriteFile,
)
from banksman.gateway.service.bodies import StoredFile
from banksman.gateway.service.gateway import Gateway

MISSING = ErrorCode.NOT_FOUND


def add_files(api: ApiEndpoints, gateway: Gateway) -> None:
    """Serve files."""

    @api.serve("file", "list", "{conversation_id}", errors=(MISSING,))
    async def list_files(request: ListFiles, message: Received) -> FilePage:
        """List the files below a path, sorted by path; a page may have fewer files than its limit."""
        tenant, conversation_id = await _workspace(gateway, message)
        page, more = await gateway.files.page(
            tenant, conversation_id, request.path, after=request.after, limit=request.limit
        )
        return FilePage(items=page, next=page[-1].path if more and page else None)

    @api.serve("file", "read", "{conversation_id}", errors=(MISSING,))
    async def read_file(request: ReadFile, message: Received) -> FileSlice:
        """Read a slice of a file."""
        tenant, conversation_id = await _workspace(gateway, message)
        reply = await gateway.files.slice(tenant, conversation_id, request.path, request.offset)
        return FileSlice(offset=request.offset, data_base64=reply.data_base64 or "", more=reply.more)

    @api.serve("file", "write", "{conversation_id}", errors=(MISSING,))
    async def write_file(request: WriteFile, message: Received) -> StoredFile:
        """Store a file or one slice of it, replacing an existing file of the same path."""
        tenant, conversation_id = await _workspace(gateway, message)
        data = _decoded(request.data_base64)
        if request.upload is None and (request.offset or not request.last):
            raise BadInput("upload", None, "the id that all slices of the file have")
        await gateway.files.put_slice(
            tenant,
            conversation_id,
            request.path,
            request.upload or new_id("u"),
            request.offset,
            data,
            last=request.last,
        )
        return StoredFile(path=request.path, size=request.offset + len(data))

    @api.serve("file", "delete", "{conversation_id}", errors=(MISSING,))
    async def delete_file(request: DeleteFile, message: Received) -> Deleted:
        """Delete a file."""
        tenant, conversation_id = await _workspace(gateway, message)
        await gateway.files.delete(tenant, conversation_id, request.path)
        return Deleted(id=request.path)

    @api.serve("output", "read", "{run_id}", errors=(MISSING,))
    async def read_output(request: ReadOutput, message: Received) -> FileSlice:
        """Read a slice of the complete output of a call whose result was truncated."""
        result = await gateway.runs.result(tenant_of(message), named_by(message), request.tool_call_id)
        whole = await gateway.files.output(result)
        end = request.offset + SLICE_BYTES
        data = base64.b64encode(whole[request.offset : end]).decode()
        return FileSlice(offset=request.offset, data_base64=data, more=end < len(whole))


async def _workspace(gateway: Gateway, message: Received) -> tuple[str, str]:
    """Return the tenant of a request, and the conversation whose workspace it names.

    Raises:
        NotFound: This tenant has no such conversation.
    """
    tenant, conversation_id = tenant_of(message), named_by(message)
    await gateway.conversations.get(tenant, conversation_id)
    return tenant, conversation_id


def _decoded(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise BadInput("data_base64", text, "base64") from error
    if len(data) > SLICE_BYTES:
        raise BadInput("data_base64", None, f"at most {SLICE_BYTES} bytes; send the file in slices")
    return data
