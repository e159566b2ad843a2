"""Removes damaged messages from the files of a stopped nats-server, and preserves the messages after them.

A server truncates a file at the first record with a wrong checksum, and loses up to 8 MB of intact messages.
Without that record, the server reads all of them, with unchanged sequences.

A file with messages (`msgs/{number}.blk`) is a block of records. A record is: its length (u32, whose highest
bit states that the message has headers), the sequence (u64), the time (u64), the length of the subject (u16),
the subject, the length of the headers (u32, only with headers), headers, content and a checksum (8 bytes).
All numbers are little-endian. The checksum is HighwayHash-64 of all but the three lengths, under the key
SHA-256 of `{stream}-{number}`.
"""

import ctypes
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

Checksum = Callable[[bytes], int]

_HEAD = Struct("<IQ8xH")
"""Length with its highest bit, sequence, and length of the subject."""
_WITH_HEADERS = 1 << 31
_MARKS = 3 << 62
"""Bits of a sequence: the message was removed, or the record removes another one."""
_SUBJECT_AT = 22
_CHECKSUM_BYTES = 8
_MIN_RECORD_BYTES = _SUBJECT_AT + _CHECKSUM_BYTES


class BlockRecord(NamedTuple):
    end: int
    seq: int


class DamagedPart(NamedTuple):
    """Bytes of a block that are not a valid record."""

    start: int
    end: int
    subject: str | None
    """Subject of the damaged message, if it can be read; None for several messages."""
    first_seq: int
    last_seq: int | None
    """Sequences of the messages, some of which may have been removed before; None at the end of the block."""

    @property
    def messages(self) -> str:
        """Text that names the messages, such as `messages 3 to 5`."""
        if self.last_seq is None:
            return f"messages from {self.first_seq} on"
        if self.first_seq == self.last_seq:
            return f"message {self.first_seq}"
        return f"messages {self.first_seq} to {self.last_seq}"


def damages(content: bytes, checksum: Checksum) -> Iterator[DamagedPart]:
    at, seq = 0, 0
    while at < len(content):
        record = record_at(content, at, checksum)
        if record is None:
            end = _next_record(content, at, checksum)
            behind = record_at(content, end, checksum)
            yield _damage(content, at, end, seq, None if behind is None else behind.seq)
            at = end
        else:
            at, seq = record


def _damage(content: bytes, start: int, end: int, before: int, behind: int | None) -> DamagedPart:
    """Describe damage between the records with the sequences `before` and `behind`; None if none follows."""
    last = None if behind is None else behind - 1
    if end != start + _length(content, start):
        return DamagedPart(start, end, None, before + 1, last)
    seq = int.from_bytes(content[start + 4 : start + 12], "little") & ~_MARKS
    if before < seq and (last is None or seq <= last):
        return DamagedPart(start, end, _subject(content, start), seq, seq)
    return DamagedPart(start, end, _subject(content, start), before + 1, last)


def record_at(content: bytes, at: int, checksum: Checksum) -> BlockRecord | None:
    """Return the record at an offset; None if it is incomplete or its checksum differs."""
    if at + _MIN_RECORD_BYTES > len(content):
        return None
    length, seq, subject_bytes = _HEAD.unpack_from(content, at)
    end = at + (length & ~_WITH_HEADERS)
    body_at = at + _SUBJECT_AT + subject_bytes
    data_at = body_at + 4 if length & _WITH_HEADERS else body_at
    if not data_at <= end - _CHECKSUM_BYTES <= len(content) - _CHECKSUM_BYTES:
        return None
    hashed = content[at + 4 : at + 20] + content[at + _SUBJECT_AT : body_at] + content[data_at : end - 8]
    if checksum(hashed) != int.from_bytes(content[end - 8 : end], "little"):
        return None
    return BlockRecord(end, seq & ~_MARKS)


def _next_record(content: bytes, at: int, checksum: Checksum) -> int:
    """Return the offset of the next record after a damaged one, or the end of the block.

    The length of the damaged record is used if it leads to a record. Otherwise the records must follow each
    other to the end of the block: a message may contain bytes that look like a record.
    """
    end = at + _length(content, at)
    if end == len(content) or record_at(content, end, checksum) is not None:
        return end
    leads_nowhere: set[int] = set()
    for start in range(at + 1, len(content) - _MIN_RECORD_BYTES + 1):
        here, passed = start, set[int]()
        while here not in leads_nowhere and (record := record_at(content, here, checksum)) is not None:
            passed.add(here)
            here = record.end
        if passed and here == len(content):
            return start
        leads_nowhere |= passed
    return len(content)


def _length(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 4], "little") & ~_WITH_HEADERS


