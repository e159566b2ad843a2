"""What people do with the files of a workspace, through the same guard as the tools."""

from __future__ import annotations

import asyncio
import base64
import binascii
import posixpath
from collections.abc import Callable
from typing import assert_never

from pydantic import TypeAdapter

from banksman.bus.messages import Message
from banksman.contracts.calls import (
    FileDelete,
    FileEntry,
    FileList,
    FileRead,
    FileReply,
    FileRequest,
    FileWrite,
)
from banksman.contracts.errors import BadInput, BanksmanError, Unavailable
from banksman.contracts.wire import parse_as
from banksman.contracts.workspaces import WorkspaceForget
from banksman.tool_runner.workspaces import files
from banksman.tool_runner.workspaces.files import PathRefused, relative
from banksman.tool_runner.workspaces.registry import CopyLost, Moved, WorkspaceRegistry
from banksman.tool_runner.workspaces.scheduler import SnapshotScheduler
from banksman.tool_runner.workspaces.uploads import Uploads
from banksman.tool_runner.workspaces.workspace import Workspace, WorkspaceStore

MAX_LISTED = 100_000
"""Files of a workspace that are looked at for a list."""

OnFiles = FileList | FileRead | FileWrite | FileDelete

_REQUEST: TypeAdapter[FileRequest] = TypeAdapter(FileRequest)


class FilesApi:
    """Answers file requests. They take no turn: each reads or replaces one file in one step."""

    def __init__(
        self,
        workspaces: WorkspaceStore,
        uploads: Uploads,
        holdings: WorkspaceRegistry,
        keeper: SnapshotScheduler,
        *,
        holds: Callable[[], bool],
    ) -> None:
        self._workspaces = workspaces
        self._uploads = uploads
        self._holdings = holdings
        self._keeper = keeper
        self._holds = holds

    async def respond(self, message: Message) -> bytes:
        """Answer `file.{r}.{t}.{c}`; every failure is an answer with `error`."""
        *_, tenant, conversation_id = message.subject.split(".")
        try:
            request: FileRequest = parse_as(_REQUEST, message.data)
            if not self._holds():
                raise Unavailable("this runner does not hold its lease now")
            if isinstance(request, WorkspaceForget):
                await self._keeper.forget(tenant, conversation_id, request.snapshot)
                answer = FileReply()
            else:
                answer = await self._placed(tenant, conversation_id, request)
        except Moved:
            answer = FileReply(moved=True)
        except (BanksmanError, PathRefused, CopyLost) as error:
            answer = FileReply(error=str(error))
        except OSError as error:
            answer = FileReply(error=f"the workspace cannot be used: {error.strerror}")
        return answer.model_dump_json().encode()

    async def _placed(self, tenant: str, conversation_id: str, request: OnFiles) -> FileReply:
        """Answer with the workspace as it was placed."""
        place, changes = request.place, not isinstance(request, FileList | FileRead)
        if not self._holdings.admits(tenant, conversation_id, place):
            return FileReply(moved=True)
        if isinstance(request, FileList) and self._holdings.is_empty(tenant, conversation_id, place):
            return FileReply()
        holding = self._holdings.enter(tenant, conversation_id)
        try:
            await self._holdings.ready(holding, place, changes=changes)
            await self._measure(tenant, conversation_id, request)
            return await asyncio.to_thread(self._answer, tenant, conversation_id, request)
        finally:
            self._holdings.leave(holding)

    async def _measure(self, tenant: str, conversation_id: str, request: OnFiles) -> None:
        """Learn how full a workspace is before something is put into it."""
        if isinstance(request, FileWrite) and request.last:
            workspace = self._workspaces.get(tenant, conversation_id)
            if workspace.meter.due:
                await workspace.meter.renew()

    def _answer(self, tenant: str, conversation_id: str, request: OnFiles) -> FileReply:
        workspace = self._workspaces.get(tenant, conversation_id)
        match request:
            case FileList():
                return _listed(workspace, request)
            case FileRead():
                return _read(workspace, request)
            case FileWrite():
                return self._written(workspace, request)
            case FileDelete():
                files.delete(workspace.directory, request.path)
                return FileReply()
            case _:
                assert_never(request)

    def _written(self, workspace: Workspace, request: FileWrite) -> FileReply:
        relative(request.path)
        upload = f"{workspace.tenant}.{workspace.conversation}.{request.upload}"
        size = self._uploads.add(upload, request.offset, _decoded(request.data_base64))
        if request.last:
            try:
                if excess := workspace.meter.excess():
                    raise PathRefused(request.path, f"nothing was written: {excess}; delete files first")
                content = self._uploads.content(upload)
                files.write_whole(workspace.directory, request.path, content, workspace.identity)
            finally:
                self._uploads.drop(upload)
        return FileReply(total_bytes=size)


def _listed(workspace: Workspace, request: FileList) -> FileReply:
    found = files.listing(workspace.directory, max_entries=MAX_LISTED)
    below = posixpath.normpath(relative(request.path)) if request.path else "."
    chosen = [entry for entry in found if below == "." or _is_below(entry.path, below)]
    items = tuple(
        FileEntry(path=entry.path, size=entry.size_bytes, modified_at=entry.modified)
        for entry in chosen[: request.limit]
    )
    return FileReply(items=items, more=len(chosen) > request.limit or len(found) >= MAX_LISTED)


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def _read(workspace: Workspace, request: FileRead) -> FileReply:
    part = files.read_part(
        workspace.directory, request.path, offset=request.offset, max_bytes=request.max_bytes
    )
    return FileReply(
        data_base64=base64.b64encode(part.data).decode(),
        total_bytes=part.total_bytes,
        more=request.offset + len(part.data) < part.total_bytes,
    )


def _decoded(data_base64: str) -> bytes:
    try:
        return base64.b64decode(data_base64, validate=True)
    except binascii.Error as error:
        raise BadInput("data_base64", None, "base64 with padding") from error
