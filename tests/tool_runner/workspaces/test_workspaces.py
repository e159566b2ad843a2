"""Workspaces: location, owner, quota, deletion, and the identity of their runner."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support import privileged
from tests.support.polling import let_others_run
from tests.tool_runner.conftest import TLS, MakeSandbox, Runner, only, started

from banksman.contracts.errors import BadInput, Conflict
from banksman.tool_runner.egress.client import Egress
from banksman.tool_runner.identity import claim, sandbox_identity
from banksman.tool_runner.lifecycle import workspace_tools
from banksman.tool_runner.settings import MIB, RunnerLimits, WorkspaceLimits
from banksman.tool_runner.workspaces import files
from banksman.tool_runner.workspaces.quota import QuotaMeter, delete_tree, measure
from banksman.tool_runner.workspaces.workspace import WorkspaceStore, default_root


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "a.b", "x" * 65, "a\0", "ü", " "])
def test_workspace_id_that_is_not_a_token_is_refused(root: Path, name: str) -> None:
    store = WorkspaceStore(root, sandbox_identity(), WorkspaceLimits())
    for tenant, conversation in ((name, "c"), ("t", name)):
        with pytest.raises(BadInput):
            store.get(tenant, conversation)
    assert list(store.stored()) == []


def test_only_the_sandbox_user_can_access_a_workspace(root: Path) -> None:
    identity = sandbox_identity()
    directory = WorkspaceStore(root, identity, WorkspaceLimits()).get("t", "c").directory
    assert (directory.stat().st_uid, directory.stat().st_mode & 0o777) == (identity.uid, 0o700)


@pytest.fixture
def closed_home() -> Iterator[Path]:
    """A home directory with mode 0700 that contains a clone with mode 0700."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir="/var/tmp"))
    data = home / "clone" / ".banksman"
    data.mkdir(parents=True)
    for directory in (home, home / "clone"):
        directory.chmod(0o700)
    outside = default_root(data, sandbox_identity())
    yield data
    shutil.rmtree(outside.parent)
    shutil.rmtree(home, ignore_errors=True)


async def test_private_clone_still_has_working_workspaces(
    make_sandbox: MakeSandbox, closed_home: Path
) -> None:
    identity, limits = sandbox_identity(), RunnerLimits()
    root = default_root(closed_home, identity)
    store = WorkspaceStore(root, identity, limits.workspace)
    store.prepare()
    box = workspace_tools(make_sandbox(root, limits), Egress(limits.fetch, ssl_context=TLS), limits)
    workspace = store.get("acme", "home")
    outcome = await box.run("bash", workspace, {"command": "echo works > f; cat f"})
    assert outcome.value["stdout"] == "works\n", outcome.value
    assert (workspace.directory / "f").stat().st_uid == identity.uid != 0
    outcome = await box.run("read_file", workspace, {"path": "f"})
    assert outcome.value["content"] == "works\n"
    assert default_root(closed_home, identity) == root
    await store.delete("acme", "home")


def test_accessible_data_directory_contains_its_workspaces(root: Path) -> None:
    assert default_root(root, sandbox_identity()) == root / "workspaces"


async def test_calls_of_one_workspace_run_one_after_another(runner: Runner) -> None:
    script = "test ! -e busy && touch busy && sleep 0.05 && rm busy && echo ok"
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(runner.bash(script)) for _ in range(4)]
    assert [call.result().value["stdout"] for call in calls] == ["ok\n"] * 4


async def test_calls_of_different_workspaces_overlap(runner: Runner) -> None:
    both, started_calls = asyncio.Event(), set[str]()

    def on_output(name: str) -> None:
        started_calls.add(name)
        if len(started_calls) == 2:
            both.set()

    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(
                runner.box.run(
                    "bash",
                    runner.store.get("acme", name),
                    {"command": "echo; sleep 30", "timeout_s": 5},
                    on_output=lambda *_, name=name: on_output(name),
                )
            )
            for name in ("one", "two")
        ]
        await started(both)
        for call in calls:
            call.cancel()


async def test_a_deleted_workspace_starts_empty(runner: Runner) -> None:
    await runner.bash("mkdir -p a/b; touch a/b/c .hidden; chmod 0 a/b; ln -s / root; mkfifo p")
    await runner.store.delete("acme", "c1")
    assert list(runner.store.stored()) == []
    workspace = runner.store.get("acme", "c1")
    assert (await runner.box.run("bash", workspace, {"command": "ls"})).value["stdout"] == ""
    await runner.store.delete("acme", "never")


