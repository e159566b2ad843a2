"""One mutation, and how it is tried."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

LIMIT_S = 300
BROKEN = "broken: "
"""Begins the report of tests that did not run to a failed assertion, which proves nothing about a mutant."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A required behaviour that is removed, and the test that must fail then."""

    requirement: str
    """`R1` to `R114`."""
    name: str
    """The behaviour that no longer holds."""
    file: str
    """The source, relative to the root."""
    old: str
    """Text that occurs in the file exactly once."""
    new: str
    test: str
    """Node id of a test, relative to the root; several are separated by blanks."""

    def problem(self, root: Path = ROOT) -> str | None:
        """Return why the mutant cannot be applied; None if it can."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        count = path.read_text(encoding="utf-8").count(self.old)
        missing = [test for test in self.test.split() if not (root / test.partition("::")[0]).is_file()]
        if count != 1:
            return f"{self.file} contains its text {count} times"
        return f"{missing[0]} does not exist" if missing else None


class Copy:
    """A copy of the tree in which one mutant at a time is applied."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in filter(None, listed.split("\0")):
            source = ROOT / name
            if source.is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, self.root / name)
        self._python = _environment(self.root)
        self.unchanged = cache(self._failure)
        """Return the first test that fails without a mutant; empty if none does."""

    def failure(self, mutant: Mutant) -> str:
        """Return the first test that fails with a mutant applied; empty if none does."""
        path = self.root / mutant.file
        source = path.read_text(encoding="utf-8")
        path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            return self._failure(mutant.test)
        finally:
            path.write_text(source, encoding="utf-8")

    def _failure(self, tests: str) -> str:
        command = [
            str(self._python),
            "-m",
            "pytest",
            "-x",
            "-q",
            "-n0",
            "-p",
            "no:cacheprovider",
            *tests.split(),
        ]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{BROKEN}the time limit"
        # A failed test may also leave something behind that its fixtures report as errors.
        if failed := re.search(r"^FAILED (tests/\S+)", done.stdout, re.MULTILINE):
            return failed[1]
        if broken := re.search(r"^ERROR (tests/\S+)", done.stdout, re.MULTILINE):
            return f"{BROKEN}{broken[1]}"
        if done.returncode != 0:
            return f"{BROKEN}exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}"
        return ""


def _environment(root: Path) -> Path:
    """Create a virtual environment that imports the packages of a tree; return its interpreter.

    Not `PYTHONPATH`: services get an environment without the variables of the tests.
    """
    installed, own = Path(sys.prefix), root / ".venv"
    packages = Path(sysconfig.get_path("purelib")).relative_to(installed)
    for folder in (Path("bin"), packages):
        (own / folder).mkdir(parents=True)
        for entry in (installed / folder).iterdir():
            (own / folder / entry.name).symlink_to(entry)
    shutil.copy2(installed / "pyvenv.cfg", own)
    paths = own / packages / "_banksman.pth"
    text = paths.read_text(encoding="utf-8").replace(str(ROOT), str(root))
    paths.unlink()
    paths.write_text(text, encoding="utf-8")
    return own / "bin/python"
