"""The endpoints of `api.{t}.>`, for services without HTTP."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.gateway.interfaces.nats.endpoints import Endpoints
from banksman.gateway.interfaces.nats.replays import Replays, add_replays
from banksman.gateway.operation.dispatch import Dispatcher


def api_endpoints(bus: Bus, dispatcher: Dispatcher, replays: Replays) -> Endpoints:
    """Return the endpoints. Only requests use the services, so that documents can be written without any."""
    api = Endpoints(bus, dispatcher)
    add_replays(api, replays)
    return api
