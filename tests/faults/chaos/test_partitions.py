"""Services that lose their network: in both directions, or in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import privileged
from tests.support.chaos import network
from tests.support.chaos.partitions import Cut, partitions

pytestmark = pytest.mark.timeout(420)
"""Seconds: three partitions, and the time to start everything and to come to rest on a busy machine."""


async def test_a_disconnected_service_is_unready_and_recovers(tmp_path: Path) -> None:
    """A38, P2: each in turn, under traffic; readiness is correct, and nothing happens twice."""
    privileged.require("root with iproute2 and iptables", network.possible(), "networks that are cut")
    cuts = [Cut("agent-1", "all", 6), Cut("tool-runner-1", "in", 6), Cut("gateway-1", "out", 6)]
    verdict, measured = await partitions(cuts, tmp_path, seed=1, rate=1.5)
    print(f"{verdict}\n{measured}")  # noqa: T201  # shown when the test fails
    assert verdict.good, f"{verdict}\n{verdict.log}"
    assert set(measured.unready_s) == set(cuts)
    assert set(measured.recovered_s) == set(cuts)
