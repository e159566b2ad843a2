"""The registry of workspaces: files of a newer term never replace files that a call uses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from banksman.contracts.workspaces import WorkspacePlacement, WorkspaceReport, WorkspaceReportReply
from banksman.quotas.places import Shares
from banksman.tool_runner.identity import sandbox_identity
from banksman.tool_runner.settings import WorkspaceLimits
from banksman.tool_runner.workspaces.entry import Reports
from banksman.tool_runner.workspaces.registry import CallTurns, WorkspaceRegistry
from banksman.tool_runner.workspaces.snapshots import Snapshots
from banksman.tool_runner.workspaces.workspace import WorkspaceStore

BLOCKED_S = 0.2
"""Seconds after which a task that is not done counts as blocked."""


class ConfirmingReports(Reports):
    """A platform whose record always names this runner."""

    def __init__(self) -> None:
        pass

    async def send(
        self, tenant: str, conversation_id: str, report: WorkspaceReport, *, repeats: bool = False
    ) -> WorkspaceReportReply:
        return WorkspaceReportReply(mine=True)


@pytest.fixture
def turns() -> CallTurns:
    return CallTurns(commands=Shares(1), fetches=Shares(1))


@pytest.fixture
async def registry(root: Path, turns: CallTurns) -> WorkspaceRegistry:
    """A registry with one workspace of term 1, which contains the file `old`."""
    store = WorkspaceStore(root, sandbox_identity(), WorkspaceLimits())
    unused = cast(Snapshots, None)
    registry = WorkspaceRegistry(store, unused, ConfirmingReports(), turns, runner_epoch=1)
    registry.load()
    await registry.prepare(
        registry.enter("acme", "c1"), WorkspacePlacement(term=1), changes=False, has_turn=True
    )
    (store.get("acme", "c1").directory / "old").touch()
    return registry


def request(registry: WorkspaceRegistry, term: int) -> asyncio.Task[None]:
    """Prepare the workspace for a request without a turn, as a file request does."""
    place = WorkspacePlacement(term=term)
    held = registry.enter("acme", "c1")
    return asyncio.create_task(registry.prepare(held, place, changes=False, has_turn=False))


async def test_newer_term_replaces_the_files_only_after_the_running_call(
    registry: WorkspaceRegistry, turns: CallTurns
) -> None:
    old = registry.workspaces.get("acme", "c1").directory / "old"
    async with turns.turn("bash", "acme", "c1"):
        newer = request(registry, term=2)
        done, _ = await asyncio.wait([newer], timeout=BLOCKED_S)
        assert (done, old.exists()) == (set(), True)
    await newer
    assert not old.exists()


async def test_file_request_of_the_same_term_does_not_wait_for_the_running_call(
    registry: WorkspaceRegistry, turns: CallTurns
) -> None:
    async with turns.turn("bash", "acme", "c1"):
        async with asyncio.timeout(5):
            await request(registry, term=1)


async def test_call_of_the_newer_term_replaces_the_files_in_its_own_turn(
    registry: WorkspaceRegistry, turns: CallTurns
) -> None:
    old = registry.workspaces.get("acme", "c1").directory / "old"
    async with turns.turn("bash", "acme", "c1"), asyncio.timeout(5):
        held = registry.enter("acme", "c1")
        await registry.prepare(held, WorkspacePlacement(term=2), changes=True, has_turn=True)
    assert not old.exists()
