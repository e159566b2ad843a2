"""Where the engine's host has what the runner has: its workspaces, and the image that it runs from itself."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from banksman.contracts.wire import JsonObject
from banksman.tool_runner.sandbox.base import SandboxUnavailable
from banksman.tool_runner.sandbox.docker_engine import Engine

_OWN_FILES = re.compile(r"/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf)\b")
"""What an engine mounts into each container, in `/proc/self/mountinfo`."""


@dataclass(frozen=True, slots=True)
class Place:
    """One directory, as the runner and as the engine's host name it."""

    here: Path
    there: Path

    def of(self, directory: Path) -> Path:
        """What the engine's host calls a directory below `here`."""
        return self.there / directory.resolve().relative_to(self.here)


def find_place(root: Path, host_dir: Path | None, own: JsonObject | None) -> Place:
    """Where the engine's host has `root`.

    `host_dir` is where a setting says that it is, `own` what the engine says of the runner's own container;
    with neither it is the same path.

    Raises:
        SandboxUnavailable: when `root` lies in the runner's container itself, where no other one can see it.
    """
    here = root.resolve()
    if host_dir is not None:
        return Place(here, host_dir)
    if own is None:
        return Place(here, here)
    mounts = cast(list[dict[str, str]], own.get("Mounts") or [])
    holding = [mount for mount in mounts if here.is_relative_to(mount["Destination"])]
    if not holding:
        raise SandboxUnavailable(
            f"the workspaces in {here} are not on a volume of the runner's container",
            remedy="Mount a volume or a directory of the host there.",
        )
    mount = max(holding, key=lambda mount: len(mount["Destination"]))
    return Place(here, Path(mount["Source"]) / here.relative_to(mount["Destination"]))


def own_container(engine: Engine) -> JsonObject | None:
    """What the engine says of the container that this process runs in; None when it runs in none of its.

    Raises:
        SandboxUnavailable: when the engine does not answer.
    """
    with contextlib.suppress(OSError):
        found = _OWN_FILES.search(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
        return engine.container(found[1]) if found else None
    return None
