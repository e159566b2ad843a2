"""Golden replies for each vendor's streams, which are written by hand from the vendors' documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent.providers.conftest import Vendor
from tests.agent.providers.golden import golden, plain
from tests.agent.providers.histories import TOOLS, user
from tests.support.deltas import Shown
from tests.support.scripted_models import RawReply

from banksman.agent.protocols.base import ModelRequest

STREAMS = Path(__file__).parent / "golden" / "streams"

NAMES = ("text", "parallel-calls", "reasoning", "cut-by-length", "unknown-events")


@pytest.mark.parametrize("name", NAMES)
async def test_stream_is_read_as_the_golden_reply(api: Vendor, name: str) -> None:
    """R48, R81, R90, R91, R94, R99."""
    stream = (STREAMS / api.name / f"{name}.sse").read_text(encoding="utf-8")
    model = api.play(RawReply(raw_chunks=(stream,)))
    shown = Shown()

    request = ModelRequest(model, "Be brief.", (user("go"),), TOOLS)
    reply = await api.provider.complete(request, deltas=shown, deadline_s=30)

    found = {"shown": {"message": shown.message, "reasoning": shown.reasoning}, "reply": plain(reply)}
    assert found == golden(f"replies/{api.name}/{name}", found)
