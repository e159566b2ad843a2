"""The handlers of `api.{t}.>`, for services without HTTP."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.gateway.interfaces.nats.audit import add_audit
from banksman.gateway.interfaces.nats.documents import add_prompts, add_tools
from banksman.gateway.interfaces.nats.endpoints import ApiEndpoints
from banksman.gateway.interfaces.nats.files import add_files
from banksman.gateway.interfaces.nats.mcp_servers import add_mcp_servers
from banksman.gateway.interfaces.nats.policies import add_policies
from banksman.gateway.interfaces.nats.tenant_secrets import add_secrets
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.service.gateway import Gateway


def api_endpoints(bus: Bus, dispatcher: Dispatcher, gateway: Gateway) -> ApiEndpoints:
    """Return the handlers of the NATS API.

    Only requests use the gateway, so that its documents can be written without one.
    """
    api = ApiEndpoints(bus, dispatcher)
    add_files(api, gateway)
    for add in (
        add_prompts,
        add_tools,
        add_secrets,
        add_mcp_servers,
        add_policies,
        add_audit,
    ):
        add(api, gateway)
    return api
