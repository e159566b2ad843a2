"""docs/requirements.md: the texts of the specification, and the results of the suite that wrote it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

ALL = "tests/scenarios/test_all.py::test_all"
OTHER = "tests/other/test_one.py::test_one"
FINISH = "import json, runpy, sys; page = runpy.run_path('tools/requirements.py'); print(json.dumps(page['finish'](json.loads(sys.argv[1]))))"  # noqa: E501  # a program


def rows(text: str) -> str:
    return "".join(
        f"| R{number} | {text} {number} | 000:L{number} | passed | `test` |\n" for number in range(1, 115)
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository whose page states that all requirements passed, and whose tests cite all."""
    tree = tmp_path / "tree"
    (tree / "docs").mkdir(parents=True)
    (tree / "tools").mkdir()
    shutil.copy(ROOT / "tools/requirements.py", tree / "tools")
    (tree / "docs/requirements.md").write_text(rows("must hold"))
    cited = ", ".join(f"R{number}" for number in range(1, 115))
    for test, numbers in ((ALL, cited), (OTHER, "R7")):
        file, _, name = test.partition("::")
        (tree / file).parent.mkdir(parents=True)
        (tree / file).write_text(f'def {name}():\n    """{numbers}"""\n')
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *identity, *command], cwd=tree, check=True)
    return tree


def finish(tree: Path, **outcomes: str) -> list[str]:
    """Return the differences from the committed page after a run with these outcomes."""
    named = {ALL: outcomes["all"], OTHER: outcomes["other"]}
    command = [sys.executable, "-c", FINISH, json.dumps(named)]
    return json.loads(subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout)


def check(tree: Path) -> tuple[int, str]:
    command = [sys.executable, "tools/requirements.py", "--check"]
    done = subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_a_run_writes_its_commit_and_results_and_names_differences_from_the_committed_page(
    tree: Path,
) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, text=True, check=True)

    assert finish(tree, all="passed", other="passed") == []
    assert finish(tree, all="passed", other="skipped") == []
    agreed = (tree / "docs/requirements.md").read_text()
    assert finish(tree, all="passed", other="failed") == ["R7"]
    assert len(finish(tree, all="skipped", other="passed")) == 114

    assert "**114 of 114** passed" in agreed and head.stdout[:10] in agreed
    assert "| R7 | must hold 7 | 000:L7 | passed |" in agreed
    assert "**0 of 114** passed" in (tree / "docs/requirements.md").read_text()


def test_texts_are_compared_with_the_specification_where_it_is_at_hand(tree: Path) -> None:
    assert check(tree) == (0, "")
    shared = tree.parent / "shared"
    shared.mkdir()
    (shared / "requirements.md").write_text(rows("must hold").replace("must hold 9 ", "must really hold 9 "))

    code, problems = check(tree)

    assert code == 1 and "differs" in problems and "R9;" in problems
