"""read_file and write_file in the tool box, and the path checks below them."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.tool_runner.conftest import Runner, exists

from banksman.tool_runner.identity import SandboxIdentity, sandbox_identity
from banksman.tool_runner.workspaces import files
from banksman.tool_runner.workspaces.files import PathRefused, read_part, write_whole

SECRET = "top secret"
RENAME_EXCHANGE = 2


@pytest.fixture
def tree(runner: Runner) -> Path:
    """A workspace with a file, a directory, and every kind of link outside."""
    top = runner.workspace.directory
    (top.parent / "secret").write_text(SECRET)
    (top / "dir").mkdir()
    (top / "dir" / "inside.txt").write_text("inside")
    (top / "ok.txt").write_text("fine")
    for name, target in {
        "abs": "/etc/passwd",
        "rel": "../secret",
        "updir": "..",
        "rootdir": "/",
        "proc": "/proc/self/root",
        "fd": "/proc/self/fd",
        "loop": "loop",
        "good": "dir/inside.txt",
        "gooddir": "dir",
    }.items():
        (top / name).symlink_to(target)
    os.mkfifo(top / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        directory = os.open(top, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{directory}/socket")
        os.close(directory)
    with (top / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (top / "bad-utf8").write_bytes(b"a\xffb\xc3")
    return top


async def test_a_file_is_read_by_its_path_in_the_workspace(runner: Runner, tree: Path) -> None:
    """R67."""
    for path in (
        "dir/inside.txt",
        "/workspace/dir/inside.txt",
        "./dir/../dir/inside.txt",
        "good",
        "gooddir/inside.txt",
    ):
        outcome = await runner.call("read_file", path=path)
        assert (outcome.value["content"], outcome.value["truncated"]) == ("inside", False), path


async def test_missing_file_is_reported_as_an_error(runner: Runner) -> None:
    """R68."""
    outcome = await runner.call("read_file", path="data/none.json")
    assert outcome.value["error"] == "data/none.json: no such file"
    assert (outcome.is_error, outcome.error_kind) == (True, "tool_error")


@pytest.mark.parametrize(
    "path",
    [
        "../secret", "dir/../../secret", "/workspace/../secret", "/etc/passwd", "//etc/passwd",
        "/workspaces/x",
        "abs", "rel", "updir/secret", "rootdir/etc/passwd", "proc/etc/passwd", "proc", "fd/0", "loop",
        "a\0b", "", "x" * 300, "a/" * 2048, "\ud800", "dir/", "dir", ".", "fifo", "socket", "ok.txt/x",
        "ok.txt/",
        "OK.TXT", "/proc/self/environ", "~/x", "file:///etc/passwd",
    ],
)  # fmt: skip
async def test_only_a_regular_file_in_the_workspace_is_read(runner: Runner, tree: Path, path: str) -> None:
    """R69."""
    outcome = await runner.call("read_file", path=path)
    assert outcome.value["success"] is False
    assert "content" not in outcome.value
    assert SECRET not in str(outcome.value)
    assert outcome.value["error"]


async def test_a_sparse_terabyte_is_read_one_page_at_a_time(runner: Runner, tree: Path) -> None:
    refused = await runner.call("read_file", path="sparse")
    assert "binary data" in str(refused.value["error"])
    outcome = await runner.call("read_file", path="sparse", encoding="utf-8")
    assert outcome.value["truncated"] is True
    assert len(str(outcome.value["content"])) == 10_000
    assert outcome.value["total_bytes"] == 1 << 40


async def test_bytes_that_are_not_utf_8_are_not_replaced(runner: Runner, tree: Path) -> None:
    outcome = await runner.call("read_file", path="bad-utf8")
    content = str(outcome.value["content"])
    assert content.startswith("a") and len(content) == 4 and "\ufffd" not in content


async def test_joined_pages_equal_the_whole_text(runner: Runner) -> None:
    text = "añ€😀\n" * 9_000
    await runner.call("write_file", path="long.txt", content=text)
    pages, offset = "", 0
    while offset is not None:
        value = (await runner.call("read_file", path="long.txt", byte_offset=offset)).value
        pages += str(value["content"])
        offset = value.get("next_byte_offset")
    assert pages == text


async def test_write_creates_missing_directories(runner: Runner) -> None:
    """R70."""
    outcome = await runner.call("write_file", path="reports/deep/efficiency.md", content="# Größe")
    assert outcome.value == {
        "success": True,
        "path": "reports/deep/efficiency.md",
        "bytes": 9,
        "created": True,
        "message": "Created reports/deep/efficiency.md (9 bytes).",
    }
    assert (runner.workspace.directory / "reports/deep/efficiency.md").read_text() == "# Größe"


async def test_an_overwrite_is_confirmed_and_keeps_the_mode(runner: Runner, tree: Path) -> None:
    """R71."""
    (tree / "ok.txt").chmod(0o755)
    outcome = await runner.call("write_file", path="/workspace/ok.txt", content="new")
    assert (outcome.value["created"], outcome.changed[0].change) == (False, "modified")
    assert (tree / "ok.txt").read_text() == "new"
    assert (tree / "ok.txt").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "path",
    [
        "../p", "/tmp/banksman-p", "a/../../p", "/workspace/../p", "updir/p", "gooddir/p",
        "rootdir/tmp/banksman-p", "proc/tmp/banksman-p",
        "abs", "rel", "good", "loop", "fifo", "socket", "dir", "dir/", "", ".", "a\0b", "\ud800", "x" * 300,
        "ok.txt/p", ".banksman-x.tmp", "dir/.banksman-y",
    ],
)  # fmt: skip
async def test_write_outside_or_through_a_link_is_refused(runner: Runner, tree: Path, path: str) -> None:
    """R72."""
    before = snapshot(tree)
    outcome = await runner.call("write_file", path=path, content="owned")
    assert outcome.value["success"] is False
    assert snapshot(tree) == before
    assert (tree.parent / "secret").read_text() == SECRET
    assert not exists("/tmp/banksman-p")
    assert not (tree.parent / "p").exists()


async def test_write_does_not_affect_other_hard_links(runner: Runner, tree: Path) -> None:
    os.link(tree / "ok.txt", tree / "twin")
    assert (await runner.call("read_file", path="twin")).value["content"] == "fine"
    await runner.call("write_file", path="twin", content="mine")
    assert ((tree / "ok.txt").read_text(), (tree / "twin").read_text()) == ("fine", "mine")


def test_reader_sees_either_the_old_or_the_new_content(root: Path) -> None:
    identity = sandbox_identity()
    contents = (b"a" * 200_000, b"b" * 200_000)
    write_whole(root, "file", contents[0], identity)
    with repeating(lambda number: write_whole(root, "file", contents[number % 2], identity)) as turns:
        seen = turns.attempt(300, lambda: read_part(root, "file", offset=0, max_bytes=1 << 20).data)
    assert turns.count > 10
    assert set(seen) <= set(contents)


def test_directory_replaced_by_a_link_never_leads_outside(root: Path) -> None:
    top, outside = _workspace_with_outside(root)
    identity = sandbox_identity()
    with _swapping(top) as turns:
        reads = turns.attempt(4000, lambda: read_part(top, "dir/file", offset=0, max_bytes=99).data)
        writes = turns.attempt(2000, lambda: write_whole(top, "dir/new", b"x", identity))
    assert turns.count > 100
    assert set(reads) == {b"inside", "refused"}
    assert set(writes) == {False, "refused"}
    assert sorted(os.listdir(outside)) == ["file"]


def _workspace_with_outside(root: Path) -> tuple[Path, Path]:
    top, outside = root / "own", root / "outside"
    (top / "dir").mkdir(parents=True)
    (top / "dir" / "file").write_text("inside")
    (top / "dir" / "new").write_text("old")
    outside.mkdir()
    (outside / "file").write_text(SECRET)
    (top / "link").symlink_to(outside)
    return top, outside


class repeating:
    """Repeat an action in a thread while the block runs."""

    def __init__(self, action: Callable[[int], object]) -> None:
        self._action = action
        self._done = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._loop)

    def _loop(self) -> None:
        while not self._done.is_set():
            self._action(self.count)
            self.count += 1

    def attempt(self, count: int, attempt: Callable[[], object]) -> list[object]:
        """Return the outcomes of `count` attempts, and of more until the action was repeated 100 times.

        On a busy machine, all attempts may fit between two repetitions.
        """
        outcomes: list[object] = []
        first, deadline = self.count, time.monotonic() + WAIT_TIMEOUT_S
        while len(outcomes) < count or (self.count - first <= 100 and time.monotonic() < deadline):
            outcomes.append(outcome(attempt))
        return outcomes

    def __enter__(self) -> repeating:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(5)


def _swapping(top: Path) -> repeating:
    """Exchange the names `dir` (a directory) and `link` (to one outside) atomically."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = [os.fsencode(top / name) for name in ("dir", "link")]
    return repeating(lambda _: libc.renameat2(-100, names[0], -100, names[1], RENAME_EXCHANGE))


