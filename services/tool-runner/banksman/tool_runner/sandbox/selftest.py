"""The self-test of a runner before it accepts calls. There is no fall-back to an unsandboxed shell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.sandbox.base import Sandbox, SandboxCommand, SandboxOutcome, SandboxUnavailable
from banksman.tool_runner.workspaces.beneath import kernel_resolves_beneath
from banksman.tool_runner.workspaces.quota import delete_tree

_TIMEOUT_S = 20.0
_CANARY = "BANKSMAN_SELFTEST_CANARY"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str
    """What the check observed."""
    remedy: str | None = None
    """What to install or to set; None if the check passed."""


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """The results of all checks. A runner whose report is not `ok` refuses every call."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def summary(self) -> str:
        failed = [check for check in self.checks if not check.ok]
        return "\n".join(f"{check.name}: {check.detail}. {check.remedy or ''}".rstrip() for check in failed)


async def self_test(
    root: Path, identity: SandboxIdentity, make_sandbox: Callable[[], Sandbox]
) -> SelfTestReport:
    """Run every check once, in a temporary directory below the root of the workspaces.

    If a check fails that later checks depend on, the later checks are skipped. `make_sandbox` runs in a
    thread and may raise `SandboxUnavailable`.
    """
    checks = [_check_paths(), _check_root(root, identity)]
    if not checks[-1].ok:
        return SelfTestReport(tuple(checks))
    try:
        sandbox = await asyncio.to_thread(make_sandbox)
    except SandboxUnavailable as error:
        return SelfTestReport((*checks, _unavailable(error)))
    async with _scratch(root, identity) as scratch:
        probe = _Probe(sandbox, scratch, identity)
        checks.append(await probe.starts())
        if checks[-1].ok:
            checks += [
                await probe.has_a_clean_environment(),
                await probe.cannot_see_neighbours(),
                await probe.has_no_network(),
                await probe.is_never_root(),
                await probe.makes_no_namespaces(),
            ]
    return SelfTestReport(tuple(checks))


@dataclass(frozen=True, slots=True)
class _Probe:
    sandbox: Sandbox
    scratch: Path
    identity: SandboxIdentity

    @property
    def workspace(self) -> Path:
        return self.scratch / "own"

    async def starts(self) -> Check:
        try:
            outcome = await self._run("true")
        except SandboxUnavailable as error:
            return _unavailable(error)
        ok = outcome.exit_code == 0
        detail = "a command runs" if ok else _describe(outcome)
        return Check("sandbox", ok, detail, None if ok else "Check that bash is installed.")

    async def has_a_clean_environment(self) -> Check:
        canary = secrets.token_hex(16)
        os.environ[_CANARY] = canary
        try:
            return await self._check_fails(
                "environment",
                f"cat /proc/*/environ 2>/dev/null | grep -aq {canary}",
                "the runner's variables",
            )
        finally:
            del os.environ[_CANARY]

    async def cannot_see_neighbours(self) -> Check:
        script = f"test -e '{self.scratch / 'neighbour'}' || test -e '{self.scratch}'"
        return await self._check_fails("neighbours", script, "another workspace")

    async def has_no_network(self) -> Check:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            script = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) || (exec 3<>/dev/tcp/169.254.169.254/80)"
            return await self._check_fails(
                "network", f"timeout 3 bash -c '{script}' 2>/dev/null", "the network"
            )

    async def is_never_root(self) -> Check:
        await self._run("touch owner")
        uid = await asyncio.to_thread(_owner, self.workspace / "owner")
        if uid is None:
            remedy = (
                "Set tool_runner.docker.host_dir to the directory of the workspaces on the engine's host."
            )
            return Check(
                "user", False, "a file that a command writes does not appear in its workspace", remedy
            )
        ok = uid == self.identity.uid != 0
        remedy = None if ok else "Start the runner as root or as an ordinary user, not with mapped ids."
        return Check("user", ok, f"commands run as real user {uid}", remedy)

    async def makes_no_namespaces(self) -> Check:
        return await self._check_fails("namespaces", "unshare -Ur true 2>/dev/null", "its own user namespace")

    async def _check_fails(self, name: str, script: str, forbidden: str) -> Check:
        outcome = await self._run(script)
        ok = outcome.exit_code not in (0, None)
        detail = f"{forbidden}: not reachable" if ok else f"a command can reach {forbidden}"
        return Check(
            name, ok, detail, None if ok else "Do not run tools here: the sandbox does not isolate commands."
        )

    async def _run(self, script: str) -> SandboxOutcome:
        outcome = await self.sandbox.run(SandboxCommand(script, self.workspace, _TIMEOUT_S))
        outcome.output.close()
        return outcome


