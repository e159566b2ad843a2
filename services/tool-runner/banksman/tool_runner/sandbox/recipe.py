from __future__ import annotations

import functools
import math
import os
from pathlib import Path

from banksman.tool_runner.limits import SandboxLimits
from banksman.tool_runner.sandbox.base import SandboxCommand
from banksman.tool_runner.sandbox.spawner_process import GATE_FD, PROXY_PORT

WORKSPACE = "/workspace"
INNER_ID = "1000"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": "/home",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",  # noqa: S108 - the sandbox's own tmpfs
}
_PROXY_URL = f"http://127.0.0.1:{PROXY_PORT}"
# curl reads only the lower-case http_proxy: https://curl.se/docs/manpage.html#ENVIRONMENT
_PROXY = tuple((name, _PROXY_URL) for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"))
_CERTIFICATES = ("--ro-bind-try", "/etc/ssl/certs", "/etc/ssl/certs")
_GATE = ("BASH_ENV", f"/dev/fd/{GATE_FD}")
_ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def bwrap_options(
    command: SandboxCommand, limits: SandboxLimits, *, seccomp_fd: int, status_fd: int
) -> list[str]:
    """The options of one bwrap call, as they are written to `--args`."""
    environment = (*ENVIRONMENT.items(), *(_PROXY if command.on_listener else ()), _GATE)
    return [
        *_NAMESPACES,
        # With a way out bwrap is started in a network namespace that the spawner has made.
        *(_CERTIFICATES if command.on_listener else ("--unshare-net",)),
        *_file_system(command.workspace, limits),
        "--clearenv",
        *(word for name, value in environment for word in ("--setenv", name, value)),
        "--seccomp",
        str(seccomp_fd),
        "--json-status-fd",
        str(status_fd),
    ]


def inner_command(command: SandboxCommand, limits: SandboxLimits) -> list[str]:
    """What bwrap starts: bash under the limits of one call.

    The limits are set inside: RLIMIT_NPROC set before the user namespace exists would count all calls of the
    sandbox user together.
    """
    cpu_s = max(limits.cpu_s, math.ceil(command.timeout_s))
    return [
        "prlimit",
        f"--nproc={limits.max_processes}",
        f"--data={limits.data_bytes}",
        f"--fsize={limits.file_size_bytes}",
        f"--cpu={cpu_s}",
        f"--nofile={limits.max_open_files}",
        "--core=0",
        "--",
        "bash",
        "--noprofile",
        "--norc",
        "-c",
        command.script,
    ]


# --disable-userns is refused with --unshare-all, hence the list.
_NAMESPACES = (
    "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts",
    "--unshare-cgroup-try", "--disable-userns", "--uid", INNER_ID, "--gid", INNER_ID,
    "--hostname", "sandbox", "--new-session", "--die-with-parent", "--cap-drop", "ALL",
)  # fmt: skip


def _file_system(workspace: Path, limits: SandboxLimits) -> list[str]:
    return [
        "--ro-bind", "/usr", "/usr",
        *_root_directories(),
        "--ro-bind-try", "/etc/alternatives", "/etc/alternatives",
        "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache",
        "--dev", "/dev",
        *_tmpfs("/dev/shm", limits.shm_bytes),  # noqa: S108 - inside the sandbox
        # bwrap's /dev is a tmpfs without a size; the devices in it stay usable on a read-only mount.
        "--remount-ro", "/dev",
        "--proc", "/proc",
        *_tmpfs("/tmp", limits.tmp_bytes),  # noqa: S108 - inside the sandbox
        *_tmpfs("/home", limits.home_bytes),
        "--bind", str(workspace), WORKSPACE,
        "--chdir", WORKSPACE,
        "--remount-ro", "/",
    ]  # fmt: skip


def _tmpfs(path: str, size_bytes: int) -> tuple[str, ...]:
    return ("--perms", "1777", "--size", str(size_bytes), "--tmpfs", path)


@functools.cache
def _root_directories() -> tuple[str, ...]:
    """`/bin` and its like as the host has them: links into `/usr`, or directories of their own."""
    options: list[str] = []
    for name in _ROOT_LINKS:
        path = f"/{name}"
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            options += ["--ro-bind", path, path]
    return tuple(options)
