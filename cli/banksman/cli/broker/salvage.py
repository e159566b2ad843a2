"""Removes damaged messages from the files of a stopped nats-server, and preserves the messages after them.

A server truncates a file at the first record with a wrong checksum, and loses up to 8 MB of intact messages.
Without that record, the server reads all of them, with unchanged sequences.
"""

import ctypes
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from banksman.cli.broker.blocks import Checksum, Damage, damages

LIBRARY = "libhighwayhash.so.0"
"""C library with the checksum of nats-server: package `libhighwayhash0` of Debian and Ubuntu."""
REMEDY = "sudo apt-get install -y libhighwayhash0"
DAMAGED = "damaged"
"""Directory in `store_dir` for the original files."""
_COMPRESSED = b"cmp"


class Salvaged(NamedTuple):
    """A file from which damaged messages were removed."""

    account: str
    stream: str
    file: str
    """Name of the file."""
    damages: tuple[Damage, ...]
    original: str
    """Path to which the original file was moved."""

    def __str__(self) -> str:
        removed = ", ".join(
            damage.messages + (f" ({damage.subject})" if damage.subject else "") for damage in self.damages
        )
        return (
            f"stream {self.stream}: {removed} damaged in {self.file} and removed, the others are kept; "
            f"the original file: {self.original}"
        )


def is_available() -> bool:
    """Return whether the library that computes checksums is installed."""
    return _hash() is not None


def salvage(store: Path) -> list[Salvaged]:
    """Remove the damaged messages from all files of a store. The server must not run.

    Does nothing without the library, or for a server of a cluster: the other servers have its messages. An
    incomplete record at the end of a stream is left to the server: its message was never acknowledged.

    Args:
        store: The server's `store_dir`.

    Raises:
        OSError: a file cannot be read or replaced.
    """
    highway_hash = _hash()
    if highway_hash is None or (store / "jetstream" / "$SYS" / "_js_").exists():
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


def _without(content: bytes, removed: list[Damage]) -> bytes:
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
