"""The word check finds words to be replaced, in prose and in test names only."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

WORD = "no" + "body"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository that contains only the checks."""
    (tmp_path / "tools").mkdir()
    for name in ("check_words.py", "check_tree.py"):
        (tmp_path / "tools" / name).write_bytes((ROOT / "tools" / name).read_bytes())
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("page.md", f"one\nA run that {WORD} follows.\n"),
        ("code.py", f'one = 1\n"""What {WORD} reads."""\n'),
        ("code.py", f"one = 1\ntwo = 2  # {WORD} reads it\n"),
        ("test_code.py", f"\ndef test_{WORD}_waits() -> None: ...\n"),
    ],
)
def test_a_replaced_word_is_found_by_file_and_line(tree: Path, file: str, text: str) -> None:
    (tree / file).write_text(text)

    assert check(tree) == (1, [f'{file}:2: "{WORD}" is not in the glossary of CONTRIBUTING.md'])


def test_values_in_code_may_contain_the_word(tree: Path) -> None:
    (tree / "code.py").write_text(f'user = "{WORD}"\n')

    assert check(tree) == (0, [])


def check(tree: Path) -> tuple[int, list[str]]:
    """Run the tree's own check; its exit code and findings."""
    done = subprocess.run(
        [sys.executable, tree / "tools" / "check_words.py"], capture_output=True, text=True, timeout=20
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()
