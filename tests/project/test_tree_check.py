"""The tree check reports each violation with its file and line."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

CHECK = ROOT / "tools" / "check_tree.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository that contains only the check."""
    root = tmp_path / "somewhere" / "checkout"
    (root / "tools").mkdir(parents=True)
    (root / "tools" / CHECK.name).write_bytes(CHECK.read_bytes())
    subprocess.run(["git", "init", "--quiet", root], check=True)
    return root


def test_a_clean_tree_passes_without_output(tree: Path) -> None:
    (tree / "notes.md").write_text(
        "The page is at http://127.0.0.1:8080, the check at tools/check_tree.py.\n"
    )

    assert check(tree) == (0, [])


@pytest.mark.parametrize("host", ["py" + "pi.org", "files.python" + "hosted.org", "registry.npm" + "js.org"])
def test_a_registry_host_is_found_by_file_and_line(tree: Path, host: str) -> None:
    (tree / "pins.txt").write_text(f"one\ntwo https://{host}/simple\n")

    code, (finding,) = check(tree)

    assert code == 1
    assert finding.startswith("pins.txt:2: names a package registry: ")


@pytest.mark.parametrize("mark", ["<" * 7 + " HEAD", ">" * 7 + " 0a1b2c3d (Subject)"])
def test_the_mark_of_a_conflict_is_found_within_a_line(tree: Path, mark: str) -> None:
    (tree / "a.mjs").write_text(f"one();\nhtml`<p>`; {mark}\n")

    code, (finding,) = check(tree)

    assert (code, finding.partition(": ")[0]) == (1, "a.mjs:2")


def test_an_index_setting_is_found(tree: Path) -> None:
    (tree / "pins.txt").write_text("--extra-index-url anything\n")

    assert check(tree)[0] == 1


def test_a_path_of_the_checkout_or_its_parent_is_found(tree: Path) -> None:
    (tree / "a.txt").write_text(f"see {tree}/a.txt\n")
    (tree / "b.txt").write_text(f"see {tree.parent}/elsewhere\n")

    code, findings = check(tree)

    assert code == 1
    assert [finding.split(": ")[:2] for finding in findings] == [
        ["a.txt:1", "names a path of this machine"],
        ["b.txt:1", "names a path of this machine"],
    ]


def test_files_that_git_ignores_are_not_read(tree: Path) -> None:
    (tree / ".gitignore").write_text("private/\n")
    (tree / "private").mkdir()
    (tree / "private" / "pins.txt").write_text("--index-url anything\n")

    assert check(tree) == (0, [])


def test_an_init_file_directly_below_a_namespace_root_is_found(tree: Path) -> None:
    for package in ("shared/banksman", "shared/banksman/bus"):
        (tree / package).mkdir(parents=True)
        (tree / package / "__init__.py").touch()

    assert check(tree) == (
        1,
        ["shared/banksman/__init__.py:1: closes the namespace `banksman` for the other roots"],
    )


def check(tree: Path) -> tuple[int, list[str]]:
    """Run the tree's own check; its exit code and findings."""
    done = subprocess.run(
        [sys.executable, tree / "tools" / CHECK.name], capture_output=True, text=True, timeout=20
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()
