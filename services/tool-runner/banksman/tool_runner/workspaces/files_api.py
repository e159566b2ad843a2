"""File requests of clients, and their uploads. They pass the same path checks as the file tools."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, assert_never

from banksman.contracts.errors import BadInput, BanksmanError, ErrorCode, Overloaded, TooLarge, Unavailable
from banksman.contracts.runner_requests import (
    DiscoverSignIn,
    FileDelete,
    FileDiff,
    FileList,
    FileRead,
    FileReply,
    FileRequest,
    FileUnpack,
    FileWrite,
    FindMcpTools,
    GetMcpPrompt,
    ProcessRequest,
    RequestToken,
    UploadEnd,
    WorkspaceDiff,
)
from banksman.contracts.workspaces import WorkspaceForget
from banksman.quotas.places import Shares
from banksman.runs.runners.lease import Lease
from banksman.tool_runner.processes.processes import ProcessRequests
from banksman.tool_runner.tools.converter import ConversionFailed
from banksman.tool_runner.tools.diffs import Diffs
from banksman.tool_runner.tools.images import Images
from banksman.tool_runner.workspaces import files
from banksman.tool_runner.workspaces.entry import SnapshotLost, WorkspaceMoved
from banksman.tool_runner.workspaces.files import PathRefused, has_reason, relative
from banksman.tool_runner.workspaces.quota import delete_tree
from banksman.tool_runner.workspaces.registry import WorkspaceRegistry
from banksman.tool_runner.workspaces.scheduler import SnapshotScheduler
from banksman.tool_runner.workspaces.workspace import Workspace, WorkspaceStore

_OneFile = FileList | FileRead | FileWrite | FileDelete | UploadEnd
WorkspaceRequest = _OneFile | FileUnpack | FileDiff | FindMcpTools | GetMcpPrompt | ProcessRequest
ABANDONED_S = 180.0
"""Seconds after its last slice at which an upload is removed. A gateway ends one whose client has gone."""
MAX_UPLOADS = 64
"""Unfinished uploads at a time, over all workspaces, of which a tenant may have three quarters."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class HandlesMcpRequests(Protocol):
    async def read(
        self, tenant: str, conversation_id: str, request: FindMcpTools | GetMcpPrompt
    ) -> FileReply:
        """Reply to a request whose workspace is prepared."""
        ...

    async def sign_in(self, request: DiscoverSignIn | RequestToken) -> FileReply:
        """Reply to a request that uses no workspace."""
        ...


@dataclass(frozen=True, slots=True)
class FilesApi:
    """Replies to file requests. They take no turn: each reads or replaces one file atomically."""

    workspaces: WorkspaceStore
    uploads: Uploads
    registry: WorkspaceRegistry
    scheduler: SnapshotScheduler
    lease: Lease
    diffs: Diffs
    mcp: HandlesMcpRequests | None = None
    images: Images | None = None
    processes: ProcessRequests | None = None

    async def respond(self, request: FileRequest, subject: str) -> FileReply:
        """Reply to `file.{r}.{t}.{c}`; every failure is a reply with `error`."""
        *_, tenant, conversation_id = subject.split(".")
        try:
            if not self.lease.holds:
                raise Unavailable("this runner does not hold its lease now")
            if isinstance(request, WorkspaceForget):
                await self.scheduler.forget(tenant, conversation_id, request.snapshot)
                reply = FileReply()
            elif isinstance(request, DiscoverSignIn | RequestToken):
                reply = await self._mcp_handler().sign_in(request)
            else:
                reply = await self._reply_if_placed(tenant, conversation_id, request)
        except WorkspaceMoved:
            reply = FileReply(moved=True)
        except (BanksmanError, PathRefused, SnapshotLost) as error:
            reply = FileReply(error=str(error), code=_code(error))
        except OSError as error:
            reply = FileReply(error=f"the workspace cannot be used: {error.strerror}", code=_code(error))
        return reply

    async def _reply_if_placed(
        self, tenant: str, conversation_id: str, request: WorkspaceRequest
    ) -> FileReply:
        place, changes = request.place, not isinstance(request, FileList | FileRead | FileDiff)
        if not self.registry.admits(tenant, conversation_id, place):
            return FileReply(moved=True)
        if isinstance(request, ProcessRequest):
            # It does not enter the workspace: to look at processes must not prevent their idle end.
            if self.processes is None:
                return FileReply()
            return await self.processes.reply((tenant, conversation_id), request)
        if isinstance(request, FileList | FileDiff) and self.registry.is_empty(
            tenant, conversation_id, place
        ):
            return FileReply(diff=WorkspaceDiff() if isinstance(request, FileDiff) else None)
        entry = self.registry.enter(tenant, conversation_id)
        try:
            await self.registry.prepare(entry, place, changes=changes, has_turn=False)
            if isinstance(request, FindMcpTools | GetMcpPrompt):
                return await self._mcp_handler().read(tenant, conversation_id, request)
            if isinstance(request, FileUnpack):
                await self.registry.unpack(entry, request.path)
                return FileReply()
            if isinstance(request, FileDiff):
                workspace = self.workspaces.get(tenant, conversation_id)
                return FileReply(diff=await self.diffs.diff(workspace, request))
            if isinstance(request, FileWrite) and request.last:
                await self.workspaces.get(tenant, conversation_id).meter.before_write()
            if isinstance(request, FileWrite):
                asyncio.get_running_loop().call_later(ABANDONED_S + 1, self.uploads.remove_abandoned)
            if isinstance(request, FileRead) and request.image:
                return await self._image(self.workspaces.get(tenant, conversation_id), request.path)
            return await asyncio.to_thread(self._handle, tenant, conversation_id, request)
        finally:
            self.registry.leave(entry)

    def _mcp_handler(self) -> HandlesMcpRequests:
        if self.mcp is None:
            raise Unavailable("the sandbox of this runner does not isolate programs")
        return self.mcp

    async def _image(self, workspace: Workspace, path: str) -> FileReply:
        if self.images is None:
            raise Unavailable("the sandbox of this runner does not isolate conversions")
        try:
            data = (await self.images.shown(workspace, path)).data
        except ConversionFailed as failed:
            return FileReply(error=f"this image could not be read: {failed}")
        return FileReply(data_base64=base64.b64encode(data).decode(), total_bytes=len(data))

    def _handle(self, tenant: str, conversation_id: str, request: _OneFile) -> FileReply:
        workspace = self.workspaces.get(tenant, conversation_id)
        match request:
            case FileList():
                return files.listing(
                    workspace.directory, below=request.path, after=request.after, max_entries=request.limit
                )
            case FileRead():
                return _read(workspace, request)
            case FileWrite():
                return self._written(workspace, request)
            case UploadEnd():
                self.uploads.drop(tenant, f"{conversation_id}.{request.upload}")
                return FileReply()
            case FileDelete():
                files.delete(workspace.directory, request.path)
                workspace.record(relative(request.path), "deleted")
                return FileReply()
            case _:
                assert_never(request)

    def _written(self, workspace: Workspace, request: FileWrite) -> FileReply:
        relative(request.path)
        tenant, upload = workspace.tenant, f"{workspace.conversation}.{request.upload}"
        try:
            size = self.uploads.add(tenant, upload, request.offset, _decoded(request.data_base64))
        except OSError:
            self.uploads.drop(tenant, upload)
            raise
        if request.last:
            try:
                if excess := workspace.meter.excess():
                    raise PathRefused(request.path, f"nothing was written: {excess}; delete files first")
                content = self.uploads.content(tenant, upload)
                created = files.write_whole(workspace.directory, request.path, content, workspace.identity)
                workspace.record(relative(request.path), "created" if created else "modified")
            finally:
                self.uploads.drop(tenant, upload)
        return FileReply(total_bytes=size)


