"""Clients that are disconnected in every way receive each event once and in order (P6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chaos.fleet import OPTIONAL, Fleet
from tests.support.reconnects import problem, run_all
from tests.support.system import ScriptedModel

pytestmark = pytest.mark.timeout(300)

CLIENTS, CUT_OFF, CONVERSATIONS = 20, 5, 4


async def test_repeatedly_disconnected_clients_receive_every_event_once(
    model: ScriptedModel, tmp_path: Path
) -> None:
    """P6: RST, silence, half a frame, a killed gateway; resumed at either gateway."""
    async with Fleet(tmp_path, model.url, agents=1, gateways=2, runners=1, without=OPTIONAL) as fleet:
        followers = await run_all(
            fleet,
            model,
            clients=CLIENTS,
            cuts=CUT_OFF,
            conversations=CONVERSATIONS,
            kill_every_s=5.0,
            seed=1,
        )

    assert [found for one in followers if (found := problem(one))] == []
    assert all(one.cuts == CUT_OFF and one.seqs for one in followers)
    ends = {one.conversation: one.seqs[-1] for one in followers}
    assert [one.seqs[-1] for one in followers] == [ends[one.conversation] for one in followers]
