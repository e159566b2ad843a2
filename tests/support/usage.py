"""The parts of an agent that count the usage of tenants."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from banksman.agent.logs.heads_recorder import HeadsRecorder
from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.bus.connection import Bus
from banksman.log_integrity.damage import DamagedLogs
from banksman.log_integrity.heads import LogHeads

STANDBY_S = 0.2


@asynccontextmanager
async def counting(
    bus: Bus, *, write_every_s: float = 3_600, standby_s: float = STANDBY_S
) -> AsyncGenerator[UsageLedger]:
    """Run a usage ledger that counts, or requests the totals of the ledger that counts.

    It stores its totals only on `flush` unless `write_every_s` is given.
    """
    async with (
        DamagedLogs(bus) as damaged,
        UsageLedger(bus, write_every_s=write_every_s) as ledger,
        HeadsRecorder(LogHeads(bus), damaged, ledger, write_every_s=STANDBY_S, standby_s=standby_s),
    ):
        yield ledger
