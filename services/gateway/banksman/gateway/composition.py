"""The features of a gateway, in the order in which their services are built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from starlette.routing import BaseRoute, Route

from banksman.gateway.approvals.operations import FEATURE as APPROVALS
from banksman.gateway.assistants.operations import FEATURE as ASSISTANTS
from banksman.gateway.audit.decided import FEATURE as DECIDED
from banksman.gateway.audit.operations import FEATURE as AUDIT
from banksman.gateway.conversations.operations import FEATURE as CONVERSATIONS
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.files.operations import FEATURE as FILES
from banksman.gateway.housekeeping.unused import FEATURE as HOUSEKEEPING
from banksman.gateway.identity.instructions import FEATURE as INSTRUCTIONS
from banksman.gateway.identity.operations import FEATURE as IDENTITY
from banksman.gateway.interfaces.a2a.routes import FEATURE as A2A
from banksman.gateway.interfaces.agui.routes import FEATURE as AGUI
from banksman.gateway.interfaces.chat_formats.chat import FEATURE as CHAT_FORMATS
from banksman.gateway.interfaces.http.routes import FEATURE as DOCUMENTS
from banksman.gateway.interfaces.http.routes import operation_routes
from banksman.gateway.interfaces.mcp.routes import FEATURE as MCP
from banksman.gateway.interfaces.nats.replays import FEATURE as REPLAYS
from banksman.gateway.interfaces.page.routes import FEATURE as PAGE
from banksman.gateway.interfaces.passthrough.routes import FEATURE as PASSTHROUGH
from banksman.gateway.live.feeds import FEATURE as LIVE
from banksman.gateway.mcp_servers.operations import FEATURE as MCP_SERVERS
from banksman.gateway.models.operations import FEATURE as MODEL_SERVERS
from banksman.gateway.oidc.operations import FEATURE as OIDC
from banksman.gateway.operation.declaration import BodyLimit, Operation, RequestRule
from banksman.gateway.operation.dispatch import unique
from banksman.gateway.operator.operations import FEATURE as OPERATOR
from banksman.gateway.quotas.backlog import FEATURE as QUOTAS
from banksman.gateway.runs.operations import FEATURE as RUNS
from banksman.gateway.runs.operations import QUEUE
from banksman.gateway.schedules.operations import FEATURE as SCHEDULES
from banksman.gateway.search_providers.operations import FEATURE as SEARCH_PROVIDERS
from banksman.gateway.steps.operations import FEATURE as STEPS
from banksman.gateway.usage.operations import FEATURE as USAGE
from banksman.gateway.webhooks.operations import FEATURE as WEBHOOKS
from banksman.gateway.workflows.operations import FEATURE as WORKFLOWS

CORE: Final = (
    QUOTAS,
    QUEUE,
    LIVE,
    MODEL_SERVERS,
    INSTRUCTIONS,
    ASSISTANTS,
    APPROVALS,
    RUNS,
    CONVERSATIONS,
    FILES,
    WORKFLOWS,
    # Keys are loaded before webhooks start: a device receives nothing while its key is unknown.
    IDENTITY,
    AUDIT,
    DECIDED,
    USAGE,
    STEPS,
    OPERATOR,
    HOUSEKEEPING,
    REPLAYS,
    CHAT_FORMATS,
    PASSTHROUGH,
    DOCUMENTS,
)
"""What every gateway has."""
OPTIONAL: Final = (PAGE, SCHEDULES, WEBHOOKS, SEARCH_PROVIDERS, MCP_SERVERS, MCP, AGUI, A2A, OIDC)
"""What the core does without."""
FEATURES: Final = CORE + OPTIONAL


async def compose(base: Foundation, features: Iterable[Feature]) -> None:
    for feature in features:
        await feature.build(base)
    base.dispatcher.check_complete()


def operations_of(features: Iterable[Feature]) -> tuple[Operation, ...]:
    return unique(operation for feature in features for operation in feature.operations)


@cache
def routes_of(features: tuple[Feature, ...]) -> tuple[BaseRoute, ...]:
    """Return the routes of the features, in the order in which a path is looked up."""
    others = (route for feature in features for route in feature.routes)
    return *operation_routes(operations_of(features)), *others


def request_rules(features: Iterable[Feature]) -> Iterator[RequestRule]:
    """Yield a rule for each request that starts work, or whose body may be larger than `SMALL`."""
    for feature in features:
        for one in feature.operations:
            if one.path and (one.starts_work or one.body is not BodyLimit.SMALL):
                yield RequestRule(one.method, one.path, one.body, one.starts_work)
        for route in feature.routes if feature.forwards else ():
            if isinstance(route, Route):
                for method in route.methods or ():
                    yield RequestRule(method, route.path, BodyLimit.FORWARDED)


# FastAPI builds validators for each route. `make up` forks gateways from a process that has imported this
# module, so that they share the routes.
routes_of(FEATURES)
