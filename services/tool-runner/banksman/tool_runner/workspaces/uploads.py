"""Uploads of files into a workspace, slice by slice."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from banksman.contracts.errors import BadInput, Overloaded
from banksman.tool_runner.workspaces.quota import delete_tree

ABANDONED_S = 3600.0
"""Seconds after its last slice at which an upload counts as abandoned."""
MAX_UPLOADS = 64
"""Unfinished uploads at a time, over all workspaces."""
MAX_TENANT_UPLOADS = 16
"""Unfinished uploads of one tenant at a time."""


class Uploads:
    """Unfinished uploads in a directory that no sandbox sees.

    Each slice is written at its own offset, so a repeated slice does no harm. Uploads end with the process.
    """

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes

    def prepare(self) -> None:
        """Create the directory, or empty it.

        Raises:
            OSError: the directory cannot be created.
        """
        delete_tree(self._directory)
        self._directory.mkdir(mode=0o700)

    def add(self, tenant: str, upload: str, offset: int, data: bytes) -> int:
        """Write a slice and return the size of the upload so far, in bytes.

        Raises:
            BadInput: slices before this one are missing, or the file becomes too large.
            Overloaded: there are too many unfinished uploads.
            OSError: the slice cannot be written.
        """
        if offset + len(data) > self._max_bytes:
            raise BadInput("data_base64", None, f"a file of at most {self._max_bytes} bytes")
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
        """Return the whole content of an upload."""
        return self._path(tenant, upload).read_bytes()

    def drop(self, tenant: str, upload: str) -> None:
        """Remove an upload."""
        self._path(tenant, upload).unlink(missing_ok=True)

    def _path(self, tenant: str, upload: str) -> Path:
        return self._directory / f"{tenant}.{upload}"

    def _make_room(self, tenant: str) -> None:
        # Clients that disappear never send the last slice.
        oldest = time.time() - ABANDONED_S
        kept = own = 0
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
                else:
                    kept += 1
                    # The name begins with the tenant and a dot. A tenant is a token, which has no dot.
                    own += path.name.partition(".")[0] == tenant
        if own >= MAX_TENANT_UPLOADS:
            raise Overloaded(f"{own} uploads of this tenant are unfinished; wait until one ends")
        if kept >= MAX_UPLOADS:
            raise Overloaded(f"{kept} uploads are unfinished; wait until one ends")
