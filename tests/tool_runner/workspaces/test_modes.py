"""Modes of entries that a process replaces by links meanwhile."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from banksman.tool_runner.workspaces.beneath import change_mode
from banksman.tool_runner.workspaces.quota import delete_tree

ATTEMPTS = 300
_SWAP = """
import ctypes, sys
libc = ctypes.CDLL(None)
one, other = (name.encode() for name in sys.argv[1:])
print(flush=True)
while True:
    # RENAME_EXCHANGE: each name always exists.
    libc.renameat2(-100, one, -100, other, 2)
"""


@contextlib.contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Exchange two names continuously in another process."""
    with subprocess.Popen([sys.executable, "-c", _SWAP, one, other], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@pytest.fixture
def victim(root: Path) -> Path:
    """A directory that no deletion may change."""
    directory = root / "victim"
    directory.mkdir()
    directory.chmod(0o755)
    return directory


def test_mode_is_never_changed_through_a_link(root: Path, victim: Path) -> None:
    (root / "link").symlink_to(victim)
    with pytest.raises(OSError):
        change_mode(str(root / "link"), None, 0o700)
    assert victim.stat().st_mode & 0o777 == 0o755


def test_deletion_changes_no_directory_behind_a_link_that_appears_meanwhile(root: Path, victim: Path) -> None:
    below = root / "top" / "below"
    with swapping(below / "entry", below / "link"):
        for _ in range(ATTEMPTS):
            (below / "entry").mkdir(parents=True)
            (below / "link").symlink_to(victim)
            while (root / "top").exists():
                # A deletion ends with an error when an entry becomes a link meanwhile.
                with contextlib.suppress(OSError):
                    delete_tree(root / "top")
                assert victim.stat().st_mode & 0o777 == 0o755