def test_a_tree_of_any_depth_is_deleted(root: Path) -> None:
    top = root / "deep"
    top.mkdir()
    _dig(top, 1500)
    assert (measure(top).entries, measure(top).depth) == (3000, 1500)
    delete_tree(top)
    assert not top.exists()


def _dig(top: Path, depth: int) -> None:
    """Create directories inside one another, each with a file beside it."""
    program = f"import os\nfor _ in range({depth}):\n    os.mkdir('d'); open('f', 'w').close(); os.chdir('d')"
    subprocess.run([sys.executable, "-c", program], cwd=top, check=True)
    identity = sandbox_identity()
    subprocess.run(["chown", "-R", f"{identity.uid}:{identity.gid}", "d", "f"], cwd=top, check=True)


def test_deleting_a_tree_does_not_follow_links(root: Path) -> None:
    (root / "keep").mkdir()
    (root / "keep" / "file").write_text("kept")
    (root / "gone" / "sub").mkdir(parents=True)
    (root / "gone" / "link").symlink_to(root / "keep")
    (root / "gone" / "sub" / "link").symlink_to("../../keep")
    delete_tree(root / "gone")
    assert (root / "keep" / "file").read_text() == "kept"


def test_a_measurement_counts_blocks_once_and_stops_at_a_limit(root: Path) -> None:
    (root / "file").write_bytes(b"x" * 100_000)
    os.link(root / "file", root / "twin")
    with (root / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (root / "loop").symlink_to(root)
    usage = measure(root, WorkspaceLimits())
    assert 100_000 <= usage.disk_bytes < 120_000
    assert (usage.entries, usage.depth) == (4, 1)
    assert measure(root, WorkspaceLimits(max_entries=2)).entries == 3


async def test_measurement_finishes_after_its_caller_is_cancelled(tmp_path: Path) -> None:
    """Otherwise a command that ends while all threads are busy would prevent all later measurements."""
    (tmp_path / "file").write_bytes(b"x" * 5000)
    meter = QuotaMeter(tmp_path, WorkspaceLimits())
    busy, thread = threading.Event(), ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(thread)
    thread.submit(busy.wait)

    waiting = asyncio.create_task(meter.renew())
    await let_others_run()
    waiting.cancel()
    await asyncio.wait([waiting])
    busy.set()

    await asyncio.to_thread(int)  # runs after the measurement: there is one thread
    assert meter.usage.disk_bytes >= 5000


class TestQuota:
    @pytest.fixture
    def limits(self, small_workspace: RunnerLimits) -> RunnerLimits:
        return small_workspace

    @pytest.mark.parametrize(
        "command",
        [
            "head -c 5000000 /dev/zero > big; sleep 30",
            "mkdir many; cd many; for i in $(seq 400); do : > $i; done; sleep 30",
            "for i in $(seq 60); do mkdir d; cd d; done; sleep 30",
        ],
    )
    async def test_a_command_that_fills_its_workspace_is_killed(self, runner: Runner, command: str) -> None:
        outcome = await runner.bash(command, timeout_s=10)
        assert outcome.value["killed_reason"] == "workspace_limit"
        assert "limit is" in str(outcome.value["error"])

    async def test_full_workspace_refuses_writes_but_allows_deletion(self, runner: Runner) -> None:
        await runner.bash("head -c 5000000 /dev/zero > big; sleep 30", timeout_s=10)
        refused = await runner.call("write_file", path="more", content="x")
        assert refused.value["success"] is False
        assert "delete files first" in str(refused.value["error"])
        assert (await runner.bash("rm big; sleep 0.2; echo gone")).value["stdout"] == "gone\n"
        assert (await runner.call("write_file", path="more", content="x")).value["success"] is True

    async def test_short_commands_cannot_exceed_the_quota(self, runner: Runner) -> None:
        kinds = set[object]()
        for number in range(40):
            outcome = await runner.bash(f"head -c 300000 /dev/zero > part{number}")
            kinds.add(outcome.value["killed_reason"])
        refused = await runner.call("write_file", path="more", content="x")
        assert "workspace_limit" in kinds or refused.is_error
        assert refused.is_error

    async def test_full_workspace_does_not_grow_with_later_commands(self, runner: Runner) -> None:
        for number in range(4):
            outcome = await runner.bash(f"head -c 1500000 /dev/zero > part{number}; sleep 30", timeout_s=10)
            assert outcome.value["killed_reason"] == "workspace_limit"

    async def test_workspace_far_above_its_limit_runs_no_command_until_files_are_deleted(
        self, runner: Runner
    ) -> None:
        with (runner.workspace.directory / "big").open("wb") as big:
            os.posix_fallocate(big.fileno(), 0, 300 * MIB)
        refused = await runner.bash("head -c 900000 /dev/zero > more")
        assert "runs no command until the user deletes files" in str(refused.value["error"])
        files.delete(runner.workspace.directory, "big")
        assert (await runner.bash("ls; echo runs")).value["stdout"] == "runs\n"

    async def test_restarted_runner_lets_a_full_workspace_delete_its_files(self, runner: Runner) -> None:
        (runner.workspace.directory / "big").write_bytes(bytes(1_500_000))
        outcome = await runner.bash("sleep 0.2; rm big; echo gone")
        assert outcome.value["stdout"] == "gone\n"

    @pytest.mark.parametrize("depth", [20, 150])
    async def test_tree_that_is_too_deep_can_be_deleted(self, runner: Runner, depth: int) -> None:
        _dig(runner.workspace.directory, depth)
        assert "delete files first" in str((await runner.call("write_file", path="f", content="")).value)
        outcome = await runner.bash("sleep 0.2; rm -r d f; echo gone")
        assert outcome.value["stdout"] == "gone\n"
        assert (await runner.call("write_file", path="f", content="")).value["success"] is True

    async def test_full_workspace_does_not_affect_others(self, runner: Runner) -> None:
        await runner.bash("head -c 5000000 /dev/zero > big; sleep 30", timeout_s=10)
        neighbour = runner.store.get("acme", "c2")
        outcome = await runner.box.run("write_file", neighbour, {"path": "mine", "content": "x"})
        assert outcome.value["success"] is True


class TestRareScans:
    @pytest.fixture
    def root(self) -> Iterator[Path]:
        """A root on a file system on which little else happens."""
        directory = Path(tempfile.mkdtemp(prefix="banksman-test-", dir="/dev/shm"))
        directory.chmod(0o711)
        yield directory
        delete_tree(directory)

    @pytest.fixture
    def limits(self, small_workspace: RunnerLimits) -> RunnerLimits:
        workspace = small_workspace.workspace.model_copy(update={"scan_share": 1e-9})
        return small_workspace.model_copy(update={"workspace": workspace})

    @only("bwrap", "an engine may be unable to mount a directory of /dev/shm")
    @pytest.mark.parametrize(
        "command",
        ["head -c 5000000 /dev/zero > big", "mkdir many; cd many; for i in $(seq 400); do : > $i; done"],
    )
    async def test_growth_of_the_file_system_ends_a_command_between_two_scans(
        self, runner: Runner, command: str
    ) -> None:
        outcome = await runner.bash(f"sleep 0.2; {command}; sleep 30", timeout_s=10)
        assert outcome.value["killed_reason"] == "workspace_limit"


def test_restarted_runner_has_the_same_id_and_a_higher_epoch(root: Path) -> None:
    first = claim(root)
    os.close(first.lock_fd)
    second = claim(root)
    os.close(second.lock_fd)
    assert (first.epoch, second.epoch, first.runner) == (1, 2, second.runner)


def test_two_runners_never_share_a_directory(root: Path) -> None:
    held = claim(root)
    with pytest.raises(Conflict, match="another runner"):
        claim(root)
    os.close(held.lock_fd)


def test_invalid_runner_identity_is_refused(root: Path) -> None:
    (root / ".runner.json").write_text(json.dumps({"runner": "a.b", "epoch": 3}))
    with pytest.raises(BadInput):
        claim(root)


def test_sandbox_user_cannot_read_the_identity_of_the_runner(root: Path, is_root: bool) -> None:
    privileged.require("root", is_root, "whether the sandbox user is kept from the runner's files")
    identity = sandbox_identity()
    os.close(claim(root).lock_fd)
    done = subprocess.run(
        ["cat", str(root / ".runner.lock")],
        user=identity.uid,
        group=identity.gid,
        extra_groups=[],
        capture_output=True,
    )
    assert done.returncode != 0
