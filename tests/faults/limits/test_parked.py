"""Waiting for a user costs bytes on disk, and nothing in memory (P3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chaos.fleet import OPTIONAL, Fleet
from tests.support.parked import decide, held, park_by_agents, park_copies, script, stored_bytes
from tests.support.system import ScriptedModel

pytestmark = pytest.mark.timeout(180)

BY_AGENTS, COPIES = 20, 1_000
BYTES_EACH = 16 * 1024
"""Bytes of log, approval request and timer on disk; the messages here are small."""


async def test_parked_runs_hold_no_message_and_continue_after_their_decision(
    model: ScriptedModel, tmp_path: Path
) -> None:
    """P3: a thousand runs wait, and no consumer has a pending or unacked message for any of them."""
    async with Fleet(tmp_path, model.url, agents=1, gateways=1, runners=1, without=OPTIONAL) as fleet:
        parked = await park_by_agents(fleet, script(model), BY_AGENTS)
        async with fleet.operator() as bus:
            before = await stored_bytes(bus)
            copies = await park_copies(bus, parked[0], COPIES)
            grown = await stored_bytes(bus) - before

            assert set((await held(bus)).values()) == {0}
            assert grown < COPIES * BYTES_EACH
            for one in (parked[-1], copies[0], copies[-1]):
                await decide(fleet, bus, one)
