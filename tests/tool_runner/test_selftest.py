"""The self-test of a runner, and its reports about failed checks."""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import DEVNULL
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from tests.support import privileged
from tests.tool_runner.conftest import Runner

from banksman.tool_runner.identity import sandbox_identity
from banksman.tool_runner.sandbox.base import (
    CapturedOutput,
    OnListener,
    OnOutput,
    Sandbox,
    SandboxCommand,
    SandboxOutcome,
    Stop,
)
from banksman.tool_runner.sandbox.bwrap.sandbox import BwrapSandbox
from banksman.tool_runner.sandbox.selftest import self_test
from banksman.tool_runner.settings import SandboxLimits


async def test_self_test_passes_on_a_complete_machine(root: Path, runner: Runner) -> None:
    report = await self_test(root, runner.identity, lambda: runner.sandbox)
    assert report.ok, report.summary()
    assert [check.name for check in report.checks] == [
        "files", "workspaces", "sandbox", "environment", "neighbours", "network", "user", "namespaces",
    ]  # fmt: skip
    assert [name for name in os.listdir(root) if name.startswith(".selftest")] == []


async def test_missing_bubblewrap_is_reported_with_its_package(root: Path) -> None:
    report = await self_test(
        root,
        sandbox_identity(),
        lambda: BwrapSandbox(sandbox_identity(), SandboxLimits(), bwrap="no-such-bwrap"),
    )
    assert not report.ok
    assert "no-such-bwrap not found" in report.summary()
    assert "apt-get install bubblewrap" in report.summary()


async def test_missing_workspace_root_is_reported(root: Path, runner: Runner) -> None:
    report = await self_test(root / "none", runner.identity, lambda: runner.sandbox)
    assert not report.ok
    assert str(root / "none") in report.summary()


async def test_workspace_root_out_of_reach_of_the_sandbox_user_is_reported(
    root: Path, runner: Runner, is_root: bool
) -> None:
    privileged.require("root", is_root, "a root that is closed to the sandbox user")
    (root / "closed" / "workspaces").mkdir(parents=True)
    (root / "closed").chmod(0o700)
    report = await self_test(root / "closed" / "workspaces", runner.identity, lambda: runner.sandbox)
    assert not report.ok
    assert f"{root}/closed" in report.summary()


class Unsandboxed:
    """An unsandboxed shell, which the self-test must detect."""

    async def run(
        self, command: SandboxCommand, *, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> SandboxOutcome:
        shell = await asyncio.create_subprocess_exec(
            "bash", "-c", command.script, cwd=command.workspace, stdout=DEVNULL, stderr=DEVNULL
        )
        return SandboxOutcome(await shell.wait(), CapturedOutput(100, 0), None, 0)

    def shared(self, on_listener: OnListener | None = None) -> AbstractAsyncContextManager[Sandbox]:
        return nullcontext(self)


async def test_shell_without_isolation_fails_every_check(root: Path) -> None:
    report = await self_test(root, sandbox_identity(), Unsandboxed)
    failed = {check.name for check in report.checks if not check.ok}
    assert failed >= {"environment", "neighbours", "network"}
    assert not report.ok


async def test_a_bubblewrap_that_starts_nothing_is_reported(root: Path) -> None:
    identity = sandbox_identity()
    with contextlib.closing(BwrapSandbox(identity, SandboxLimits(), bwrap="true")) as sandbox:
        report = await self_test(root, identity, lambda: sandbox)
    assert [check.name for check in report.checks if not check.ok] == ["sandbox"]
