"""The texts of a workspace's files before each run changed them, in a database that no sandbox sees."""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from banksman.contracts.tools import Change
from banksman.tool_runner.workspaces.files import printable

logger = logging.getLogger(__name__)

MAX_TEXT_BYTES = 256 * 1024
"""Length of a text that is kept."""
MAX_DATABASE_BYTES = 64 * 1024 * 1024
"""Above this size, changes are only counted."""


class _Most(NamedTuple):
    """How much is kept at once: of further changes, only the number."""

    files: int
    text_bytes: int


MAX_FIRST, MAX_CHANGED = _Most(20_000, 48 * 1024 * 1024), _Most(2_000, 16 * 1024 * 1024)
_TIMEOUT_S = 5.0
_SCHEMA = """
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS run (number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, more INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS now (path TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS before (
    path TEXT, run INTEGER, content BLOB NOT NULL, PRIMARY KEY (path, run)) WITHOUT ROWID;
"""
_KEEP_EARLIER = """
INSERT OR IGNORE INTO before VALUES (
    :path,
    COALESCE((SELECT number FROM run WHERE id = :run), (SELECT MAX(number) FROM run), 0),
    COALESCE((SELECT content FROM now WHERE path = :path), :earlier))
"""
"""What a user changes counts for the last run that changed anything."""
_SINCE = """
SELECT before.path, before.content, now.content, MIN(before.run) FROM before LEFT JOIN now USING (path)
WHERE before.run >= ? GROUP BY before.path
"""
"""SQLite returns the other columns of the row with the minimum: https://www.sqlite.org/lang_select.html."""

Kind = Literal["absent", "text", "program", "binary", "too_large", "unknown"]
"""`program` is an executable text; `unknown` is the content of a file that was not read in time."""
_KINDS: tuple[Kind, ...] = ("absent", "text", "program", "binary", "too_large", "unknown")


@dataclass(frozen=True, slots=True)
class Content:
    """A file at one time."""

    kind: Kind
    text: str = ""

    def packed(self) -> bytes:
        return bytes([_KINDS.index(self.kind)]) + zlib.compress(self.text.encode(), 1)

    @classmethod
    def unpacked(cls, data: bytes | None) -> Content:
        return UNKNOWN if data is None else cls(_KINDS[data[0]], zlib.decompress(data[1:]).decode())


ABSENT, UNKNOWN = Content("absent"), Content("unknown")
Read = Callable[[str], Content]
"""Returns the content of a file of the workspace now; it raises no error."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The database of one workspace. Losing it loses no file, so its writes are not synchronised."""

    path: Path

    def begin(self, paths: Iterable[str], read: Read) -> None:
        """Keep the texts with which the workspace starts."""
        self._write("", dict.fromkeys(paths), read, MAX_FIRST)

    def record(self, run_id: str, changed: Mapping[str, Change], read: Read) -> None:
        """Keep the texts that a run has changed, or a user with an empty `run_id`, and the earlier ones."""
        self._write(run_id, changed, read, MAX_CHANGED)

    def since(self, run_id: str = "") -> tuple[list[tuple[str, Content, Content]], int]:
        """Return each file that changed since a run began, before and now, and the number of further changes.

        With an empty `run_id`, since the workspace began.
        """
        if not self.path.exists():
            return [], 0
        with self._opened() as database:
            row = database.execute("SELECT number FROM run WHERE id = ?", (run_id,)).fetchone()
            first = 0 if not run_id else row[0] if row else 1 << 62
            more = database.execute("SELECT SUM(more) FROM run WHERE number >= ?", (first,)).fetchone()[0]
            return list(_differing(database.execute(_SINCE, (first,)))), more or 0

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)

    def _write(self, run_id: str, changed: Mapping[str, Change | None], read: Read, limits: _Most) -> None:
        try:
            with self._opened() as database:
                if self.path.stat().st_size > MAX_DATABASE_BYTES:
                    limits = _Most(0, 0)
                _record(database, run_id, changed, read, limits)
        except sqlite3.Error as error:
            # A crash of the machine may have damaged it.
            logger.error("%s: the earlier texts of a workspace are lost: %s", self.path.name, error)
            self.delete()

    @contextmanager
    def _opened(self) -> Generator[sqlite3.Connection]:
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=_TIMEOUT_S)) as database, database:
            database.executescript(_SCHEMA)
            yield database


def _record(
    database: sqlite3.Connection, run_id: str, changed: Mapping[str, Change | None], read: Read, most: _Most
) -> None:
    paths = sorted(changed, key=lambda path: (path.count("/"), path))
    kept, further, room = paths[: most.files], paths[most.files :], most.text_bytes
    if run_id:
        database.execute("INSERT OR IGNORE INTO run (id) VALUES (?)", (run_id,))
        database.execute("UPDATE run SET more = more + ? WHERE id = ?", (len(further), run_id))
    for path in kept:
        key, change = printable(path), changed[path]
        if change is not None:
            earlier = ABSENT if change == "created" else UNKNOWN
            database.execute(_KEEP_EARLIER, {"path": key, "run": run_id, "earlier": earlier.packed()})
        content = ABSENT if change == "deleted" else read(path) if room > 0 else UNKNOWN
        room -= len(content.text)
        database.execute("INSERT OR REPLACE INTO now VALUES (?, ?)", (key, content.packed()))
    database.executemany("DELETE FROM now WHERE path = ?", ((printable(path),) for path in further))


def _differing(
    rows: Iterable[tuple[str, bytes, bytes | None, int]],
) -> Iterator[tuple[str, Content, Content]]:
    for path, earlier, packed in ((row[0], row[1], row[2]) for row in rows):
        now = Content.unpacked(packed)
        # Two contents that are not kept may differ.
        if earlier != packed or now.kind in ("binary", "too_large", "unknown"):
            yield path, Content.unpacked(earlier), now
