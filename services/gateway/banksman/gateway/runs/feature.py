"""Builds what starts, cancels and reads runs."""

from __future__ import annotations

from banksman.bus.names import IDEMPOTENCY
from banksman.bus.publish import RunQueue
from banksman.bus.storage.live import LiveHub
from banksman.gateway.assistants.policies import GovernedAssistants
from banksman.gateway.assistants.tenant_store import AssistantStore
from banksman.gateway.conversations.conversations import Conversations, CreatedConversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.idempotency import RequestRecord, StoredRequests
from banksman.gateway.runs.one_request import OneRequest
from banksman.gateway.runs.operations import operations
from banksman.gateway.runs.runs import Runs
from banksman.gateway.runs.starts import RunCancels, RunStarts
from banksman.quotas.stored import SharedBucket
from banksman.runs.runners.placement import Placements


async def build_queue(base: Foundation) -> None:
    """Build the queue of work for agents, the placements of runners, and the record of accepted requests."""
    placements = Placements(base.bus, base.clock, wait_s=base.settings.workspaces.wait_s)
    bucket = SharedBucket(base.bus, IDEMPOTENCY, RequestRecord, "accepted requests")
    await base.stack.enter_async_context(placements)
    base.services.add(RunQueue(base.bus), StoredRequests(bucket), placements)


async def build(base: Foundation) -> None:
    """Build the services, once the assistants of runs are known."""
    services, default_model = base.services, base.settings.default_model
    index, queue, backlog = services[Conversations], services[RunQueue], services[Backlog]
    runs = Runs(base.bus, services[LiveHub], services[Views], index)
    one_request = OneRequest(
        runs=runs,
        conversations=index,
        assistants=services[AssistantStore],
        queue=queue,
        backlog=backlog,
        clock=base.clock,
        default_model=default_model,
    )
    starts = RunStarts(
        views=services[Views],
        conversations=index,
        created=services[CreatedConversations],
        assistants=services[GovernedAssistants],
        queue=queue,
        backlog=backlog,
        default_model=default_model,
    )
    services.add(runs, one_request, starts, RunCancels(runs=runs, queue=queue, backlog=backlog))


QUEUE = Feature(Operations("runs"), build_queue)
FEATURE = Feature(operations, build)
