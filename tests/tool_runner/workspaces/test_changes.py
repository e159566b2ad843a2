"""Every file that a command changes is in the outcome of its call, with bounds in time and memory."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.tool_runner.conftest import Runner, only

from banksman.tool_runner.tools.toolbox import ToolOutcome
from banksman.tool_runner.workspaces import quota
from banksman.tool_runner.workspaces.changes import (
    MAX_CHANGES,
    MAX_CHANGES_BYTES,
    FileIndex,
    KeptIndexes,
    differences,
)
from banksman.tool_runner.workspaces.quota import measure


def changed(outcome: ToolOutcome) -> dict[str, str]:
    return {change.path: change.change for change in outcome.changed}


async def test_a_command_lists_each_file_that_it_creates_modifies_and_deletes(runner: Runner) -> None:
    await runner.call("write_file", path="kept.txt", content="kept")
    await runner.call("write_file", path="edited.txt", content="one")
    await runner.call("write_file", path="old/gone.txt", content="gone")
    outcome = await runner.bash(
        "echo two > edited.txt; rm -r old; mkdir -p new/deep; echo x > new/deep/file; ln -s kept.txt link; "
        "cat kept.txt; touch /tmp/outside"
    )
    assert changed(outcome) == {
        "edited.txt": "modified",
        "link": "created",
        "new/deep/file": "created",
        "old/gone.txt": "deleted",
    }
    assert changed(await runner.bash("cat edited.txt; ls -la")) == {}


async def test_no_trick_hides_a_change_and_no_file_of_the_runner_is_listed(runner: Runner) -> None:
    await runner.bash("mkdir a b; echo 1111 > a/same; echo 2222 > b/same; touch -d 2001-01-01 a/same b/same")
    swapped = await runner.bash("mv a c; mv b a; mv c b")
    assert changed(swapped) == {"a/same": "modified", "b/same": "modified"}
    forged = await runner.bash("printf 3333 | dd of=a/same conv=notrunc; touch -d 2001-01-01 a/same")
    assert changed(forged) == {"a/same": "modified"}
    assert changed(await runner.bash("chmod u+x b/same")) == {"b/same": "modified"}
    # A runner that is not root could not look into this directory.
    assert "shut" in changed(await runner.bash("mkdir shut; echo x > shut/file; chmod 000 shut"))
    output = await runner.bash("seq 100000; git config --global user.name other")
    assert output.truncated
    assert changed(output) == {}


@only("bwrap", "the small image of containers has no git")
async def test_changes_of_a_repository_count_as_one(runner: Runner) -> None:
    outcome = await runner.bash("mkdir p; cd p; git init -q; echo x > f; git add f; git commit -qm first")
    assert changed(outcome) == {"p/.git": "created", "p/f": "created"}
    assert changed(await runner.bash("cd p; git commit -q --allow-empty -m second")) == {"p/.git": "modified"}
    hook = await runner.bash("echo true > p/.git/hooks/pre-commit")
    assert changed(hook) == {"p/.git": "modified"}


async def test_many_changes_are_listed_up_to_a_limit_and_counted(runner: Runner) -> None:
    """The files with the fewest directories above them come first: a package manager writes deep ones."""
    many = (
        "mkdir -p node_modules/x; for n in $(seq 450); do echo $n > node_modules/x/$n; done; echo x > z.json"
    )
    outcome = await runner.bash(many)
    assert (len(outcome.changed), outcome.changed_more) == (MAX_CHANGES, 451 - MAX_CHANGES)
    assert outcome.changed[0].path == "z.json"
    long = await runner.bash(f"for n in $(seq 190); do echo > {'x' * 240}$n; done")
    assert len(long.changed) + long.changed_more == 190
    assert sum(len(change.path) for change in long.changed) < MAX_CHANGES_BYTES


async def test_a_killed_command_lists_what_it_changed_before(runner: Runner) -> None:
    outcome = await runner.bash("echo x > early; sleep 60", timeout_s=1)
    assert (outcome.error_kind, changed(outcome)) == ("timeout", {"early": "created"})


@only("bwrap", "both measure alike")
async def test_a_command_measures_its_workspace_once(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement after a command is also the one before the next command."""
    counted = Counter[str]()

    def counting(*arguments: object) -> quota.WorkspaceUsage:
        counted["measure"] += 1
        return measure(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(quota, "measure", counting)
    await runner.bash("echo first > file")
    assert counted["measure"] == 2
    for number in range(5):
        await runner.bash(f"echo {number} > file")
    assert counted["measure"] == 7


def test_a_large_tree_is_indexed_in_the_time_of_its_measurement(tmp_path: Path) -> None:
    """Time of the processor, without input and output: the index adds less than the measurement takes."""
    for number in range(100):
        directory = tmp_path / f"package{number}"
        directory.mkdir()
        for name in range(100):
            os.close(os.open(directory / f"f{name}", os.O_CREAT, 0o600))

    def seconds(index: FileIndex | None) -> float:
        began = time.thread_time()
        measure(tmp_path, None, index)
        return time.thread_time() - began

    plain = min(seconds(None) for _ in range(3))
    indexed = min(seconds(FileIndex()) for _ in range(3))
    assert indexed < 2 * plain + 0.01


def test_an_incomplete_index_reports_no_file_as_deleted(tmp_path: Path) -> None:
    before, after = FileIndex(), FileIndex()
    (tmp_path / "file").touch()
    measure(tmp_path, None, before)
    after.complete = False
    assert differences(before, after) == {}
    after.complete = True
    assert differences(before, after) == {"file": "deleted"}


def test_the_indexes_of_all_workspaces_together_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("banksman.tool_runner.workspaces.changes.MAX_INDEXED", 10)
    kept = KeptIndexes()
    for number in range(5):
        kept.keep(tmp_path / str(number), FileIndex(dict.fromkeys("abcd", number)))
    assert [kept.get(tmp_path / str(number)) is not None for number in range(5)] == [False] * 3 + [True] * 2
    kept.keep(tmp_path / "large", FileIndex({str(number): 1 for number in range(100)}))
    assert kept.get(tmp_path / "large") is not None
