"""Small files that a power cut leaves whole: with their old or their new content, never empty."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path


def replace_file(file: Path, text: str) -> None:
    """Replace a file, or create it, readable by its owner alone; after an `OSError` it is as before.

    After a power cut it may have its old content. `sync_directory` makes the new content last.
    """
    with _written(file, text.encode()) as new:
        new.replace(file)


def create_file(file: Path, content: bytes) -> None:
    """Create a file that only its owner can read, and that lasts, unless it exists."""
    with _written(file, content) as new, contextlib.suppress(FileExistsError):
        os.link(new, file)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Let the names of the files in a directory last."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextlib.contextmanager
def _written(file: Path, content: bytes) -> Generator[Path]:
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        # Opened with its final mode: there is no moment in which another user could read it.
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            out.write(content)
            out.flush()
            # Without it the name may last longer than the content: nats-server accepts all clients, on all
            # interfaces, if its configuration is empty.
            os.fsync(out.fileno())
        yield new
    finally:
        new.unlink(missing_ok=True)
