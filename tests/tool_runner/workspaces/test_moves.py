"""Workspaces move at once if a snapshot has all changes, otherwise after a wait and with a reported loss."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.support.fixtures import SecuredNats
from tests.tool_runner.service.processes import RunnerProcess, Runners, wait_for_start
from tests.tool_runner.workspaces.platform import Platform, home, platform, started, until

from banksman.contracts.workspaces import WorkspaceOwner

pytestmark = pytest.mark.timeout(300)
"""Seconds. Processes are started and killed, which takes long on a busy machine."""

NEVER = {"BANKSMAN_TOOL_RUNNER__SNAPSHOTS__IDLE_S": "3600"}


async def killed(here: Platform, runner: RunnerProcess, *left: RunnerProcess) -> None:
    """Kill a runner with SIGKILL, and wait until the platform has detected it."""
    runner.signal(signal.SIGKILL)
    await runner.ended()
    await here.sees(*left)


async def uploaded(here: Platform, conversation: str) -> WorkspaceOwner:
    """Create a workspace with one file, and its snapshot."""
    assert (await here.write(conversation, "a", b"text")).error is None
    return await here.clean(conversation)


async def is_missing(path: Path) -> bool:
    return not await asyncio.to_thread(path.exists)


async def test_an_unchanged_workspace_moves_at_once_with_all_its_files(
    secured: SecuredNats, runners: Runners
) -> None:
    """The runner is killed permanently; the next request moves the workspace without delay or loss."""
    pair = started(runners, 2)
    async with platform(secured, wait_s=3600) as here:
        await here.sees(*pair)
        await here.bash("c1", "mkdir d; echo deep > d/a; ln -s d/a link; chmod 750 d; echo x > 'a b'")
        first = await here.clean("c1")
        read = {name: await uploaded(here, name) for name in ("c2", "c3", "c4")}
        lost = home(pair, first.runner)
        (other,) = set(pair) - {lost}
        await killed(here, lost, other)
        assert await here.bash("c1", "cat link 'a b'; stat -c %a d; echo more >> d/a") == "deep\nx\n750\n"
        record = await here.record("c1")
        assert (record.runner, record.term, record.loss) == (other.id, 2, None)
        assert await here.bash("c1", "cat d/a") == "deep\nmore\n"
        for name, before in read.items():
            assert await here.paths(name) == ["a"]
            assert (await here.read(name, "a")).text == "text"
            moved = await here.record(name)
            assert (moved.dirty, moved.generation, moved.runner) == (False, before.generation, other.id)


async def test_encrypted_snapshot_is_restored_by_another_runner(
    secured: SecuredNats, runners: Runners
) -> None:
    (first,) = started(runners, 1)
    async with platform(secured, wait_s=3600) as here:
        await here.sees(first)
        await here.bash("c1", "echo kept > a")
        snapshot = (await here.clean("c1")).snapshot
        assert snapshot is not None and snapshot.key is not None
        (other,) = started(runners, 1)
        await here.sees(first, other)
        await killed(here, first, other)
        assert await here.bash("c1", "cat a") == "kept\n"
        assert (await here.record("c1")).loss is None


async def test_changed_workspace_waits_for_its_runner_then_moves_with_a_recorded_loss(
    secured: SecuredNats, runners: Runners
) -> None:
    """The snapshot misses the last change. When the runner returns, its files are stale."""
    pair = started(runners, 2)
    async with platform(secured, wait_s=1.0) as here:
        await here.sees(*pair)
        await here.bash("c1", "echo stored > a")
        first = await here.clean("c1")
        lost = home(pair, first.runner)
        (other,) = set(pair) - {lost}
        _, request = await here.begin("c1", "bash", command="echo lost > b; sleep 7911.5")
        await wait_for_start("7911.5")
        await killed(here, lost, other)
        assert await here.place("c1") is None
        waiting = await here.record("c1")
        assert (waiting.runner, waiting.dirty) == (lost.id, True) and waiting.gone_since is not None
        assert await here.bash("c1", "cat a; ls") == "stored\na\n"
        record = await here.record("c1")
        assert (record.runner, record.term) == (other.id, 2)
        assert record.loss is not None and first.snapshot is not None
        assert (record.loss.term, record.loss.snapshot_ts) == (2, first.snapshot.created_at)
        facts = await here.slots.read(here.tenant, request.attempt)
        assert facts.started is not None and facts.finished is None
        assert (lost.root / here.tenant / "c1" / "b").exists()
        lost.start()
        await until(lambda: is_missing(lost.root / here.tenant / "c1"))
        assert await here.bash("c1", "cat a") == "stored\n"


async def test_changed_workspace_continues_when_its_runner_returns_in_time(
    secured: SecuredNats, runners: Runners
) -> None:
    pair = started(runners, 2, **NEVER)
    async with platform(secured, wait_s=3600) as here:
        await here.sees(*pair)
        placement, result = await here.call("c1", "bash", command="echo only here > a")
        assert not result.is_error
        lost = home(pair, placement.runner)
        (other,) = set(pair) - {lost}
        await killed(here, lost, other)
        assert await here.place("c1") is None
        lost.start()
        await here.sees(*pair)
        assert await here.bash("c1", "cat a") == "only here\n"
        record = await here.record("c1")
        assert (record.runner, record.term, record.gone_since, record.loss) == (lost.id, 1, None, None)


async def test_workspace_without_a_snapshot_starts_empty_with_a_recorded_loss(
    secured: SecuredNats, runners: Runners
) -> None:
    pair = started(runners, 2, **NEVER)
    async with platform(secured, wait_s=0) as here:
        await here.sees(*pair)
        placement, _ = await here.call("c1", "bash", command="echo lost > a")
        lost = home(pair, placement.runner)
        await killed(here, lost, *(set(pair) - {lost}))
        assert await here.bash("c1", "ls") == ""
        record = await here.record("c1")
        assert record.loss is not None and (record.loss.term, record.loss.snapshot_ts) == (2, None)


async def test_refused_snapshot_leaves_an_empty_workspace_and_a_reason(
    secured: SecuredNats, runners: Runners
) -> None:
    """A part in the store was altered. The call is not executed, and no partial workspace is left."""
    pair = started(runners, 2)
    async with platform(secured) as here:
        await here.sees(*pair)
        await here.bash("c1", "echo good > a; echo good > b")
        first = await here.clean("c1")
        assert first.snapshot is not None
        part = f"{await here.snapshot_name('c1')}/0"
        await here.store.put(part, b"evil" + (await here.store.get(part))[4:])
        lost = home(pair, first.runner)
        await killed(here, lost, *(set(pair) - {lost}))
        _, result = await here.call("c1", "bash", command="touch executed")
        assert result.error_kind == "unavailable"
        assert "a part differs from its manifest" in str(result.content["error"])
        assert await here.bash("c1", "ls") == ""
        record = await here.recorded("c1", lambda record: record.loss is not None)
        assert record.loss is not None and record.loss.reason == "a part differs from its manifest"


async def test_rolling_restart_moves_every_workspace(secured: SecuredNats, runners: Runners) -> None:
    """Each runner stops after it has snapshotted its changes; nothing is lost, and no request waits."""
    pair = started(runners, 2, **NEVER)
    names = [f"c{number}" for number in range(6)]
    async with platform(secured, wait_s=3600) as here:
        await here.sees(*pair)
        for name in names:
            await here.bash(name, f"echo {name} > a")
        for runner in pair:
            runner.signal(signal.SIGTERM)
            assert await runner.ended() == 0
            await here.sees(*(one for one in pair if one is not runner))
            for name in names:
                assert await here.bash(name, "cat a; echo again >> b; wc -l < b") is not None
            runner.start()
            await here.sees(*pair)
        for name in names:
            assert await here.bash(name, "cat a; wc -l < b") == f"{name}\n2\n"
            assert (await here.record(name)).loss is None


async def test_new_workspaces_are_spread_over_all_runners(secured: SecuredNats, runners: Runners) -> None:
    three = started(runners, 3)
    async with platform(secured) as here:
        await here.sees(*three)
        homes = Counter([(await here.placed(f"c{number}")).runner for number in range(30)])
        assert set(homes) == {runner.id for runner in three}
        assert max(homes.values()) <= 15


async def test_a_busy_runner_gets_no_new_workspaces(secured: SecuredNats, runners: Runners) -> None:
    pair = started(runners, 2)
    async with platform(secured) as here:
        await here.sees(*pair)
        busy, request = await here.begin("c0", "bash", command="sleep 7921.5")
        await wait_for_start("7921.5")

        async def is_reported() -> bool:
            return any(lease.load for lease in here.placements.leases())

        await until(is_reported)
        assert (await here.placed("c1")).runner != busy.runner
        await here.placements.cancel(busy, here.tenant, request.attempt)
        await here.result(request)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
async def test_unstarted_calls_run_on_another_runner(
    secured: SecuredNats, runners: Runners, number: signal.Signals
) -> None:
    """The workspaces have snapshots; the calls arrive while their runner stops."""
    pair = started(runners, 2)
    async with platform(secured) as here:
        await here.sees(*pair)
        conversations = [f"c{number}" for number in range(4)]
        for conversation in conversations:
            await here.bash(conversation, "echo before > a")
            await here.clean(conversation)
        pair[0].signal(number)
        async with asyncio.TaskGroup() as calls:
            outputs = [
                calls.create_task(here.bash(conversation, "cat a; echo once >> log; cat log"))
                for conversation in conversations
            ]
        assert [output.result() for output in outputs] == ["before\nonce\n"] * 4
        await pair[0].ended()
