"""Untrusted snapshots are refused completely, and nothing outside the target changes."""

from __future__ import annotations

import io
import os
import stat
import struct
import tarfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.settings import WorkspaceLimits
from banksman.tool_runner.workspaces.archive import (
    MAX_PATHS_BYTES,
    Contents,
    SnapshotRefused,
    read_archive,
    write_archive,
)
from banksman.tool_runner.workspaces.links import link_stays

ME = SandboxIdentity(os.geteuid(), os.getegid(), switches=False)
LIMITS = WorkspaceLimits(max_bytes=1_000_000, max_entries=50, max_depth=8)
EVERYTHING = WorkspaceLimits()
OUTSIDE = b"outside"

Member = tuple[tarfile.TarInfo, bytes]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The target of a restore, with another file beside it."""
    (tmp_path / "outside").write_bytes(OUTSIDE)
    directory = tmp_path / "workspace"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture(autouse=True)
def nothing_outside(tmp_path: Path) -> Iterator[None]:
    """Check after each test that the directory beside the workspace is unchanged."""
    yield
    assert set(os.listdir(tmp_path)) <= {"outside", "workspace", "source"}
    outside = tmp_path / "outside"
    assert not outside.exists() or (outside.read_bytes(), outside.stat().st_nlink) == (OUTSIDE, 1)


def entry(name: str, data: bytes = b"", **fields: object) -> Member:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in fields.items():
        setattr(member, field, value)
    return member, data


def directory(name: str) -> Member:
    return entry(name, type=tarfile.DIRTYPE, mode=0o755)


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> Member:
    return entry(name, type=kind, linkname=to)


def packed(*members: Member) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return compressed(plain.getvalue())


def compressed(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(plain)


def restore(data: bytes, target: Path, *, entries: int = 1, size: int = 0) -> None:
    read_archive(io.BytesIO(data), target, ME, LIMITS, expected=Contents(entries, size))


def refused(data: bytes, target: Path, *, because: str, entries: int = 1, size: int = 0) -> None:
    with pytest.raises(SnapshotRefused, match=because):
        restore(data, target, entries=entries, size=size)


def fill(root: Path) -> None:
    """Create a tree with every kind of file that commands create."""
    (root / "d" / "deep").mkdir(parents=True)
    (root / "d" / "deep" / "text").write_text("text")
    (root / "empty").mkdir()
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    os.link(root / "d" / "deep" / "text", root / "twin")
    (root / "near").symlink_to("d/deep/text")
    (root / "python").symlink_to("/usr/bin/python3")
    (root / ("long" * 50)).write_text("a long name")
    (root / "line\nbreak and Ünïcode").write_text("x")
    os.write(fd := os.open(bytes(root) + b"/not-utf8-\xff", os.O_WRONLY | os.O_CREAT), b"raw")
    os.close(fd)
    (root / "closed").write_text("unreadable")
    (root / "closed").chmod(0)
    os.utime(root / "run", (1_000_000_000, 1_000_000_000))


def test_snapshot_restores_all_files(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    fill(source)
    file = io.BytesIO()
    contents = write_archive(source, file, EVERYTHING)
    file.seek(0)
    read_archive(file, target, ME, EVERYTHING, expected=contents)
    assert seen(target) == seen(source)
    assert (target / "twin").stat().st_ino == (target / "d" / "deep" / "text").stat().st_ino
    assert (target / "run").stat().st_mtime == 1_000_000_000


def seen(root: Path) -> dict[bytes, tuple[int, bytes]]:
    """Return each path with its mode and its content or target."""
    found: dict[bytes, tuple[int, bytes]] = {}
    for base, names, files in os.walk(os.fsencode(root)):
        for name in (*names, *files):
            path = os.path.join(base, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode) and (os.geteuid() == 0 or mode & 0o400):
                content = Path(os.fsdecode(path)).read_bytes()
            else:
                content = b""
            found[os.path.relpath(path, os.fsencode(root))] = (mode, content)
    return found


def test_snapshot_omits_special_files_and_links_that_point_outside(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "kept").write_text("kept")
    os.mkfifo(source / "pipe")
    (source / "up").symlink_to("../outside")
    (source / "etc").symlink_to("/etc/passwd")
    file = io.BytesIO()
    contents = write_archive(source, file, EVERYTHING)
    file.seek(0)
    read_archive(file, target, ME, EVERYTHING, expected=contents)
    assert os.listdir(target) == ["kept"]


@pytest.mark.parametrize("name", ["../outside", "d/../../outside", "/etc/x", "a//b", "./a", "..", "a/."])
def test_a_path_that_leaves_the_workspace_is_refused(target: Path, name: str) -> None:
    refused(packed(entry(name, b"evil")), target, because="not a path inside", size=4)


def test_absolute_path_in_an_archive_is_refused(target: Path) -> None:
    refused(packed(entry(str(target / "a"), b"evil")), target, because="not a path inside", size=4)


@pytest.mark.parametrize("to", ["../outside", "/etc/passwd", "d/../../outside", "/usr/../etc/shadow", ""])
def test_symbolic_link_that_points_outside_is_refused(target: Path, to: str) -> None:
    refused(packed(link("a", to)), target, because="points out")


THROUGH = {
    "up": (("a/b/up", "../.."), ("a/out", "b/up/../outside")),
    "to itself": (("here", "."), ("out", "here/../outside")),
    "two": (("a/b/one", "../.."), ("two", "a/b/one/."), ("a/b/out", "../../two/../outside")),
    "by its absolute path": (("a/b/up", "/workspace"), ("out", "a/b/up/../outside")),
    "to the system": (("lib", "/usr"), ("a/b/out", "../../lib/../etc/passwd")),
}
"""Links that stay inside by their text, and `out`, which leaves through another."""


@pytest.mark.parametrize("links", THROUGH.values(), ids=THROUGH)
@pytest.mark.parametrize("order", [1, -1])
def test_a_link_that_leaves_through_another_is_neither_stored_nor_restored(
    tmp_path: Path, target: Path, links: tuple[tuple[str, str], ...], order: int
) -> None:
    source = tmp_path / "source"
    (source / "a/b").mkdir(parents=True)
    for name, to in links[::order]:
        (source / name).symlink_to(to)
    kept = [name for name, _ in links if not name.endswith("out")]
    stored = io.BytesIO()
    contents = write_archive(source, stored, EVERYTHING)
    members = (directory("a"), directory("a/b"), *(link(name, to) for name, to in links[::order]))

    restore(packed(*members), target, entries=2 + len(links))
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_symlink()) == kept
    assert contents.entries == 2 + len(kept)


def test_links_in_circles_and_endless_targets_are_bounded(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "self").symlink_to("self")
    (source / "long").symlink_to("/".join(["long/x"] * 500))
    for number in range(200):
        (source / f"loop-{number}").symlink_to("/".join(["self/.."] * 500))
        (source / f"chain-{number}").symlink_to(f"chain-{number + 1}")
    stored = io.BytesIO()
    started = time.process_time()
    contents = write_archive(source, stored, EVERYTHING)
    stored.seek(0)
    read_archive(stored, target, ME, EVERYTHING, expected=contents)
    assert (target / "self").is_symlink()
    assert time.process_time() - started < 5


def test_restore_writes_nothing_through_a_link(target: Path) -> None:
    members = (directory("d"), link("through", "d"), entry("through/a", b"evil"))
    refused(packed(*members), target, because="contradict", entries=3, size=4)
    assert os.listdir(target / "d") == []


def test_restore_refuses_repeated_entries(target: Path) -> None:
    refused(packed(entry("a", b"one"), entry("a", b"two")), target, because="twice", entries=2, size=6)
    refused(packed(link("b", "a"), entry("b", b"evil")), target, because="contradict", entries=2, size=4)


@pytest.mark.parametrize("to", ["../outside", "/etc/passwd", "missing", "link"])
def test_hard_link_to_a_missing_entry_is_refused(target: Path, to: str) -> None:
    members = (link("link", "/usr/bin/env"), link("a", to, tarfile.LNKTYPE))
    refused(packed(*members), target, because="hard link", entries=2)


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_a_device_or_a_pipe_is_refused(target: Path, kind: bytes) -> None:
    refused(packed(entry("a", type=kind, devmajor=1, devminor=5)), target, because="neither a file")


def test_restore_removes_setuid_setgid_and_sticky_bits(target: Path) -> None:
    restore(packed(entry("a", b"x", mode=0o6777)), target, size=1)
    assert stat.S_IMODE((target / "a").stat().st_mode) == 0o777


def test_a_sparse_file_with_any_stated_size_is_refused(target: Path) -> None:
    sparse = entry("a", b"x" * 512)
    sparse[0].pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,512",
        "GNU.sparse.size": "999999999999",
    }
    refused(packed(sparse), target, because="neither a file|more than", size=512)


def test_file_with_a_huge_stated_size_is_refused_before_writing(target: Path) -> None:
    huge = tarfile.TarInfo("a")
    huge.size = 10**15
    header = huge.tobuf(tarfile.PAX_FORMAT)
    refused(compressed(header), target, because="more than 1000000 bytes")
    assert os.listdir(target) == []


def test_more_files_than_a_workspace_may_have_are_refused(target: Path) -> None:
    members = [entry(f"f{number}") for number in range(LIMITS.max_entries + 1)]
    refused(packed(*members), target, because="more than 50 files", entries=51)


def test_more_bytes_than_a_workspace_may_have_are_refused(target: Path) -> None:
    members = [entry(f"f{number}", b"x" * 400_000) for number in range(3)]
    refused(packed(*members), target, because="more than 1000000 bytes", entries=3, size=1_200_000)


def test_a_snapshot_keeps_no_entries_in_memory(tmp_path: Path) -> None:
    """A path of 4,000 bytes costs a command 8 bytes; with each, tarfile would keep 18 KB of the runner."""
    top = long_paths(tmp_path / "source", files=1_000)
    tracemalloc.start()
    with open(os.devnull, "wb") as nowhere:
        contents = write_archive(top, nowhere, EVERYTHING)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert contents.entries == 1_015
    assert peak < 5_000_000


def test_a_snapshot_has_a_limited_size_of_all_paths(target: Path, tmp_path: Path) -> None:
    """Both sides need the paths: the writer those of files with several names, the reader all of them."""
    top = long_paths(tmp_path / "source", files=MAX_PATHS_BYTES // 3_700)
    with pytest.raises(SnapshotRefused, match="paths have more than"), open(os.devnull, "wb") as nowhere:
        write_archive(top, nowhere, EVERYTHING)

    parents = ["/".join(["d" * 250] * depth) for depth in range(1, 16)]
    members = [directory(name) for name in parents]
    members += [link(f"{parents[-1]}/{number}", "0") for number in range(MAX_PATHS_BYTES // 3_700)]
    with pytest.raises(SnapshotRefused, match="paths have more than"):
        expected = Contents(len(members), 0)
        read_archive(io.BytesIO(packed(*members)), target, ME, EVERYTHING, expected=expected)


def long_paths(top: Path, *, files: int) -> Path:
    """Create a tree with a number of empty files, whose paths have about 3,770 bytes."""
    fd = -1
    for name in (str(top), *["d" * 250] * 15):
        parent = fd if fd >= 0 else None
        os.mkdir(name, dir_fd=parent)
        below = os.open(name, os.O_RDONLY, dir_fd=parent)
        if fd >= 0:
            os.close(fd)
        fd = below
    for number in range(files):
        os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    return top


def test_directories_that_are_too_deep_are_refused(target: Path) -> None:
    members = [directory("/".join("d" * depth)) for depth in range(1, LIMITS.max_depth + 2)]
    refused(packed(*members), target, because="not a path inside", entries=9)


def test_an_entry_without_its_directory_is_refused(target: Path) -> None:
    refused(packed(entry("missing/a", b"x")), target, because="contradict", size=1)


def test_archive_that_unpacks_without_end_is_refused(target: Path) -> None:
    """A hundred megabytes of one byte compress to ten kilobytes."""
    first, _ = entry("a")
    first.size = 100_000_000
    bomb = compressed(first.tobuf() + bytes(100_000_000))
    assert len(bomb) < 20_000
    refused(bomb, target, because="more than")
    members = packed(entry("a", b"x")) + compressed(bytes(100_000_000))
    restore(members, target, size=1)


def test_endless_padding_in_an_archive_is_refused(target: Path) -> None:
    """Data between two files is limited too."""
    global_header = tarfile.TarInfo("pax")
    global_header.type, global_header.size = tarfile.XGLTYPE, 900_000
    filler = b"900000 comment=".ljust(899_999, b"x") + b"\n"
    block = global_header.tobuf() + filler + bytes(-len(filler) % 512)
    refused(compressed(block * 40), target, because="more than a workspace may contain|damaged")


def test_archive_header_that_needs_too_much_memory_is_refused(target: Path) -> None:
    long = tarfile.TarInfo("pax")
    long.type, long.size = tarfile.XHDTYPE, 2**31
    refused(compressed(long.tobuf() + bytes(4096)), target, because="header that is too long")


def test_nested_archive_headers_are_refused(target: Path) -> None:
    """tarfile reads each header recursively, within the read of the previous header."""
    record = b"14 comment=ab\n".ljust(512, b"\0")
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 14
    refused(compressed((header.tobuf() + record) * 3000), target, because="damaged|header|more than")


def test_compression_window_that_needs_too_much_memory_is_refused(target: Path) -> None:
    magic = struct.pack("<I", 0xFD2FB528)
    frame = magic + bytes([0x00, (27 - 10) << 3]) + b"\x01\x00\x00"
    refused(frame, target, because="damaged", entries=0)


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_truncated_snapshot_is_refused(target: Path, cut: int) -> None:
    data = packed(entry("a", os.urandom(5000)), entry("b", os.urandom(5000)))
    refused(data[:-cut], target, because="damaged|ends in the middle", entries=2, size=10_001)


def test_snapshot_with_missing_entries_is_refused(target: Path) -> None:
    """tarfile treats a broken header in the middle as the end."""
    plain = zstandard.ZstdDecompressor().decompress(packed(entry("a", b"x"), entry("b", b"y")))
    broken = plain[:1024] + bytes([plain[1024] ^ 0xFF]) + plain[1025:]
    refused(compressed(broken), target, because="1 of 2 entries|damaged", entries=2, size=2)


@pytest.mark.parametrize("data", [b"", b"no archive", compressed(b"no archive"), compressed(b"")])
def test_data_that_is_not_an_archive_is_refused(target: Path, data: bytes) -> None:
    refused(data, target, because="damaged")


@pytest.mark.parametrize(
    ("limits", "because"),
    [
        (WorkspaceLimits(max_bytes=10), "more than 10 bytes"),
        (WorkspaceLimits(max_entries=2), "more than 2 files"),
        (WorkspaceLimits(max_depth=2), "deeper"),
    ],
)
def test_workspace_that_could_not_be_restored_is_not_snapshotted(
    tmp_path: Path, limits: WorkspaceLimits, because: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    fill(source)
    with pytest.raises(SnapshotRefused, match=because):
        write_archive(source, io.BytesIO(), limits)


@pytest.mark.parametrize(
    ("path", "to", "stays"),
    [
        ("a", "b", True),
        ("d/a", "../b", True),
        ("d/a", "../../b", False),
        ("bin/python", "/usr/bin/python3", True),
        ("a", "/workspace/d", True),
        ("a", "/usr/../etc", False),
        ("a", "/usrlocal", False),
        ("a", "x" * 5000, False),
    ],
)
def test_links_point_inside_or_to_directories_of_every_sandbox(path: str, to: str, stays: bool) -> None:
    assert link_stays(path, to) is stays


def test_thousand_damaged_snapshots_are_refused_or_harmless(tmp_path: Path, target: Path) -> None:
    """With one changed byte, either all restored files stay inside, or nothing is restored."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "d").mkdir()
    (source / "d" / "a").write_text("text")
    (source / "link").symlink_to("d/a")
    file = io.BytesIO()
    contents = write_archive(source, file, LIMITS)
    plain = bytearray(zstandard.ZstdDecompressor().decompressobj().decompress(file.getvalue()))
    for position in range(0, 3 * 1024, 3):
        damaged = bytearray(plain)
        damaged[position] ^= 0x55
        place = target / str(position)
        place.mkdir()
        try:
            read_archive(io.BytesIO(compressed(bytes(damaged))), place, ME, LIMITS, expected=contents)
        except SnapshotRefused:
            continue
