"""Damage to a nats-server's files, as from failing disks or operating errors. The server must not run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

Damage = Callable[[Path], None]
"""Damages the directory of one stream."""


def stream_of(store: Path, name: str = "EVENTS") -> Path:
    """Return the directory of a stream in a server's `store_dir`."""
    return next(store.glob(f"jetstream/*/streams/{name}"))


def blocks(stream: Path) -> list[Path]:
    """Return its message files, oldest first."""
    return sorted((stream / "msgs").glob("*.blk"), key=lambda block: int(block.stem))


def flip_a_bit(stream: Path) -> None:
    """Flip a bit in the middle of the first block."""
    _flip(blocks(stream)[0])


def flip_in_a_middle_block(stream: Path) -> None:
    """Flip a bit in the middle of a block to which the server does not append, of three in the second one."""
    found = blocks(stream)
    assert len(found) > 1, found
    _flip(found[(len(found) - 1) // 2])


def flip_in_the_last_block(stream: Path) -> None:
    """Flip a bit in the middle of the block to which the server appends."""
    _flip(blocks(stream)[-1])


def _flip(block: Path) -> None:
    """Flip a bit of a message's content: the lengths stay valid, so only its checksum shows the damage."""
    content = bytearray(block.read_bytes())
    begin = end = 0
    while end <= len(content) // 2:
        begin, end = end, end + (int.from_bytes(content[end : end + 4], "little") & 0x7FFFFFFF)
    content[(begin + end) // 2] ^= 1
    block.write_bytes(content)


def flip_in_message(block: Path, number: int) -> int:
    """Flip a bit in the middle of a message of a block, the first one being 0; return its sequence."""
    content = bytearray(block.read_bytes())
    begin = end = 0
    for _ in range(number + 1):
        begin, end = end, end + (int.from_bytes(content[end : end + 4], "little") & 0x7FFFFFFF)
    content[(begin + end) // 2] ^= 1
    block.write_bytes(content)
    return int.from_bytes(content[begin + 4 : begin + 12], "little")


def cut_the_tail(stream: Path) -> None:
    """Cut the last kilobyte of the last block."""
    last = blocks(stream)[-1]
    os.truncate(last, last.stat().st_size - 1000)


def lose_meta_inf(stream: Path) -> None:
    """Remove the file without which the server does not recognise the stream."""
    (stream / "meta.inf").unlink()


def lose_everything(stream: Path) -> None:
    """Remove the whole directory."""
    shutil.rmtree(stream)


def flip_in_last_on(stream: Path, subject: str) -> int:
    """Flip a bit in the content of the last message on a subject; return its sequence."""
    return _flip_on(stream, lambda found: found == subject)[-1]


def flip_in_all_below(stream: Path, prefix: str) -> list[int]:
    """Flip a bit in the content of each message whose subject has a prefix; return their sequences."""
    return _flip_on(stream, lambda found: found.startswith(prefix), only_last=False)


def _flip_on(stream: Path, is_hit: Callable[[str], bool], *, only_last: bool = True) -> list[int]:
    hits = [
        (block, content_end, seq)
        for block in blocks(stream)
        for subject, seq, content_end in _messages(block.read_bytes())
        if is_hit(subject)
    ]
    assert hits, stream
    for block, content_end, _ in hits[-1:] if only_last else hits:
        content = bytearray(block.read_bytes())
        content[content_end - 2] ^= 1
        block.write_bytes(content)
    return [seq for _, _, seq in (hits[-1:] if only_last else hits)]


def _messages(content: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield subject, sequence and the end of the content of each message of a block."""
    begin = 0
    while begin < len(content):
        end = begin + (int.from_bytes(content[begin : begin + 4], "little") & 0x7FFFFFFF)
        seq = int.from_bytes(content[begin + 4 : begin + 12], "little")
        length = int.from_bytes(content[begin + 20 : begin + 22], "little")
        if not seq >> 62:  # neither removed nor the mark of a removal
            yield content[begin + 22 : begin + 22 + length].decode(), seq, end - 8
        begin = end
