"""The passthrough endpoints: forward the bytes of request and response unchanged."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Request, Response
from fastapi.security import APIKeyHeader
from pydantic import BaseModel
from starlette.responses import JSONResponse

from banksman.bus.model_servers import TenantModelServers
from banksman.contracts.wire import JsonObject
from banksman.gateway.assistants.run_settings import ModelCatalog, ModelView
from banksman.gateway.feature import Feature
from banksman.gateway.identity.auth import Keys
from banksman.gateway.interfaces.passthrough.forwarding import forward, refusal
from banksman.gateway.interfaces.passthrough.upstreams import Upstreams, unknown_model
from banksman.gateway.models.upstreams import own_models, own_models_for_openai
from banksman.gateway.operation.caller import Caller, key_of
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.errors import AnthropicErrorBody, OpenAIErrorBody, errors_as
from banksman.gateway.operation.parameters import BEARER, CallerDep, Listing, provided

JSON_OBJECT: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
FORWARDED: dict[str, Any] = {
    "openapi_extra": {"requestBody": {"required": True, "content": JSON_OBJECT}},
    "response_class": Response,
    "responses": {
        200: {
            "description": "The upstream's response, unchanged",
            "content": {**JSON_OBJECT, "text/event-stream": {"schema": {"type": "string"}}},
        },
        502: {"description": "The upstream cannot be reached", "content": JSON_OBJECT},
        504: {"description": "The upstream does not respond", "content": JSON_OBJECT},
    },
}
"""OpenAPI of a forwarded endpoint. Bodies are never parsed into models: their bytes are forwarded."""
OF_ANTHROPIC: dict[str, Any] = {
    **FORWARDED,
    "responses": {**errors_as(AnthropicErrorBody), **FORWARDED["responses"]},
}


class Model(BaseModel):
    """A model of an upstream, in OpenAI's format."""

    id: str
    object: str = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The models of all upstreams, in OpenAI's format."""

    object: str = "list"
    data: list[Model]


class AnthropicModel(BaseModel):
    """A model of an upstream, in Anthropic's format."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str


class AnthropicModelList(BaseModel):
    """The models of all upstreams, in Anthropic's format, always in one page."""

    data: list[AnthropicModel]
    has_more: Literal[False] = False
    first_id: str | None
    last_id: str | None


API_KEY = APIKeyHeader(
    name="x-api-key",
    scheme_name="x-api-key",
    description="An API key, as Anthropic's clients send it.",
    auto_error=False,
)
"""Only describes the key in OpenAPI."""


async def passthrough_caller(request: Request, keys: Annotated[Keys, provided(Keys)]) -> Caller:
    caller = keys.caller(key_of(request.headers))
    caller.check("passthrough")
    caller.need("chat")
    return caller


UpstreamsDep = Annotated[Upstreams, provided(Upstreams)]
PassthroughCaller = Annotated[Caller, Depends(passthrough_caller)]

routes = APIRouter(
    generate_unique_id_function=lambda route: route.name,
    tags=["passthrough"],
    dependencies=[Depends(BEARER), Depends(API_KEY), Depends(passthrough_caller)],
    # An upstream's own error is forwarded unchanged.
    responses=errors_as(OpenAIErrorBody),
)


@routes.post("/v1/chat/completions", **FORWARDED)
async def chat_completions(request: Request, upstreams: UpstreamsDep, caller: PassthroughCaller) -> Response:
    """OpenAI's Chat Completions API."""
    return await forward(request, "/chat/completions", "openai", upstreams, caller)


@routes.post("/v1/responses", **FORWARDED)
async def responses(request: Request, upstreams: UpstreamsDep, caller: PassthroughCaller) -> Response:
    """OpenAI's Responses API."""
    return await forward(request, "/responses", "responses", upstreams, caller)


@routes.post("/v1/messages", **OF_ANTHROPIC)
async def messages(request: Request, upstreams: UpstreamsDep, caller: PassthroughCaller) -> Response:
    """Anthropic's Messages API."""
    return await forward(request, "/messages", "anthropic", upstreams, caller)


@routes.post("/v1/messages/count_tokens", **OF_ANTHROPIC)
async def count_tokens(request: Request, upstreams: UpstreamsDep, caller: PassthroughCaller) -> Response:
    """Anthropic's token counting API."""
    return await forward(request, "/messages/count_tokens", "anthropic", upstreams, caller)


@routes.get("/v1/models", response_model=ModelList | AnthropicModelList)
async def list_models(request: Request, upstreams: UpstreamsDep, caller: PassthroughCaller) -> Response:
    """List the models of all upstreams, in the format of the caller's API."""
    models = await _models(request, upstreams, caller)
    if not _is_anthropic(request):
        return JSONResponse({"object": "list", "data": models})
    data = [_anthropic_model(model) for model in models]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return JSONResponse({"first_id": None, "last_id": None, **ends, "data": data, "has_more": False})


@routes.get(
    "/v1/models/{model:path}",
    response_model=Model | AnthropicModel,
    responses={404: {"model": OpenAIErrorBody | AnthropicErrorBody, "description": "No such model"}},
)
async def read_model(
    model: str, request: Request, upstreams: UpstreamsDep, caller: PassthroughCaller
) -> Response:
    """Read a model, in the format of the caller's API."""
    models = await _models(request, upstreams, caller)
    found = next((entry for entry in models if entry["id"] == model), None)
    anthropic = _is_anthropic(request)
    if found is not None:
        return JSONResponse(_anthropic_model(found) if anthropic else found)
    return refusal("/v1/messages" if anthropic else request.url.path, unknown_model(model))


async def _models(request: Request, upstreams: Upstreams, caller: Caller) -> list[JsonObject]:
    """Return each model of the configured upstreams and of the caller's tenant once."""
    own = own_models_for_openai(request.app.state.services, caller.tenant)
    models = {str(model["id"]): model for model in own}
    return list((models | {str(each["id"]): each for each in await upstreams.lists.models()}).values())


def _anthropic_model(model: JsonObject) -> JsonObject:
    created = datetime.fromtimestamp(cast(int, model["created"]), UTC)
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _is_anthropic(request: Request) -> bool:
    """Return whether the caller is a client of Anthropic's API, all of which send this header."""
    return "anthropic-version" in request.headers


class ModelViews(Listing[ModelView]):
    """The models in one page, the default one first."""


operations = Operations("assistants")


@operations.add("model.list", "GET /context/models")
async def list_usable_models(
    catalog: Annotated[ModelCatalog, provided(ModelCatalog)],
    upstreams: UpstreamsDep,
    own: Annotated[TenantModelServers, provided(TenantModelServers)],
    caller: CallerDep,
) -> ModelViews:
    """List the models that runs can use, with their provider, price per million tokens and context."""
    listed = [*await upstreams.lists.names(), *own_models(own, caller.tenant)]
    return ModelViews(items=tuple(await catalog.describe(listed, caller.tenant)))


FEATURE = Feature(operations, routes=tuple(routes.routes), forwards=True)
