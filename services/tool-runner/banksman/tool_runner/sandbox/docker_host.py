"""Maps the runner's directories and image to the directories and images of the engine's host."""

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
"""Files that an engine mounts into each container, as `/proc/self/mountinfo` lists them."""


@dataclass(frozen=True, slots=True)
class HostDirectory:
    """One directory by its path for the runner and its path on the engine's host."""

    path: Path
    host_path: Path

    def of(self, directory: Path) -> Path:
        """Return the path on the engine's host of a directory below `path`."""
        return self.host_path / directory.resolve().relative_to(self.path)


def find_host_directory(root: Path, host_dir: Path | None, own: JsonObject | None) -> HostDirectory:
    """Return the location of `root` on the engine's host.

    Args:
        root: The directory of the workspaces.
        host_dir: Its path on the host by the settings; None if not set.
        own: The engine's description of the runner's own container; None if the runner runs in none. With
            neither, the path on the host is the same.

    Raises:
        SandboxUnavailable: `root` is not on a volume of the runner's container, so no other container can
            mount it.
    """
    path = root.resolve()
    if host_dir is not None:
        return HostDirectory(path, host_dir)
    if own is None:
        return HostDirectory(path, path)
    mounts = cast(list[dict[str, str]], own.get("Mounts") or [])
    holding = [mount for mount in mounts if path.is_relative_to(mount["Destination"])]
    if not holding:
        raise SandboxUnavailable(
            f"the workspaces in {path} are not on a volume of the runner's container",
            remedy="Mount a volume or a directory of the host there.",
        )
    mount = max(holding, key=lambda mount: len(mount["Destination"]))
    return HostDirectory(path, Path(mount["Source"]) / path.relative_to(mount["Destination"]))


def own_container(engine: Engine) -> JsonObject | None:
    """Inspect the container that this process runs in; None if the engine runs no such container.

    Raises:
        SandboxUnavailable: the engine does not respond.
    """
    with contextlib.suppress(OSError):
        found = _OWN_FILES.search(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
        return engine.container(found[1]) if found else None
    return None
