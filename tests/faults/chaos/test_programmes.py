"""A short form of the programmes of broker faults; `make broker-kills` and others run longer."""

from __future__ import annotations

import pytest

from tests.faults.chaos.conftest import SEED, Stage
from tests.support.chaos.programmes import Programme, programme_on

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300), pytest.mark.one_server]


async def test_killing_the_broker_after_an_acknowledgement_loses_no_work_and_ends_no_command(
    stage: Stage,
) -> None:
    """P1, P2: long commands continue through all kills."""
    options = Programme("kills", SEED, seconds=60, faults=3)
    verdict = await programme_on(stage.fleet, stage.model, options)
    await stage.fleet.ready()
    print(f"seed {SEED}\n{verdict}")  # noqa: T201  # shown when the test fails
    assert verdict.good, f"seed {SEED}\n{verdict}\n{verdict.log}"
    assert verdict.kills == 3
    assert verdict.history.accepted
