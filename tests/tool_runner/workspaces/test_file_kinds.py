"""Files of every name, content and kind, with the functions that tools and file requests share."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.workspaces import files
from banksman.tool_runner.workspaces.files import PathRefused, read_part, write_whole

US = SandboxIdentity(os.geteuid(), os.getegid(), switches=False)
names = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=60)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    directory = tmp_path / "workspace"
    directory.mkdir()
    (tmp_path / "secret").write_text("top secret")
    return directory


@settings(max_examples=150, deadline=None, suppress_health_check=(HealthCheck.function_scoped_fixture,))
@given(st.lists(names, min_size=1, max_size=3), st.binary(max_size=200))
@example(["\n\x1b[2J‮"], b"x")
@example(["cafe\u0301"], b"NFD")
@example(["..."], b"dots")
@example(["-rf"], b"a dash")
@example(["x" * 60, "é" * 60], b"long")
def test_file_with_any_name_is_read_listed_and_deleted(top: Path, parts: list[str], content: bytes) -> None:
    path = "/".join(parts)
    try:
        write_whole(top, path, content, US)
    except PathRefused as refused:
        assert {".", ".."} & set(parts) or refused.reason
        return
    wanted = os.path.normpath(path)
    assert read_part(top, path, offset=0, max_bytes=1000).data == content
    assert [entry.size for entry in files.listing(top, max_entries=10_000).items if entry.path == wanted] == [
        len(content)
    ]
    files.delete(top, path)
    with pytest.raises(PathRefused):
        read_part(top, path, offset=0, max_bytes=1)


@pytest.mark.parametrize(
    "name", ["x" * 255, "é" * 127, "\u3042" * 85, "-", "~", "a b", "a\\b", "$HOME", "*", "CON", "a:b", " "]
)
def test_every_name_that_the_file_system_accepts_is_accepted(top: Path, name: str) -> None:
    write_whole(top, name, b"text", US)
    assert read_part(top, name, offset=0, max_bytes=10).data == b"text"
    files.delete(top, name)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("x" * 256, "too long"),
        ("é" * 128, "too long"),
        ("a/" * 2100 + "x", "at most 128 directories"),
        (("d" * 250 + "/") * 17 + "x", "too long"),
        ("", "not empty"),
        ("a\0b", "without NUL"),
        ("\ud800", "Unicode"),
        ("dir/", "directory"),
        (".", "directory"),
        ("..", "leaves"),
        ("a/../../x", "leaves"),
        ("/etc/passwd", "absolute"),
        (".banksman-x", "reserved"),
        ("a/.banksman-x", "reserved"),
    ],
)
def test_path_that_cannot_name_a_file_is_refused_with_a_reason(top: Path, path: str, reason: str) -> None:
    with pytest.raises(PathRefused, match=reason):
        write_whole(top, path, b"x", US)


def test_names_are_not_folded_and_an_exact_name_is_preferred(top: Path) -> None:
    composed, decomposed = "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")
    for name in (composed, decomposed, "Case", "case"):
        (top / name).write_bytes(name.encode())
    for name in (composed, decomposed, "Case", "case"):
        assert read_part(top, name, offset=0, max_bytes=20).data == name.encode()
        files.delete(top, name)
        assert not (top / name).exists()


def test_name_that_is_not_utf_8_is_listed_with_replacement_characters(top: Path) -> None:
    raw = os.fsencode(top) + b"/bad-\xff-name"
    with open(raw, "wb") as file:
        file.write(b"x")
    assert "bad-\ufffd-name" in {entry.path for entry in files.listing(top, max_entries=10_000).items}
    os.unlink(raw)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A workspace with one of every kind of file."""
    top = tmp_path / "odd"
    (top / "directory").mkdir(parents=True)
    (top / "file").write_text("text")
    (top / "empty").touch()
    os.mkfifo(top / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(top / "socket"))
    with contextlib.suppress(PermissionError):
        os.mknod(top / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    (top / "link").symlink_to("file")
    (top / "out").symlink_to("/etc/passwd")
    (top / "gone").symlink_to("nowhere")
    os.link(top / "file", top / "hard")
    with (top / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    return top


def test_only_regular_files_are_read(odd: Path) -> None:
    seen: dict[str, object] = {}
    for path in sorted(odd.iterdir()):
        try:
            seen[path.name] = read_part(odd, path.name, offset=0, max_bytes=8).data
        except PathRefused as refused:
            seen[path.name] = refused.reason
    seen.pop("device", None)
    assert seen == {
        "directory": "this is a directory",
        "empty": b"",
        "fifo": "this is not a regular file",
        "file": b"text",
        "gone": "no such file",
        "hard": b"text",
        "link": b"text",
        "out": "the path leaves the workspace",
        "socket": "this is not a regular file",
        "sparse": bytes(8),
    }


def test_only_regular_files_are_replaced_and_only_names_are_deleted(odd: Path) -> None:
    refused: set[str] = set()
    for path in sorted(odd.iterdir()):
        try:
            write_whole(odd, path.name, b"new", US)
        except PathRefused:
            refused.add(path.name)
    refused.discard("device")
    assert refused == {"directory", "fifo", "gone", "link", "out", "socket"}
    for path in sorted(odd.iterdir()):
        if path.name != "directory":
            files.delete(odd, path.name)
    assert [path.name for path in odd.iterdir()] == ["directory"]
    assert Path("/etc/passwd").exists()


def test_thousands_of_directory_swaps_never_lead_outside(tmp_path: Path) -> None:
    """A command replaces a directory by a link outside and back while files are read and written."""
    top, outside = tmp_path / "top", tmp_path / "outside"
    (top / "real").mkdir(parents=True)
    (top / "real" / "file").write_text("inside")
    outside.mkdir()
    (outside / "file").write_text("secret")
    (top / "way").symlink_to("real")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for target in (str(outside), "real"):
                (top / "next").symlink_to(target)
                os.replace(top / "next", top / "way")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(3000):
            with contextlib.suppress(PathRefused):
                assert read_part(top, "way/file", offset=0, max_bytes=10).data == b"inside"
            with contextlib.suppress(PathRefused):
                write_whole(top, "way/made", b"x", US)
    finally:
        over.set()
        thread.join()
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "secret"
