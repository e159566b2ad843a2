"""What this machine offers to a system: free TCP ports and a sandbox for tools."""

from __future__ import annotations

import errno
import importlib.util
import os
import random
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from banksman.contracts.errors import BadInput

_MIN_PORT = 10_100
"""Above 10080, at which browsers open no page: https://fetch.spec.whatwg.org/#port-blocking"""
_CHOICE = 1_000
_DEFAULT_FIRST_OUTGOING = 32_768
_RANDOM = random.SystemRandom()
_given: set[int] = set()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free TCP port that this process has not returned before.

    The port lies below the range that the kernel uses for outgoing connections. A port from that range (as
    binding to port 0 returns) could be taken while the process that listens on it restarts.
    """
    while True:
        port = _RANDOM.randrange(_MIN_PORT, _first_outgoing())
        if port not in _given and bind_error(host, port) is None:
            _given.add(port)
            return port


def require_free(host: str, port: int, variable: str) -> None:
    """Raise `BadInput` if another program listens on a port, or this user may not listen on it."""
    # Servers set SO_REUSEADDR too: a port with connections in TIME_WAIT is free for them.
    if error := bind_error(host, port, reuse=True):
        raise BadInput(variable, port, _expected(error)) from error


def bind_error(host: str, port: int, *, reuse: bool = False) -> OSError | None:
    """Return the error of binding to an address, or None if it is free.

    With `reuse`, ports with connections in TIME_WAIT count as free.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
        return None


def _first_outgoing() -> int:
    """Return the first port that the kernel uses for outgoing connections; its default if it uses all."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return _DEFAULT_FIRST_OUTGOING
    return first if first > _MIN_PORT + _CHOICE else _DEFAULT_FIRST_OUTGOING


def _expected(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "a free port; another program listens there: stop it, or choose another port"
        case errno.EACCES:
            return "a port that this user may use, 1024 or higher"
        case _:
            return f"an address of this machine ({error.strerror})"


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
