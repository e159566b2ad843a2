"""Logs of child processes: complete, limited in size, with warnings reported."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from banksman.cli.local import screen as logs
from banksman.cli.local.screen import ChildLog


@pytest.fixture
def shown() -> list[str]:
    return []


@pytest.fixture
def log(tmp_path: Path, shown: list[str]) -> Iterator[ChildLog]:
    log = ChildLog(tmp_path / "agent.log", shown.append)
    yield log
    log.close()


async def written(log: ChildLog, *chunks: bytes) -> None:
    """Write to a pipe as a process does, then close it."""
    read, write = os.pipe()
    async with asyncio.TaskGroup() as group:
        group.create_task(log.pump(read))
        for chunk in chunks:
            await asyncio.to_thread(_write, write, chunk)
        os.close(write)


def _write(descriptor: int, chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(descriptor, chunk) :]


async def test_all_lines_are_logged_and_warnings_are_reported(
    log: ChildLog, tmp_path: Path, shown: list[str]
) -> None:
    lines = [
        {"event": "ready", "level": "info"},
        {"event": "queue is full", "level": "warning"},
        {"event": "a callback failed", "level": "error", "exception": "Traceback\n  here\nKeyError: 'x'"},
    ]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    await written(log, text[:30], text[30:])

    assert (tmp_path / "agent.log").read_bytes() == text
    assert shown == ["queue is full", "a callback failed: KeyError: 'x'"]


async def test_nats_server_errors_are_reported_and_its_warnings_are_not(
    log: ChildLog, shown: list[str]
) -> None:
    await written(
        log,
        b"[7] 2026/01/02 03:04:05.000000 [WRN] Filestore [RUNS] Stream state outdated\n",
        b"[7] 2026/01/02 03:04:05.000000 [ERR] JetStream out of space\n",
    )

    assert shown == ["JetStream out of space"]


async def test_overlong_line_is_split_without_loss(log: ChildLog, tmp_path: Path) -> None:
    await written(log, b"x" * (3 * logs.MAX_LINE_BYTES), b"\nafter\n")

    kept = (tmp_path / "agent.log").read_bytes()
    assert kept.count(b"x") == 3 * logs.MAX_LINE_BYTES
    assert kept.endswith(b"\nafter\n")


async def test_log_files_are_rotated_within_their_size_limit(log: ChildLog, tmp_path: Path) -> None:
    line = b"y" * 60_000 + b"\n"

    await written(log, line * (logs.MAX_FILE_BYTES * (logs.KEPT_FILES + 3) // len(line)))

    sizes = [entry.stat().st_size for entry in os.scandir(tmp_path)]
    assert len(sizes) == logs.KEPT_FILES + 1
    assert max(sizes) <= logs.MAX_FILE_BYTES


async def test_last_line_of_a_process_is_its_last_readable_message(
    log: ChildLog, make_line: Callable[[str], bytes]
) -> None:
    await written(log, make_line("connecting"), make_line("stopped: NATS did not answer"), b"\n")

    assert log.last_line == "stopped: NATS did not answer"


@pytest.fixture
def make_line() -> Callable[[str], bytes]:
    return lambda event: json.dumps({"event": event, "level": "info"}).encode() + b"\n"
