"""Builds the limits that tenants share."""

from __future__ import annotations

from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.quotas.backlog import Backlog, LogRoom
from banksman.quotas.stored import StorageRoom


async def build(base: Foundation) -> None:
    settings = base.settings
    logs = LogRoom(base.bus, StorageRoom(base.bus))
    limit = settings.gateway.max_waiting_runs
    base.services.add(Backlog(base.bus, limit=limit, limit_of=settings.waiting_runs, logs=logs))


FEATURE = Feature(Operations("quotas"), build)
