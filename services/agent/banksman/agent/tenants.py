"""The tenants' limits at work: runs start within them, and models are asked while some is left."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.agent.quota import capped, counts, used_up
from banksman.agent.usage import UsageLedger
from banksman.contracts.work import StartRun
from banksman.runs.owner import Ownership
from banksman.runs.steps import Ending
from banksman.runtime.tenants import TenantSettings


@dataclass(frozen=True, slots=True)
class Tenants:
    """What the operator allows, and what was consumed of it."""

    settings: TenantSettings
    usage: UsageLedger

    def capped(self, start: StartRun) -> StartRun:
        """A start as its tenant may have it; the log says by which settings the run is driven."""
        settings = capped(start.settings, self.settings.of(start.tenant))
        return start.model_copy(update={"settings": settings})

    async def used_up(self, owned: Ownership) -> Ending | None:
        """Why the models of a run's tenant may not be asked; None while they may.

        Everything that any agent stored before the last commit of this run is counted. What others are being
        asked at this moment is not: nobody knows its price before the answer.
        """
        limits = self.settings.of(owned.state.tenant)
        if not counts(limits):
            return None
        await self.usage.reach(owned.state.stream_seq)
        return used_up(limits, self.usage.totals(owned.state.tenant), owned.ports.clock.now())
