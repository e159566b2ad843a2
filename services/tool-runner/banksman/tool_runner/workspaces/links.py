"""Where the symbolic links of a workspace point to, by their text and through each other."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, field
from typing import Final

from banksman.tool_runner.workspaces.beneath import MAX_PATH_BYTES
from banksman.tool_runner.workspaces.files import ALIAS

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
"""Directories that every sandbox contains; a virtual environment links to its interpreter there."""
MAX_LINKS: Final = 40
"""The kernel follows no more links in one path (path_resolution(7))."""
MAX_STEPS: Final = 1_000_000
"""Components that are followed for all links of a workspace together; the text of a link may have 2,000."""


def link_stays(path: str, target: str) -> bool:
    """Return whether the text of a link at `path` points into the workspace or to a system directory."""
    if not target or "\0" in target or len(os.fsencode(target)) > MAX_PATH_BYTES:
        return False
    if target.startswith("/"):
        return _is_visible(target, (*_SYSTEM, ALIAS))
    normal = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return normal != ".." and not normal.startswith("../")


def _is_visible(path: str, roots: tuple[str, ...]) -> bool:
    normal = posixpath.normpath(path)
    return any(normal == root or normal.startswith(f"{root}/") for root in roots)


@dataclass
class Links:
    """The links of a workspace by path. A missing entry counts as a directory, which may exist later."""

    targets: dict[str, str] = field(default_factory=dict[str, str])
    steps_left: int = MAX_STEPS

    def stays(self, path: str) -> bool:
        """Return whether a link, followed as the kernel does, stays inside or ends in a system directory.

        Links that lead nowhere, such as circles, stay; those whose steps are not left count as leaving.
        """
        here, pending, links_left = "", path.split("/")[::-1], MAX_LINKS
        while pending:
            self.steps_left -= 1
            if self.steps_left < 0 or len(here) > MAX_PATH_BYTES:
                return False
            part = pending.pop()
            if part == ".." and not here:
                return False
            here = _stepped(here, part)
            if part in ("", ".", "..") or (target := self.targets.get(here)) is None:
                continue
            if not (links_left := links_left - 1):
                return True
            here = posixpath.dirname(here)
            if target.startswith("/"):
                here, inside = "", _inside(target)
                if inside is None:
                    return _is_visible("/".join((target, *pending[::-1])), _SYSTEM)
                target = inside
            pending.extend(target.split("/")[::-1])
        return True


def _stepped(here: str, part: str) -> str:
    match part:
        case "" | ".":
            return here
        case "..":
            return posixpath.dirname(here)
        case _:
            return f"{here}/{part}" if here else part


def _inside(target: str) -> str | None:
    """Return the path below the workspace of an absolute target; None for a target elsewhere."""
    top, _, below = target.lstrip("/").partition("/")
    return below if f"/{top}" == ALIAS else None
