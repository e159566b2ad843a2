"""The size of results."""

from __future__ import annotations

import pytest

from banksman.contracts.tools import ToolResult
from banksman.tool_runner.execution import MAX_RESULT_BYTES, storable


@pytest.mark.parametrize("letter", ["x", "ä", "語", "🏗"])
def test_result_size_is_measured_in_bytes_of_utf_8(letter: str) -> None:
    room = MAX_RESULT_BYTES - 1_000
    fits = ToolResult(tool_call_id="k", content={"success": True, "stdout": letter * _count(letter, room)})
    too_large = ToolResult(
        tool_call_id="k", content={"success": True, "stdout": letter * _count(letter, MAX_RESULT_BYTES + 10)}
    )

    assert storable(fits) is fits
    assert (storable(too_large).error_kind, storable(too_large).is_error) == ("output_limit", True)
    assert len(storable(too_large).model_dump_json().encode()) < 1_000


def _count(letter: str, size: int) -> int:
    """Return how often a letter fits into `size` bytes."""
    return size // len(letter.encode())
