"""The servers of models of a tenant, as passthrough and the lists of models use them."""

from __future__ import annotations

from banksman.bus.model_servers import TenantModelServers
from banksman.contracts.model_servers import MAX_LISTED_MODELS
from banksman.contracts.wire import JsonObject
from banksman.gateway.operation.parameters import ServiceMap
from banksman.gateway.settings import Upstream, upstreams_of


def own_upstreams(services: ServiceMap, tenant: str) -> tuple[Upstream, ...]:
    """Return a tenant's servers as upstreams for the models that they listed, or for all.

    Before NATS is connected there are none.
    """
    servers = services.find(TenantModelServers)
    if servers is None:
        return ()
    # Of a longer list only the beginning is stored.
    stored = servers.stored(tenant)
    listed = {one.name: one.models for one in stored if 0 < len(one.models) < MAX_LISTED_MODELS}
    return tuple(
        one.model_copy(update={"models": listed.get(one.name, ("*",))})
        for one in upstreams_of(servers.entries(tenant))
    )


def own_models(servers: TenantModelServers, tenant: str) -> list[tuple[str, str]]:
    """Return the server and the name of each model that a tenant's usable servers listed."""
    usable = servers.entries(tenant)
    return [(one.name, model) for one in servers.stored(tenant) if one.name in usable for model in one.models]


def own_models_for_openai(services: ServiceMap, tenant: str) -> list[JsonObject]:
    """Return these models in OpenAI's format; their time of creation is not stored."""
    servers = services.find(TenantModelServers)
    return [
        {"id": model, "object": "model", "created": 0, "owned_by": name}
        for name, model in (own_models(servers, tenant) if servers else ())
    ]
