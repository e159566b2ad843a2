"""The handlers of `api.{t}.>`, for services without HTTP."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.gateway.interfaces.nats.actions import add_actions
from banksman.gateway.interfaces.nats.conversations import add_conversations, add_pending, add_runs
from banksman.gateway.interfaces.nats.documents import add_workflows
from banksman.gateway.interfaces.nats.endpoints import Endpoints
from banksman.gateway.interfaces.nats.replays import Replays
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.service.gateway import Gateway


def api_endpoints(bus: Bus, dispatcher: Dispatcher, gateway: Gateway, replays: Replays) -> Endpoints:
    """Return the handlers of the NATS API.

    Only requests use the gateway, so that its documents can be written without one.
    """
    api = Endpoints(bus, dispatcher)
    add_actions(api, gateway)
    add_conversations(api, gateway)
    add_runs(api, gateway, replays)
    add_pending(api, gateway)
    add_workflows(api, gateway)
    return api
