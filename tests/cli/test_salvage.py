"""The retained records of a damaged message file; tests write the files as nats-server does."""

from __future__ import annotations

import ctypes
import hashlib
import json
import subprocess
import sys
from pathlib import Path

from banksman.cli.broker.salvage import LIBRARY, salvage

NAME = "EVENTS"


def test_a_damaged_length_costs_one_message(tmp_path: Path) -> None:
    """The records behind it are found again. Bytes of a message that look like a record are no record."""
    looks_like_a_record = record(99, b"forged")
    second = record(2, looks_like_a_record + b"!")
    block = stored(tmp_path, record(1, b"one"), flipped(second, 0), record(3, b"three"), record(4, b"four"))
    (found,) = salvage(tmp_path)
    assert [(damage.first_seq, damage.last_seq) for damage in found.damages] == [(2, 2)]
    assert block.read_bytes() == record(1, b"one") + record(3, b"three") + record(4, b"four")


def test_several_damaged_messages_are_removed(tmp_path: Path) -> None:
    damaged = [flipped(record(seq, b"content"), 45) for seq in (1, 3, 5)]
    whole = [record(seq, b"content") for seq in (2, 4)]
    block = stored(tmp_path, damaged[0], whole[0], damaged[1], whole[1], damaged[2])
    (found,) = salvage(tmp_path)
    assert [damage.messages for damage in found.damages] == ["message 1", "message 3", "message 5"]
    assert {damage.subject for damage in found.damages} == {"conversation.acme.c1"}
    assert block.read_bytes() == whole[0] + whole[1]
    assert Path(found.original).read_bytes() == damaged[0] + whole[0] + damaged[1] + whole[1] + damaged[2]
    assert salvage(tmp_path) == []


def test_a_write_that_was_not_finished_is_left_to_the_server(tmp_path: Path) -> None:
    """It was never acknowledged, so it is no damage."""
    content = record(1, b"one") + record(2, b"two")[:-3]
    block = stored(tmp_path, content)
    assert salvage(tmp_path) == []
    assert block.read_bytes() == content


def test_files_of_another_format_and_of_a_cluster_are_left_alone(tmp_path: Path) -> None:
    stored(tmp_path / "compressed", b"cmp" + b"x" * 100)
    stored(tmp_path / "unknown", b"x" * 100)
    damaged = (record(1, b"one"), flipped(record(2, b"two"), 45), record(3, b"three"))
    encrypted = stored(tmp_path / "encrypted", *damaged)
    encrypted.with_suffix(".key").touch()
    clustered = stored(tmp_path / "clustered", *damaged)
    (tmp_path / "clustered" / "jetstream" / "$SYS" / "_js_").mkdir(parents=True)
    assert [salvage(store) for store in sorted(tmp_path.iterdir())] == [[], [], [], []]
    assert encrypted.read_bytes() == clustered.read_bytes() == b"".join(damaged)


def test_the_command_names_the_conversations(tmp_path: Path) -> None:
    stored(tmp_path, record(1, b"one"), flipped(record(2, b"two"), 45), record(3, b"three"))
    command = [sys.executable, "-m", "banksman.cli", "salvage", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    (lost,) = json.loads(done.stdout)["lost"]
    assert (done.returncode, lost["first_seq"], lost["conversation"]) == (1, 2, "acme/c1")
    again = subprocess.run(command[:-1], capture_output=True, text=True, timeout=60)
    assert (again.returncode, again.stdout) == (0, "no message is damaged\n")


def test_the_command_refuses_a_directory_without_streams(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "banksman.cli", "salvage", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "the `store_dir` of a nats-server" in done.stderr) == (2, True)


def stored(store: Path, *records: bytes) -> Path:
    block = store / "jetstream" / "APP" / "streams" / NAME / "msgs" / "1.blk"
    block.parent.mkdir(parents=True)
    block.write_bytes(b"".join(records))
    return block


def record(seq: int, content: bytes) -> bytes:
    subject = b"conversation.acme.c1"
    length = (22 + len(subject) + len(content) + 8).to_bytes(4, "little")
    numbers = seq.to_bytes(8, "little") + (1).to_bytes(8, "little")
    checksum = checksum_of(numbers + subject + content)
    return length + numbers + len(subject).to_bytes(2, "little") + subject + content + checksum


def checksum_of(content: bytes) -> bytes:
    function = ctypes.CDLL(LIBRARY).HighwayHash64
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64]
    key = hashlib.sha256(f"{NAME}-1".encode()).digest()
    return int(function(key, content, len(content))).to_bytes(8, "little")


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
