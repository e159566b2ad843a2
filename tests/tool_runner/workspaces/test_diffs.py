"""The patch of a workspace since a run began, or since the workspace began."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.tool_runner.conftest import Runner, only

from banksman.contracts.runner_requests import FileDiff, WorkspaceDiff
from banksman.contracts.wire import json_bytes
from banksman.tool_runner.settings import MarkdownLimits
from banksman.tool_runner.tools.diffs import MAX_PATCH_BYTES, Diffs
from banksman.tool_runner.tools.patch import FileTexts, file_patch
from banksman.tool_runner.workspaces.baseline import MAX_TEXT_BYTES, Baseline, Content

in_bwrap = only("bwrap", "the texts are compared without a sandbox")


async def bash(runner: Runner, command: str, run_id: str) -> None:
    outcome = await runner.box.run("bash", runner.workspace, {"command": command}, run_id=run_id)
    assert outcome.exit_code == 0, outcome.value


async def diff(runner: Runner, since: str = "", path: str = "") -> WorkspaceDiff:
    return await Diffs(MarkdownLimits()).diff(runner.workspace, FileDiff(since=since, path=path))


def named(found: WorkspaceDiff) -> list[tuple[str, str, str | None]]:
    return [(file.path, file.change, file.not_compared) for file in found.files]


def applied(directory: Path, patch: str, *options: str) -> None:
    """Apply a patch with git, strictly."""
    command = ["git", "apply", "--whitespace=nowarn", *options]
    done = subprocess.run(command, cwd=directory, input=patch.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode() + patch


def tree(directory: Path) -> dict[str, tuple[bytes, bool]]:
    files = (path for path in directory.rglob("*") if path.is_file() and ".banksman" not in path.parts)
    return {
        str(path.relative_to(directory)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in files
    }


@in_bwrap
async def test_git_applies_the_patch_and_gets_the_files_of_the_workspace(
    runner: Runner, tmp_path: Path
) -> None:
    await bash(
        runner,
        r"""
        mkdir -p src 'with space'; seq 400 > src/long.txt; printf 'a\r\nb\r\n' > crlf.txt; touch empty.txt
        printf 'no end' > no_end.txt; echo gone > gone.txt; printf '#!/bin/sh\n' > run.sh
        echo x > 'with space/ä "quoted" \ file'; printf 'one\ntwo' > end.txt
        """,
        "r1",
    )
    start = tree(runner.workspace.directory)
    await bash(
        runner,
        r"""
        sed -i -e 2d -e '200s/$/ changed/' -e '399s/.*/new/' src/long.txt; printf 'a\r\nc\r\n' > crlf.txt
        echo x > empty.txt; printf 'no end, still' > no_end.txt; rm gone.txt; chmod +x run.sh
        echo y >> 'with space/ä "quoted" \ file'; printf 'one\ntwo\n' > end.txt; printf 'new' > $'tab\tname'
        printf '\0\1' > image.png; mkdir made; touch made/empty
        """,
        "r2",
    )
    found = await diff(runner, "r2")
    assert [one for one in named(found) if one[2]] == [("image.png", "created", "binary")]
    assert found.patch.startswith("# image.png: not in this patch (binary)\n")
    for path, (content, executable) in start.items():
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_bytes(content)
        (tmp_path / path).chmod(0o755 if executable else 0o644)
    applied(tmp_path, found.patch)
    now = tree(runner.workspace.directory)
    del now["image.png"]
    assert tree(tmp_path) == now
    applied(tmp_path, found.patch, "--reverse")
    assert tree(tmp_path) == start
    whole = await diff(runner)
    assert ("gone.txt", "modified", None) not in named(whole)
    assert {path for path, *_ in named(whole)} == {*now, "image.png"}


@in_bwrap
async def test_each_run_has_its_own_beginning(runner: Runner) -> None:
    await bash(runner, "echo 1 > a; echo 1 > b", "r1")
    await bash(runner, "echo 2 > a; echo 1 > c", "r2")
    await bash(runner, "echo 3 > a; rm b; echo 2 > c; echo 1 > d", "r3")
    assert named(await diff(runner, "r3")) == [
        ("a", "modified", None),
        ("b", "deleted", None),
        ("c", "modified", None),
        ("d", "created", None),
    ]
    assert "-1\n+3\n" in (await diff(runner, "r2", "a")).patch
    assert named(await diff(runner, "r2", "c")) == [("c", "created", None)]
    assert named(await diff(runner)) == [(path, "created", None) for path in "acd"]
    assert named(await diff(runner, "r4")) == []
    await bash(runner, "echo 1 > a; rm c d; echo 1 > b", "r4")
    assert named(await diff(runner, "r2")) == []
    await runner.call("write_file", path="a", content="4\n")
    assert named(await diff(runner, "r4")) == [("a", "modified", None), ("b", "created", None)] + [
        (path, "deleted", None) for path in "cd"
    ]


@in_bwrap
async def test_large_texts_and_long_patches_are_named_not_cut(runner: Runner) -> None:
    await bash(runner, f"head -c {MAX_TEXT_BYTES + 1} /dev/zero | tr '\\0' a > large", "r1")
    await bash(runner, "for n in 1 2 3 4; do seq 40000 > long$n; done; echo x > z", "r1")
    found = await diff(runner, "r1")
    why = {path: reason for path, _, reason in named(found)}
    assert (why["large"], why["long1"], why["long4"]) == ("too_large", None, "no_room")
    assert json_bytes(found.patch) < MAX_PATCH_BYTES + 1000
    assert "+++ b/long1" in (await diff(runner, "r1", "long1")).patch


@in_bwrap
async def test_texts_whose_comparison_takes_too_long_are_replaced_as_a_whole(
    runner: Runner, tmp_path: Path
) -> None:
    """No line occurs often enough for `difflib` to ignore it, so that each search compares many pairs."""
    baseline = runner.workspace.baseline
    texts = ["".join(f"{(number * step) % 180}\n" for number in range(17_000)) for step in (7, 11)]
    baseline.begin(["f"], lambda _: Content("text", texts[0]))
    baseline.record("r1", {"f": "modified"}, lambda _: Content("text", texts[1]))
    limits = MarkdownLimits(cpu_s=1, timeout_s=60)
    found = await Diffs(limits).diff(runner.workspace, FileDiff(since="r1"))
    (tmp_path / "f").write_text(texts[0])
    applied(tmp_path, found.patch)
    assert (tmp_path / "f").read_text() == texts[1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "a\n"),
        ("a", ""),
        ("a\nb\nc\nd\ne\n", "a\nb\nc\nd\nX\ne\n"),
        ("a\na\n", "a\n"),
        ("a\nb", "a\nb\n"),
    ],
)
def test_a_plain_patch_applies(before: str, after: str, tmp_path: Path) -> None:
    file = FileTexts(path="f", before_kind="text", before=before, after_kind="text", after=after)
    (tmp_path / "f").write_text(before)
    applied(tmp_path, file_patch(file, plain=True))
    assert (tmp_path / "f").read_text() == after


def test_a_damaged_database_is_replaced(tmp_path: Path) -> None:
    baseline = Baseline(tmp_path / "baselines" / "acme.c1.db")
    baseline.begin(["f"], lambda _: Content("text", "old"))
    baseline.path.write_bytes(b"x" * 8192)
    baseline.record("r1", {"f": "modified"}, lambda _: Content("text", "new"))
    assert baseline.since("r1") == ([], 0)
    baseline.record("r1", {"f": "modified"}, lambda _: Content("text", "newer"))
    assert baseline.since("r1") == ([("f", Content("unknown"), Content("text", "newer"))], 0)


def test_changes_beyond_the_limits_are_counted(tmp_path: Path) -> None:
    baseline = Baseline(tmp_path / "acme.c1.db")
    baseline.record("r1", dict.fromkeys(map(str, range(2_500)), "created"), lambda _: Content("text", "x"))
    found, more = baseline.since("r1")
    assert (len(found), more) == (2_000, 500)
