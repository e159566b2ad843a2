"""The options of bwrap for one command."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path

from banksman.tool_runner.sandbox.base import EMPTY, WORKSPACE, SandboxCommand
from banksman.tool_runner.sandbox.bwrap.spawner_process import GATE_FD
from banksman.tool_runner.sandbox.etc import DIRECTORY, LINKED, USERS_APART
from banksman.tool_runner.settings import KIB, SandboxLimits

_SHOWN = ("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/alternatives", "/etc/ld.so.cache")
"""Files and directories of this host without which libraries and programs in `/usr` do not work."""
_LINKS = {"/etc/localtime": "/usr/share/zoneinfo/UTC", "/etc/os-release": "/usr/lib/os-release"}


def etc_options(directory: Path, *, apart: bool) -> tuple[str, ...]:
    """Return options of bwrap that show the files of `write_etc` in `/etc`.

    `apart` shows the list of users for programs of tool servers.
    """
    links = {f"/etc/{name}": f"{DIRECTORY}/{name}" for name in LINKED} | _LINKS
    if apart:
        links["/etc/passwd"] = f"{DIRECTORY}/{USERS_APART}"
    linked = (word for path, target in links.items() for word in ("--symlink", target, path))
    return ("--ro-bind", os.fspath(directory), DIRECTORY, *linked)


INNER_ID = 1000
"""User and group of commands in their user namespace."""
LIMITS = "LIMITS"
"""Variable of bash with the options of `ulimit` for the command; `GATE` removes it."""
GATE = """
unset BASH_ENV
until
    mapfile -t one </proc/1/status
    mapfile -t own </proc/self/status
    [[ ${one[*]} =~ Seccomp_filters:.[0-9]+ ]] && one=${BASH_REMATCH[0]} || one=
    [[ ${own[*]} == *"$one "* ]]
do :; done
unset one own BASH_REMATCH
read -t 0 -u 7 && exit 1
exec 6<&- 7<&-
ulimit $LIMITS || exit 1
unset LIMITS
"""
"""Run by bash before the command, so that the command starts only when its end is certain, and with limits.

The first process of the namespace sets its parent-death signal and then installs the seccomp filter. The loop
waits until that process has as many filters as bash, so the signal is set. Then `read` checks the pipe: if
the spawner has already died, bash exits. If it dies later, the signal ends the sandbox. Kernels before 5.9 do
not report `Seccomp_filters`; the loop then ends at once.

The limits are set inside the sandbox because the kernel counts RLIMIT_NPROC per user namespace. Set outside,
it would count the processes of bwrap too.
"""
_ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def bwrap_options(
    command: SandboxCommand,
    limits: SandboxLimits,
    *,
    etc: Path | None,
    seccomp_fd: int,
    status_fd: int,
    shares_network: bool = False,
) -> list[str]:
    """Return the options of one command; `etc` contains the files of `write_etc`."""
    gate = (("BASH_ENV", f"/dev/fd/{GATE_FD}"), (LIMITS, _rlimits(command, limits)))
    apart = command.directory != WORKSPACE
    environment = (*command.environment().items(), *gate)
    return [
        *_NAMESPACES,
        # Otherwise the starter starts bwrap in a network namespace that it has created.
        *(() if command.on_listener or shares_network else ("--unshare-net",)),
        *_file_system(command, limits),
        *(etc_options(etc, apart=apart) if etc is not None else ()),
        "--remount-ro",
        "/",
        "--clearenv",
        *(word for name, value in environment for word in ("--setenv", name, value)),
        "--seccomp",
        str(seccomp_fd),
        "--json-status-fd",
        str(status_fd),
    ]


def inner_command(command: SandboxCommand) -> list[str]:
    return ["bash", "--noprofile", "--norc", "-c", command.script]


def _rlimits(command: SandboxCommand, limits: SandboxLimits) -> str:
    data_kib, file_kib = (math.ceil(size / KIB) for size in (limits.data_bytes, limits.file_size_bytes))
    cpu_s = max(limits.cpu_s, math.ceil(command.timeout_s))
    processes, files = limits.max_processes, limits.max_open_files
    return f"-u {processes} -d {data_kib} -f {file_kib} -t {cpu_s} -n {files} -c 0"


# bwrap refuses --disable-userns without an explicit --unshare-user, so --unshare-all is not used.
_NAMESPACES = (
    "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts",
    "--unshare-cgroup-try", "--disable-userns", "--uid", str(INNER_ID), "--gid", str(INNER_ID),
    "--hostname", "sandbox", "--new-session", "--die-with-parent", "--cap-drop", "ALL",
)  # fmt: skip


def _file_system(command: SandboxCommand, limits: SandboxLimits) -> list[str]:
    return [
        "--ro-bind", "/usr", "/usr",
        *_root_directories(),
        *(word for path in _SHOWN for word in ("--ro-bind-try", path, path)),
        "--dev", "/dev",
        *_tmpfs("/dev/shm", limits.shm_bytes),  # noqa: S108 - inside the sandbox
        # bwrap creates /dev as a tmpfs without a size limit. Devices remain usable on a read-only mount.
        "--remount-ro", "/dev",
        "--proc", "/proc",
        # Otherwise a command could lower its oom_score_adj, and the OOM killer would choose the runner.
        "--remount-ro", "/proc",
        *_tmpfs("/tmp", limits.tmp_bytes),  # noqa: S108 - inside the sandbox
        *_tmpfs("/home", limits.home_bytes),
        "--bind", str(command.workspace), WORKSPACE,
        *(word for path in command.toolchain.paths for word in ("--ro-bind", path, path)),
        *(("--dir", EMPTY) if command.directory == EMPTY else ()),
        "--chdir", command.directory,
    ]  # fmt: skip


def _tmpfs(path: str, size_bytes: int) -> tuple[str, ...]:
    return ("--perms", "1777", "--size", str(size_bytes), "--tmpfs", path)


@functools.cache
def _root_directories() -> tuple[str, ...]:
    """Return options for `/bin`, `/lib` and others, as on the host: links into `/usr`, or directories."""
    options: list[str] = []
    for name in _ROOT_LINKS:
        path = f"/{name}"
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            options += ["--ro-bind", path, path]
    return tuple(options)
