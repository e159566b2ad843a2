"""Whether this machine can run tools, and with which sandbox."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

INSTALL_BUBBLEWRAP = "sudo apt-get install -y bubblewrap libseccomp2"
_ENGINE_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class SandboxChoice:
    """How tools run here."""

    kind: Literal["bwrap", "docker", "none"]
    notice: str | None = None
    """What people should know, when tools do not run the usual way."""


def choose_sandbox() -> SandboxChoice:
    """Bubblewrap where there is one, else Docker where an engine answers, else none."""
    if sys.platform == "linux" and shutil.which("bwrap"):
        return SandboxChoice("bwrap")
    if docker_usable():
        return SandboxChoice("docker", "tools run in Docker containers: bubblewrap is not installed")
    return SandboxChoice("none", f"tools are off: no sandbox on this machine; {remedy()}")


def remedy() -> str:
    """What to do where there is no sandbox."""
    if sys.platform == "linux" or not _has_docker_sandbox():
        return f"on Linux, install one with: {INSTALL_BUBBLEWRAP}"
    return "start a Docker engine, and run `banksman up` again"


def docker_usable() -> bool:
    """Whether tools can run in containers: the runner knows how, and an engine answers."""
    if not _has_docker_sandbox() or shutil.which("docker") is None:
        return False
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=_ENGINE_TIMEOUT_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _has_docker_sandbox() -> bool:
    return importlib.util.find_spec("banksman.tool_runner.sandbox.docker") is not None