def outcome(attempt: Callable[[], object]) -> object:
    try:
        return attempt()
    except PathRefused:
        return "refused"


_PIECES = st.sampled_from(
    (
        "..", ".", "dir", "ok.txt", "updir", "rootdir", "proc", "rel", "abs", "gooddir", "new", "", "secret",
        "etc", "passwd", "workspace", "self", "root", "inside.txt", "a\u0301", "\u2025", "..\u200b", "%2e%2e",
        "..\\", " ..",
    )
)  # fmt: skip
_PATHS = st.one_of(
    st.lists(_PIECES, max_size=8).map("/".join),
    st.lists(_PIECES, max_size=6).map(lambda parts: "/workspace/" + "/".join(parts)),
    st.text(max_size=40),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=_PATHS)
def test_no_path_reads_outside_the_workspace(tree: Path, path: str) -> None:
    """R69, for every path."""
    try:
        data = read_part(tree, path, offset=0, max_bytes=1000).data
    except PathRefused:
        return
    assert data in (b"inside", b"fine", bytes(1000), b"a\xffb\xc3")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=_PATHS)
def test_no_path_writes_outside_the_workspace(tree: Path, path: str) -> None:
    """R72, for every path: a write is refused, or the same path reads it back from inside."""
    neighbours = sorted(os.listdir(tree.parent))
    try:
        write_whole(tree, path, b"written", sandbox_identity())
    except PathRefused:
        pass
    else:
        assert (
            read_part(tree, os.path.normpath(files.relative(path)), offset=0, max_bytes=99).data == b"written"
        )
        files.delete(tree, path)
        (tree / "dir").mkdir(exist_ok=True)
        (tree / "ok.txt").write_text("fine")
        (tree / "dir" / "inside.txt").write_text("inside")
    assert (tree.parent / "secret").read_text() == SECRET
    assert sorted(os.listdir(tree.parent)) == neighbours


