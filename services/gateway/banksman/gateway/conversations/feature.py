"""Builds what changes, searches and imports conversations."""

from __future__ import annotations

from banksman.bus.publish import RunQueue
from banksman.gateway.assistants.tenant_store import AssistantStore, PromptStore
from banksman.gateway.conversations.changes import ConversationChanges, Titles
from banksman.gateway.conversations.conversations import Conversations, CreatedConversations
from banksman.gateway.conversations.imports import Imports
from banksman.gateway.conversations.operations import operations
from banksman.gateway.conversations.search import Search
from banksman.gateway.conversations.search import operations as search_operations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.live.followed_runs import FollowedRuns
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.http_starts import RunsOverHttp
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.gateway.runs.one_request import OneRequest
from banksman.gateway.runs.runs import Runs
from banksman.gateway.runs.starts import RunStarts


async def build(base: Foundation) -> None:
    services, settings = base.services, base.settings
    index, queue, backlog = services[Conversations], services[RunQueue], services[Backlog]
    assistants = services[AssistantStore]
    changes = ConversationChanges(
        conversations=index,
        created=services[CreatedConversations],
        assistants=assistants,
        prompts=services[PromptStore],
        queue=queue,
        backlog=backlog,
        clock=base.clock,
    )
    imports = Imports(
        conversations=index,
        assistants=assistants,
        requests=services[StoredRequests],
        queue=queue,
        backlog=backlog,
        clock=base.clock,
        default_model=settings.default_model,
    )
    titles = Titles(
        enabled=settings.generates_titles,
        model_name=settings.gateway.title_model,
        conversations=index,
        views=services[Views],
        model=services[OneRequest],
        queue=queue,
    )
    followed = FollowedRuns(base.dispatcher, services[Feeds], services[Views])
    # Here and not with the runs, because a first message creates its conversation.
    over_http = RunsOverHttp(
        changes=changes,
        starts=services[RunStarts],
        requests=services[StoredRequests],
        followed=followed,
        runs=services[Runs],
    )
    services.add(changes, imports, titles, Search(base.bus, index), followed, over_http)


FEATURE = Feature((*operations, *search_operations), build)
