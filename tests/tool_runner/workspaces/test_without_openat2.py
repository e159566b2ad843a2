"""File access if the kernel has no `openat2`, or a seccomp profile refuses it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from banksman.tool_runner.workspaces.beneath import kernel_resolves_beneath, open_beneath, walk_beneath

HIDDEN = """
import errno, pyseccomp, sys
rules = pyseccomp.SyscallFilter(defaction=pyseccomp.ALLOW)
rules.add_rule(pyseccomp.ERRNO(getattr(errno, sys.argv[1])), "openat2")
rules.load()
"""
"""The beginning of a program that installs a real seccomp filter against openat2."""


def run_hidden(program: str, *arguments: str, number: str = "ENOSYS") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDDEN + program, number, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.timeout(300)
def test_the_file_tools_pass_all_their_tests_without_openat2() -> None:
    """Run all of `test_files.py`, including its races, in a process without openat2."""
    program = """
import pytest
from banksman.tool_runner.workspaces.beneath import kernel_resolves_beneath
assert not kernel_resolves_beneath()
code = pytest.main([sys.argv[2], "-q", "-k", "not docker", "-p", "no:cacheprovider"])
sys.exit(code)
"""
    ended = run_hidden(program, str(Path(__file__).with_name("test_files.py")))
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]
    assert " passed" in ended.stdout


@pytest.mark.parametrize("number", ["ENOSYS", "EPERM"])
def test_both_errors_of_a_seccomp_profile_mean_no_openat2(number: str) -> None:
    program = """
from banksman.tool_runner.workspaces.beneath import kernel_resolves_beneath
sys.exit(7 if not kernel_resolves_beneath() else 0)
"""
    assert run_hidden(program, number=number).returncode == 7


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A directory with links of every kind, and a secret beside it."""
    top = tmp_path_factory.mktemp("tree") / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top.parent / "secret").write_text("top secret")
    (top / "a" / "file").write_text("file")
    (top / "a" / "b" / "file").write_text("deep file")
    links = {
        "loop": "loop", "up": "..", "abs": "/etc", "root": "/", "out": "../secret", "in": "a/b",
        "file": "a/file", "slash": "a/", "dot": ".", "back": "a/b/../..", "chain": "in/../file",
        "a/up": "..", "a/out": "../..", "a/b/top": "../..", "dangling": "none", "proc": "/proc/self/root",
        "a/self": "../a", "empty-dir": "a//b/.",
    }  # fmt: skip
    for name, target in links.items():
        (top / name).symlink_to(target)
    os.mkfifo(top / "fifo")
    directory = os.open(top, os.O_RDONLY)
    yield directory
    os.close(directory)


names = st.sampled_from(
    ["a", "b", "file", "up", "abs", "root", "out", "in", "slash", "dot", "back", "chain", "top", "dangling",
     "self", "loop", "proc", "empty-dir", "none", "fifo", "..", ".", "", "secret", "x" * 256]
)  # fmt: skip
FLAGS = {
    "read": os.O_RDONLY | os.O_NONBLOCK,
    "directory": os.O_RDONLY | os.O_DIRECTORY,
    "create": os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NONBLOCK,
}


Way = Callable[[int, str, int, bool], int]


def kernel(directory: int, path: str, flags: int, links: bool) -> int:
    """Call `open_beneath`; repeat it while renames elsewhere on the machine cause EAGAIN."""
    while True:
        try:
            return open_beneath(directory, path, flags, links=links)
        except BlockingIOError:
            continue


def walk(directory: int, path: str, flags: int, links: bool) -> int:
    return walk_beneath(directory, path, flags, links=links)


def opened(way: Way, directory: int, path: str, flags: int, links: bool) -> object:
    """Return the opened file, or the error number."""
    try:
        fd = way(directory, path, flags, links)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    try:
        status = os.fstat(fd)
        return status.st_dev, status.st_ino
    finally:
        os.close(fd)


@settings(max_examples=400, deadline=None)
@given(st.lists(names, min_size=1, max_size=7), st.sampled_from(["read", "directory"]), st.booleans())
@example(["a", "up", "..", "secret"], "read", True)
@example(["in", "..", "..", "..", "secret"], "read", True)
def test_walk_opens_and_refuses_the_same_paths_as_openat2(
    tree: int, parts: list[str], kind: str, links: bool
) -> None:
    if not kernel_resolves_beneath():
        pytest.skip("this kernel has no openat2 to compare with")
    path = "/".join(parts)
    found = [opened(way, tree, path, FLAGS[kind], links) for way in (kernel, walk)]
    assert found[0] == found[1], path


@settings(max_examples=100, deadline=None)
@given(st.lists(names, min_size=1, max_size=5), st.booleans())
def test_the_walk_creates_only_inside_the_directory(tree: int, parts: list[str], links: bool) -> None:
    path = "/".join([*parts, "made"])
    with contextlib.suppress(OSError):
        fd = walk_beneath(tree, path, FLAGS["create"], links=links, mode=0o600)
        place = Path(os.readlink(f"/proc/self/fd/{fd}"))
        os.close(fd)
        top = Path(os.readlink(f"/proc/self/fd/{tree}"))
        place.unlink()
        assert place.is_relative_to(top)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("", "ENOENT"),
        ("/etc/passwd", "EXDEV"),
        ("..", "EXDEV"),
        ("a/../..", "EXDEV"),
        ("a/" * 2100 + "x", "ENAMETOOLONG"),
        ("x" * 256, "ENAMETOOLONG"),
        ("loop", "ELOOP"),
        ("a/file/x", "ENOTDIR"),
        ("a/file/", "ENOTDIR"),
    ],
)
def test_walk_uses_the_error_numbers_of_the_kernel(tree: int, path: str, number: str) -> None:
    with pytest.raises(OSError) as refused:
        walk_beneath(tree, path, os.O_RDONLY, links=True)
    assert errno.errorcode[refused.value.errno or 0] == number


def test_the_walk_refuses_nul(tree: int) -> None:
    with pytest.raises(ValueError, match="null"):
        walk_beneath(tree, "a\0b", os.O_RDONLY, links=True)


def test_walk_with_many_parent_steps_ends(tree: int, tmp_path: Path) -> None:
    """A chain of links with hundreds of steps down and up is refused instead of walked for minutes."""
    for number in range(30):
        (tmp_path / f"l{number}").symlink_to(f"l{number + 1}/" + "d/../" * 700)
    (tmp_path / "d").mkdir()
    (tmp_path / "l30").symlink_to(".")
    directory = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError) as refused:
        walk_beneath(directory, "l0/d", os.O_RDONLY, links=True)
    os.close(directory)
    assert refused.value.errno == errno.ELOOP


def test_the_walk_leaves_no_descriptor_open(tree: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a/b/file", "in/../file", "loop", "..", "none/x", "a/b/top/chain", "up/a"):
        with contextlib.suppress(OSError):
            os.close(walk_beneath(tree, path, os.O_RDONLY, links=True))
    assert len(os.listdir("/proc/self/fd")) == before