async def test_a_listing_shows_regular_files_only(runner: Runner, tree: Path) -> None:
    (tree / "dir" / ".banksman-0123.tmp").write_text("half")
    (tree / "dir" / ".hidden").write_text("")
    entries = files.listing(tree, max_entries=100).items
    assert [entry.path for entry in entries] == [
        "bad-utf8",
        "dir/.hidden",
        "dir/inside.txt",
        "ok.txt",
        "sparse",
    ]
    assert {entry.path: entry.size for entry in entries}["dir/inside.txt"] == 6
    cut = files.listing(tree, max_entries=2)
    assert ([entry.path for entry in cut.items], cut.more) == (["bad-utf8", "dir/.hidden"], True)
    rest = files.listing(tree, after="dir/.hidden", max_entries=3)
    assert ([entry.path for entry in rest.items], rest.more) == (
        ["dir/inside.txt", "ok.txt", "sparse"],
        False,
    )


def test_a_listing_of_long_paths_has_a_limited_size(tmp_path: Path) -> None:
    """A command creates a path of 4,000 bytes with a name of 4: many of them must fit into a reply."""
    names = [f"{number:04}" for number in range(600)]
    top = nested(tmp_path, ["d" * 250] * 15, names)
    tracemalloc.start()
    found: list[str] = []
    more, pages = True, 0
    while more:
        listed = files.listing(tmp_path, after=found[-1] if found else "", max_entries=10_000)
        found += [entry.path for entry in listed.items]
        more, pages = listed.more, pages + 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert found == [f"{top}/{name}" for name in names]
    assert pages == 1 + sum(len(path) for path in found) // files.MAX_LISTED_BYTES
    assert peak < sum(len(path) for path in found) + 3 * files.MAX_LISTED_BYTES


def test_a_listing_leaves_out_paths_that_no_request_can_open(tmp_path: Path) -> None:
    """Commands can create them by changing the directory; each would take 128 KB of the runner's memory."""
    nested(tmp_path, ["🏗" + "d" * 240] * 120, [f"{number}" for number in range(300)])
    (tmp_path / "ok.txt").touch()
    tracemalloc.start()
    listed = files.listing(tmp_path, max_entries=10_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert [entry.path for entry in listed.items] == ["ok.txt"]
    assert peak < 1_000_000


def nested(top: Path, directories: list[str], names: list[str]) -> str:
    """Create empty files below nested directories; return the path of their directory."""
    fd = os.open(top, os.O_RDONLY)
    for directory in directories:
        os.mkdir(directory, dir_fd=fd)
        below = os.open(directory, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    return "/".join(directories)


async def test_temporary_files_of_interrupted_writes_are_deleted(runner: Runner, tree: Path) -> None:
    (tree / "dir" / ".banksman-0123.tmp").write_text("half")
    assert files.sweep_temporaries(tree) == 1
    assert not (tree / "dir" / ".banksman-0123.tmp").exists()


async def test_file_is_deleted_by_path_and_never_through_a_link(runner: Runner, tree: Path) -> None:
    files.delete(tree, "dir/inside.txt")
    files.delete(tree, "rel")
    for path in ("dir/inside.txt", "updir/secret", "../secret", "dir"):
        with pytest.raises(PathRefused):
            files.delete(tree, path)
    assert (tree.parent / "secret").exists()


def snapshot(top: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_ino) for path in _all(top))


def _all(top: Path) -> Iterator[Path]:
    for directory, names, plain in os.walk(top):
        yield from (Path(directory) / name for name in (*names, *plain))


def test_files_written_by_a_root_runner_belong_to_the_sandbox_user(root: Path) -> None:
    identity = SandboxIdentity(os.geteuid(), os.getegid(), switches=False)
    assert write_whole(root, "plain", b"x", identity) is True
    assert (root / "plain").stat().st_uid == os.geteuid()
