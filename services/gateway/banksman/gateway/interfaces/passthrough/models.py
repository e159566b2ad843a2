"""The models that a run can use: those that the upstreams list, and the default one."""

from __future__ import annotations

from banksman.contracts.wire import Stored
from banksman.gateway.assistants.model_catalog import ModelView
from banksman.gateway.interfaces.passthrough.routes import UpstreamsDep
from banksman.gateway.service.dependencies import CallerDep, ServiceDep
from banksman.gateway.service.routing import router

routes = router("assistants")


class ModelViews(Stored):
    """The models in one page, the default one first."""

    items: tuple[ModelView, ...]
    next: None = None


@routes.get("/context/models")
async def list_usable_models(gateway: ServiceDep, upstreams: UpstreamsDep, caller: CallerDep) -> ModelViews:
    """List the models that runs can use, with their provider, price per million tokens and context."""
    return ModelViews(items=tuple(await gateway.models.describe(await upstreams.lists.names())))