def _code(error: Exception) -> str | None:
    """Return the code of an error that is not the path's; None for one that is."""
    if isinstance(error, BanksmanError):
        return error.code
    cause = error.__cause__ if isinstance(error, PathRefused) else error
    if isinstance(cause, OSError) and cause.errno in _FULL:
        return ErrorCode.STORAGE_FULL
    known = isinstance(error, PathRefused) and (cause is None or has_reason(cause))
    return None if known else ErrorCode.UNAVAILABLE


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


@dataclass(frozen=True, slots=True)
class Uploads:
    """Unfinished uploads in a directory that no sandbox sees.

    Each slice is written at its own offset, so a repeated slice does no harm. Uploads end with the process.
    """

    directory: Path
    max_bytes: int

    def prepare(self) -> None:
        delete_tree(self.directory)
        self.directory.mkdir(mode=0o700)

    def add(self, tenant: str, upload: str, offset: int, data: bytes) -> int:
        """Write a slice and return the size of the upload so far, in bytes.

        Raises:
            BadInput: slices before this one are missing.
            TooLarge: the file has more than `max_bytes`.
            Overloaded: there are too many unfinished uploads.
        """
        if offset + len(data) > self.max_bytes:
            raise TooLarge(f"the file has more than {self.max_bytes} bytes, the limit of this runner")
        path = self._path(tenant, upload)
        if not path.exists():
            self._make_room(tenant)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            if offset > size:
                raise BadInput("offset", offset, f"at most {size}, the bytes of upload {upload} so far")
            os.pwrite(fd, data, offset)
            return max(size, offset + len(data))
        finally:
            os.close(fd)

    def content(self, tenant: str, upload: str) -> bytes:
        return self._path(tenant, upload).read_bytes()

    def drop(self, tenant: str, upload: str) -> None:
        self._path(tenant, upload).unlink(missing_ok=True)

    def _path(self, tenant: str, upload: str) -> Path:
        return self.directory / f"{tenant}.{upload}"

    def remove_abandoned(self) -> None:
        """Remove the uploads of gateways that were killed, and of clients of NATS that have gone."""
        oldest = time.time() - ABANDONED_S
        for path in self.directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    def _make_room(self, tenant: str) -> None:
        self.remove_abandoned()
        # A name begins with the tenant and a dot. A tenant is a token, which has no dot.
        owners = [path.name.partition(".")[0] for path in self.directory.iterdir()]
        shares = Shares(MAX_UPLOADS)
        for owner in owners:
            shares.take(owner)
        if not shares.allows(tenant):
            raise Overloaded(f"{len(owners)} uploads are unfinished, {owners.count(tenant)} of this tenant")
