"""Names and links that a snapshot of a workspace may contain. Writing and reading apply the same rules."""

from __future__ import annotations

import posixpath

from banksman.tool_runner.workspaces.files import ALIAS

_VISIBLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", ALIAS)
"""Directories that every sandbox contains; a virtual environment links to its interpreter there."""
MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
MAX_PATHS_BYTES = 32 * 1024 * 1024
"""Maximum bytes of all paths of a snapshot: who writes or reads one keeps them in memory."""


def parts_of(path: str, max_depth: int) -> list[str] | None:
    """Return the components of a path below a workspace; None if the path is not valid."""
    if not path or "\0" in path or len(path.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        return None
    parts = path.split("/")
    for part in parts:
        if part in ("", ".", "..") or len(part.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES:
            return None
    return parts if len(parts) <= max_depth else None


def link_stays(path: str, target: str) -> bool:
    """Return whether a link at `path` points into the workspace or to a directory of every sandbox."""
    if not target or "\0" in target or len(target.encode("utf-8", "surrogateescape")) >= MAX_PATH_BYTES:
        return False
    if target.startswith("/"):
        normal = posixpath.normpath(target)
        return any(normal == root or normal.startswith(f"{root}/") for root in _VISIBLE)
    normal = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return normal != ".." and not normal.startswith("../")
