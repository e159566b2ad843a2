"""Damage to a nats-server's files, as from failing disks or operating errors. The server must not run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
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
    """Flip bits in the middle of the first block."""
    with blocks(stream)[0].open("r+b") as file:
        file.seek(os.fstat(file.fileno()).st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


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