def _subject(content: bytes, at: int) -> str | None:
    length = int.from_bytes(content[at + 20 : at + 22], "little")
    subject = content[at + _SUBJECT_AT : at + _SUBJECT_AT + length]
    printable = len(subject) == length and subject.isascii() and subject.decode("ascii").isprintable()
    return subject.decode("ascii") if subject and printable else None


LIBRARY = "libhighwayhash.so.0"
"""C library with the checksum of nats-server: package `libhighwayhash0` of Debian and Ubuntu."""
REMEDY = "sudo apt-get install -y libhighwayhash0"
DAMAGED = "damaged"
"""Directory in `store_dir` for the original files."""
_COMPRESSED = b"cmp"


class Salvaged(NamedTuple):
    account: str
    stream: str
    file: str
    damages: tuple[DamagedPart, ...]
    original: str

    def __str__(self) -> str:
        removed = ", ".join(
            damage.messages + (f" ({damage.subject})" if damage.subject else "") for damage in self.damages
        )
        return (
            f"stream {self.stream}: {removed} damaged in {self.file} and removed, the others are kept; "
            f"the original file: {self.original}"
        )


def is_available() -> bool:
    return _hash() is not None


def salvage(store: Path) -> list[Salvaged]:
    """Remove the damaged messages from all files of a store, the `store_dir` of a stopped server.

    Does nothing without the library, or for a server of a cluster: the other servers have its messages. An
    incomplete record at the end of a stream is left to the server: its message was never acknowledged.
    """
    highway_hash = _hash()
    if highway_hash is None or _is_clustered(store):
        return []
    found: list[Salvaged] = []
    for block, is_last in _blocks(store):
        stream = block.parents[1]
        content = block.read_bytes()
        damaged = list(damages(content, _checksum(highway_hash, f"{stream.name}-{block.stem}")))
        if is_last and damaged and damaged[-1].end == len(content) and damaged[-1].subject is None:
            del damaged[-1]
        # A file without any record has another format.
        if not damaged or sum(damage.end - damage.start for damage in damaged) == len(content):
            continue
        original = _replace(block, _without(content, damaged), store / DAMAGED)
        found.append(Salvaged(stream.parents[1].name, stream.name, block.name, tuple(damaged), str(original)))
    return found


def settings_checksum(store: Path, name: str, settings: bytes) -> str | None:
    """Return the checksum of the settings of a stream, or of a consumer `{stream}/{consumer}`.

    None without the library, and for a server of a cluster, which gets them from the other servers.
    """
    highway_hash = _hash()
    if highway_hash is None or _is_clustered(store):
        return None
    return _checksum(highway_hash, name)(settings).to_bytes(_CHECKSUM_BYTES, "little").hex()


def _is_clustered(store: Path) -> bool:
    return (store / "jetstream" / "$SYS" / "_js_").exists()


def _blocks(store: Path) -> Iterator[tuple[Path, bool]]:
    """Yield each file with messages, and whether it is the last one of its stream."""
    for directory in sorted(store.glob("jetstream/*/streams/*/msgs")):
        if any(directory.glob("*.key")):
            continue  # encrypted by the server
        blocks = sorted(directory.glob("*.blk"), key=lambda block: int(block.stem))
        for block in blocks:
            with block.open("rb") as file:
                first = file.read(len(_COMPRESSED))
            if first and first != _COMPRESSED:
                yield block, block == blocks[-1]


def _without(content: bytes, removed: list[DamagedPart]) -> bytes:
    starts = [0, *(damage.end for damage in removed)]
    ends = [*(damage.start for damage in removed), len(content)]
    return b"".join(content[start:end] for start, end in zip(starts, ends, strict=True))


def _replace(block: Path, content: bytes, directory: Path) -> Path:
    """Replace a file, and return the path to which the original was moved."""
    directory.mkdir(mode=0o700, exist_ok=True)
    name = f"{block.parents[3].name}-{block.parents[1].name}-{block.stem}-{time.time_ns()}"
    original, new = directory / f"{name}.blk", directory / f"{name}.new"
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.link(block, original)
        new.replace(block)
    finally:
        new.unlink(missing_ok=True)
    for changed in (directory, block.parent):
        _sync(changed)
    return original


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _hash() -> Callable[[bytes, bytes, int], int] | None:
    try:
        function = ctypes.CDLL(LIBRARY).HighwayHash64
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64]
    return function


def _checksum(highway_hash: Callable[[bytes, bytes, int], int], name: str) -> Checksum:
    key = hashlib.sha256(name.encode()).digest()
    return lambda content: highway_hash(key, content, len(content))
