"""A short chaos run; `make chaos` and `make soak` run longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos.conftest import SEED, Stage
from tests.support.chaos.verdict import Chaos, chaos, chaos_on

pytestmark = pytest.mark.timeout(420)
"""Seconds: 16 of faults, and the time to start everything and to come to rest on a busy machine."""


@pytest.mark.asyncio(loop_scope="session")
async def test_no_run_is_lost_and_no_effect_repeated_while_processes_die(stage: Stage) -> None:
    """R39, P1 to P5, P11, A01: kill -9 and freezes of every service and the broker under traffic.

    Every accepted run has one terminal event, no effect is repeated, and all readers see the same.
    """
    options = Chaos(SEED, duration_s=16, rate=3, every_s=1.5, freezes=0.12, frozen_s=(4, 8))
    verdict = await chaos_on(stage.fleet, stage.model, options)
    await stage.fleet.ready()
    print(f"seed {SEED}\n{verdict}")  # noqa: T201  # shown when the test fails
    assert verdict.good, f"seed {SEED}\n{verdict}\n{verdict.log}"
    assert verdict.kills >= 5
    assert verdict.history.accepted


async def test_no_run_is_lost_and_no_effect_repeated_with_one_of_three_servers_down(
    tmp_path: Path,
) -> None:
    """R39, P1 to P5, P11, A01: as above on three servers, any of which is killed or frozen too."""
    options = Chaos(SEED, duration_s=14, rate=3, every_s=2.0, freezes=0.12, frozen_s=(4, 8), servers=3)
    verdict = await chaos(options, tmp_path)
    print(f"seed {SEED}\n{verdict}")  # noqa: T201  # shown when the test fails
    assert verdict.good, f"seed {SEED}\n{verdict}\n{verdict.log}"
    assert verdict.kills
    assert verdict.history.accepted
