"""Unfinished uploads: shared between tenants, and removed if their clients have gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from banksman.contracts.errors import Overloaded, TooLarge
from banksman.tool_runner.workspaces.files_api import ABANDONED_S, MAX_UPLOADS, Uploads


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    uploads = Uploads(tmp_path / "uploads", max_bytes=100)
    uploads.prepare()
    return uploads


def fill(uploads: Uploads, tenant: str) -> int:
    """Begin uploads until they are refused; return their number."""
    for number in range(2 * MAX_UPLOADS):
        try:
            uploads.add(tenant, f"c.{number}", 0, b"slice")
        except Overloaded as refused:
            assert refused.retry_after_s
            return number
    raise AssertionError("no limit")


def test_unfinished_uploads_of_one_tenant_leave_room_for_others(uploads: Uploads) -> None:
    assert fill(uploads, "greedy") == MAX_UPLOADS * 3 // 4
    assert uploads.add("greedy", "c.0", 5, b"next") == 9
    assert uploads.add("modest", "c.first", 0, b"slice") == 5
    uploads.drop("greedy", "c.0")
    uploads.drop("greedy", "c.1")
    assert uploads.add("greedy", "c.more", 0, b"slice") == 5


def test_each_of_many_tenants_can_upload_beside_greedy_ones(uploads: Uploads) -> None:
    for number in range(5):
        assert fill(uploads, f"greedy-{number}") >= 1
    for number in range(MAX_UPLOADS // 2):
        assert uploads.add(f"modest-{number}", "c.first", 0, b"slice") == 5


def test_a_file_above_the_limit_is_too_large(uploads: Uploads) -> None:
    uploads.add("t", "c.a", 0, bytes(60))
    with pytest.raises(TooLarge, match="100 bytes"):
        uploads.add("t", "c.a", 60, bytes(41))


def test_abandoned_uploads_are_removed(uploads: Uploads) -> None:
    uploads.add("t", "c.old", 0, b"slice")
    uploads.add("t", "c.new", 0, b"slice")
    then = time.time() - ABANDONED_S - 1
    os.utime(uploads.directory / "t.c.old", (then, then))
    uploads.remove_abandoned()
    assert [path.name for path in uploads.directory.iterdir()] == ["t.c.new"]