def _owner(path: Path) -> int | None:
    return path.stat().st_uid if path.exists() else None


def _unavailable(error: SandboxUnavailable) -> Check:
    return Check("sandbox", ok=False, detail=str(error), remedy=error.remedy or _setting(str(error)))


def _check_paths() -> Check:
    detail = "paths are resolved by component: openat2 is missing (Linux 5.6, seccomp profile)"
    if kernel_resolves_beneath():
        detail = "the kernel keeps paths inside a workspace (openat2)"
    return Check("files", ok=True, detail=detail)


def _check_root(root: Path, identity: SandboxIdentity) -> Check:
    if not os.access(root, os.W_OK | os.X_OK):
        return Check(
            "workspaces",
            False,
            f"{root} is not a directory that the runner can write",
            "Create it, or set tool_runner.workspaces_dir to another directory.",
        )
    if barrier := identity.first_barrier(root):
        return Check(
            "workspaces",
            False,
            f"user {identity.uid} may not search {barrier}",
            f"Set tool_runner.workspaces_dir to a directory outside {barrier}, or run `chmod o+x {barrier}`.",
        )
    return Check("workspaces", True, f"{root} is writable")


_SYSCTLS = (
    ("/proc/sys/user/max_user_namespaces", "0", "Set user.max_user_namespaces to 10000 or more (sysctl)."),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "Set kernel.unprivileged_userns_clone to 1 (sysctl).",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor denies user namespaces: install a profile for bwrap that has `userns,`, or set "
        "kernel.apparmor_restrict_unprivileged_userns to 0 (sysctl).",
    ),
)


def _setting(message: str) -> str:
    for path, forbidding, remedy in _SYSCTLS:
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == forbidding:
                return remedy
    if "disable-userns" in message or "Unknown option" in message:
        return "Install bubblewrap 0.8.0 or newer."
    if "Permission denied" in message and (profile := _apparmor_profile()):
        return (
            f"The AppArmor profile {profile} denies it: load deploy/apparmor/banksman-tool-runner and start "
            "the container with `security_opt: apparmor=banksman-tool-runner`."
        )
    if "proc" in message and ("mount" in message or "Read-only" in message):
        return "In a container: set `security_opt: systempaths=unconfined`."
    if "namespace" in message or "Operation not permitted" in message:
        return "In a container: use the seccomp profile of this project, which allows bwrap its namespaces."
    return "Run the failed command by hand: bwrap --unshare-user --ro-bind / / true"


def _apparmor_profile() -> str | None:
    with contextlib.suppress(OSError):
        profile = Path("/proc/self/attr/apparmor/current").read_text().strip()
        return None if profile in ("", "unconfined") else profile
    return None


def _describe(outcome: SandboxOutcome) -> str:
    text = outcome.output.stderr.text().strip()
    return f"`true` exited with {outcome.exit_code} ({outcome.killed_reason}): {text[:300]}"


@contextlib.asynccontextmanager
async def _scratch(root: Path, identity: SandboxIdentity) -> AsyncGenerator[Path]:
    scratch = await asyncio.to_thread(_make_scratch, root, identity)
    try:
        yield scratch
    finally:
        await asyncio.to_thread(delete_tree, scratch)


def _make_scratch(root: Path, identity: SandboxIdentity) -> Path:
    scratch = Path(tempfile.mkdtemp(prefix=".selftest-", dir=root))
    scratch.chmod(0o711)
    for name in ("own", "neighbour"):
        (scratch / name).mkdir(mode=0o700)
        if identity.switches:
            os.chown(scratch / name, identity.uid, identity.gid)
    return scratch
