"""Builds the audit trail."""

from __future__ import annotations

from banksman.gateway.audit.operations import operations
from banksman.gateway.audit.trail import Trail
from banksman.gateway.feature import Feature, Foundation


async def build(base: Foundation) -> None:
    """Build the trail, in which the dispatcher records operations."""
    trail = Trail(base.bus, base.clock)
    base.dispatcher.trail = trail
    base.services.add(trail)


FEATURE = Feature(operations, build)
