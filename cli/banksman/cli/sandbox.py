"""Which sandbox this machine offers for tools."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

INSTALL_BUBBLEWRAP = "sudo apt-get install -y bubblewrap libseccomp2"
_ENGINE_TIMEOUT_S = 5
_PROBE_TIMEOUT_S = 10
_NOBODY = 65534
_SETTING = "BANKSMAN_TOOL_RUNNER__SANDBOX"


@dataclass(frozen=True, slots=True)
class SandboxChoice:
    """The sandbox for tools on this machine."""

    kind: Literal["bwrap", "docker", "none"]
    notice: str | None = None
    """Sentence for users when tools do not run in bubblewrap."""


def choose_sandbox() -> SandboxChoice:
    """Return the sandbox of the settings, else bubblewrap if it works, else Docker if an engine responds."""
    match os.environ.get(_SETTING):
        case "bwrap" | "docker" as kind:
            return SandboxChoice(kind)
        case _:
            problem = bwrap_problem() if sys.platform == "linux" else "bubblewrap needs Linux"
    if problem is None:
        return SandboxChoice("bwrap")
    if docker_usable():
        return SandboxChoice("docker", f"tools run in Docker containers: {problem}")
    if shutil.which("bwrap"):
        return SandboxChoice("bwrap")
    return SandboxChoice("none", f"tools are off: no sandbox on this machine; {remedy()}")


def bwrap_problem() -> str | None:
    """Run bubblewrap as the tool-runner does; return why it cannot create a sandbox, or None when it can."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "bubblewrap is not installed"
    command = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    # A tool-runner started as root spawns it as an unprivileged user, whom the kernel may refuse namespaces.
    user = _NOBODY if os.geteuid() == 0 else None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, cwd="/", user=user, group=user
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return done.stderr.strip() or f"bwrap ended with {done.returncode}" if done.returncode else None


def remedy() -> str:
    if sys.platform == "linux" or not _has_docker_sandbox():
        return f"on Linux, install one with: {INSTALL_BUBBLEWRAP}"
    return "start a Docker engine, and run `banksman up` again"


def docker_usable() -> bool:
    """Whether tools can run in containers: the runner supports them, and an engine responds."""
    if not _has_docker_sandbox() or shutil.which("docker") is None:
        return False
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=_ENGINE_TIMEOUT_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _has_docker_sandbox() -> bool:
    return importlib.util.find_spec("banksman.tool_runner.sandbox.docker") is not None
