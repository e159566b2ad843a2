"""Unfinished uploads are bounded, also for each tenant."""

from __future__ import annotations

from pathlib import Path

import pytest

from banksman.contracts.errors import Overloaded
from banksman.tool_runner.workspaces.files_api import MAX_TENANT_UPLOADS, Uploads


def test_unfinished_uploads_of_one_tenant_leave_room_for_others(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "uploads", max_bytes=100)
    uploads.prepare()
    for number in range(MAX_TENANT_UPLOADS):
        uploads.add("greedy", f"c.{number}", 0, b"slice")
    with pytest.raises(Overloaded):
        uploads.add("greedy", "c.more", 0, b"slice")
    assert uploads.add("greedy", "c.0", 5, b"next") == 9
    assert uploads.add("modest", "c.first", 0, b"slice") == 5
    uploads.drop("greedy", "c.0")
    assert uploads.add("greedy", "c.more", 0, b"slice") == 5
