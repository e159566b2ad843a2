"""Files of a conversation's workspace, and whole outputs of tool calls."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response

from banksman.gateway.asgi.streaming import Stream
from banksman.gateway.http.answers import json_response
from banksman.gateway.http.requests import context_caller
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.gateway import Gateway

BYTES = "application/octet-stream"
RAW_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}
}


def files_router(gateway: Gateway) -> APIRouter:
    """The routes of files and outputs."""
    router = APIRouter(tags=["files"])
    who: Any = Depends(context_caller(gateway.keys))
    files, conversations = gateway.files, gateway.service.conversations

    @router.get("/context/conversations/{conversation_id}/files")
    async def list_files(conversation_id: str, path: str = "", caller: Caller = who) -> Response:
        await conversations.get(caller.tenant, conversation_id)
        found = await files.list(caller.tenant, conversation_id, path)
        return json_response({"items": [entry.model_dump(mode="json") for entry in found], "next": None})

    @router.get("/context/conversations/{conversation_id}/files/{path:path}")
    async def download_file(conversation_id: str, path: str, caller: Caller = who) -> Response:
        await conversations.get(caller.tenant, conversation_id)
        return Stream(await files.read(caller.tenant, conversation_id, path), headers=_download(path))

    @router.put(
        "/context/conversations/{conversation_id}/files/{path:path}",
        status_code=201,
        openapi_extra=RAW_BODY,
    )
    async def upload_file(
        conversation_id: str, path: str, request: Request, caller: Caller = who
    ) -> Response:
        await conversations.get(caller.tenant, conversation_id)
        size = await files.write(caller.tenant, conversation_id, path, request.stream())
        return json_response({"path": path, "size": size}, 201)

    @router.delete("/context/conversations/{conversation_id}/files/{path:path}", status_code=204)
    async def delete_file(conversation_id: str, path: str, caller: Caller = who) -> Response:
        await conversations.get(caller.tenant, conversation_id)
        await files.delete(caller.tenant, conversation_id, path)
        return Response(status_code=204)

    @router.get("/context/runs/{run_id}/tool-calls/{tool_call_id}/output")
    async def read_output(run_id: str, tool_call_id: str, caller: Caller = who) -> Response:
        """The whole output of a call whose result was cut."""
        result = await gateway.runs.result(caller.tenant, run_id, tool_call_id)
        return Response(await files.output(result), headers=_download(f"{tool_call_id}.txt"))

    return router


def _download(path: str) -> dict[str, str]:
    # Never shown by a browser in our origin: what a model wrote may be a page.
    name = quote(path.rpartition("/")[2])
    return {
        "content-type": BYTES,
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "content-security-policy": "default-src 'none'; sandbox",
    }
