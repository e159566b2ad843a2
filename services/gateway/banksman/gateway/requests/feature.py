"""Builds what accepts the requests of users: messages, cancels, new conversations."""

from __future__ import annotations

from banksman.bus.names import IDEMPOTENCY
from banksman.bus.publish import RunQueue
from banksman.gateway.approvals.decisions import Decisions
from banksman.gateway.approvals.inputs import Inputs
from banksman.gateway.assistants.policies import GovernedAssistants
from banksman.gateway.conversations.conversations import Conversations, CreatedConversations
from banksman.gateway.conversations.runs import Runs
from banksman.gateway.conversations.titles import Titles
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.quotas.shared_bucket import SharedBucket
from banksman.gateway.quotas.tenant_store import AssistantStore, PromptStore
from banksman.gateway.requests.client_requests import ClientRequests
from banksman.gateway.requests.idempotency import RequestRecord, StoredRequests
from banksman.gateway.requests.imports import Imports
from banksman.gateway.requests.one_request import OneRequest
from banksman.gateway.requests.run_starts import RunStarts
from banksman.gateway.workflows.starts import WorkflowStarts
from banksman.gateway.workflows.texts import WorkflowTexts
from banksman.gateway.workflows.workflows import Workflows


async def build_queue(base: Foundation) -> None:
    """Build the queue of work for agents, and the record of accepted requests."""
    bucket = SharedBucket(base.bus, IDEMPOTENCY, RequestRecord, "accepted requests")
    base.services.add(RunQueue(base.bus), StoredRequests(bucket))


async def build(base: Foundation) -> None:
    """Build what accepts requests, once the objects that requests name are built."""
    services, bus, clock, default = base.services, base.bus, base.clock, base.settings.default_model
    queue, backlog, conversations = services[RunQueue], services[Backlog], services[Conversations]
    governed, views, assistants = services[GovernedAssistants], services[Views], services[AssistantStore]
    one_request = OneRequest(
        runs=services[Runs],
        conversations=conversations,
        assistants=assistants,
        queue=queue,
        backlog=backlog,
        clock=clock,
        default_model=default,
    )
    starts = RunStarts(
        views=views,
        conversations=conversations,
        created=services[CreatedConversations],
        assistants=governed,
        queue=queue,
        backlog=backlog,
        default_model=default,
    )
    workflows = Workflows(bus)
    workflow_starts = WorkflowStarts(
        workflows=workflows,
        conversations=conversations,
        assistants=governed,
        queue=queue,
        backlog=backlog,
        clock=clock,
        default_model=default,
    )
    requests = services[StoredRequests]
    client_requests = ClientRequests(
        conversations=conversations,
        created=services[CreatedConversations],
        assistants=assistants,
        prompts=services[PromptStore],
        runs=services[Runs],
        run_starts=starts,
        workflow_starts=workflow_starts,
        decisions=services[Decisions],
        inputs=services[Inputs],
        requests=requests,
        queue=queue,
        backlog=backlog,
        clock=clock,
    )
    imports = Imports(
        conversations=conversations,
        assistants=assistants,
        requests=requests,
        queue=queue,
        backlog=backlog,
        clock=clock,
        default_model=default,
    )
    titles = Titles(
        enabled=base.settings.generates_titles,
        model_name=base.settings.gateway.title_model,
        conversations=conversations,
        views=views,
        model=one_request,
        queue=queue,
    )
    texts = WorkflowTexts(workflows=workflows, model=one_request)
    services.add(one_request, starts, workflows, workflow_starts, client_requests, imports, titles, texts)


QUEUE = Feature(Operations("runs"), build_queue)
FEATURE = Feature(Operations("runs"), build)
