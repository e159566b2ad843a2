"""The limits of tenants: runs start within them, and model requests need something left of them."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.agent.quota import capped, counts, used_up
from banksman.agent.usage import UsageLedger
from banksman.contracts.work import StartRun
from banksman.runs.outcome import Ending
from banksman.runs.owner import Ownership
from banksman.runtime.tenants import TenantSettings


@dataclass(frozen=True, slots=True)
class Tenants:
    """The limits that the operator sets, and what was consumed of them."""

    settings: TenantSettings
    usage: UsageLedger

    def capped(self, start: StartRun) -> StartRun:
        """Return a start with its settings cut to the tenant's limits, as the log will record them."""
        settings = capped(start.settings, self.settings.of(start.tenant))
        return start.model_copy(update={"settings": settings})

    async def used_up(self, owned: Ownership) -> Ending | None:
        """Return how a run ends whose tenant has used up a limit; None while something is left.

        Everything that any agent stored before the last commit of this run counts. Requests that are in
        progress do not: their price is known only with the reply.
        """
        limits = self.settings.of(owned.state.tenant)
        if not counts(limits):
            return None
        await self.usage.reach(owned.state.stream_seq)
        return used_up(limits, self.usage.totals(owned.state.tenant), owned.ports.clock.now())
