"""The passthrough endpoints: forward the bytes of request and response unchanged."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, Request, Response
from pydantic import BaseModel
from starlette.responses import JSONResponse

from banksman.gateway.interfaces.passthrough.forwarding import forward
from banksman.gateway.interfaces.passthrough.listing import anthropic_model
from banksman.gateway.interfaces.passthrough.upstreams import Upstreams
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.errors import AnthropicErrorBody, OpenAIErrorBody, error_body, errors_as
from banksman.gateway.service.dependencies import API_KEY, BEARER, passthrough_caller
from banksman.gateway.service.routing import LazyRouter

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


async def upstreams_of(request: Request) -> Upstreams:
    """Return the upstreams of the application."""
    return request.app.state.upstreams


UpstreamsDep = Annotated[Upstreams, Depends(upstreams_of)]
CallerDep = Annotated[Caller, Depends(passthrough_caller)]

routes = LazyRouter(
    tags=["passthrough"],
    dependencies=[Depends(BEARER), Depends(API_KEY), Depends(passthrough_caller)],
    # An upstream's own error is forwarded unchanged.
    responses=errors_as(OpenAIErrorBody),
)


@routes.post("/v1/chat/completions", **FORWARDED)
async def chat_completions(request: Request, upstreams: UpstreamsDep, caller: CallerDep) -> Response:
    """OpenAI's Chat Completions API."""
    return await forward(request, "/chat/completions", "openai", upstreams, caller)


@routes.post("/v1/responses", **FORWARDED)
async def responses(request: Request, upstreams: UpstreamsDep, caller: CallerDep) -> Response:
    """OpenAI's Responses API."""
    return await forward(request, "/responses", "responses", upstreams, caller)


@routes.post("/v1/messages", **OF_ANTHROPIC)
async def messages(request: Request, upstreams: UpstreamsDep, caller: CallerDep) -> Response:
    """Anthropic's Messages API."""
    return await forward(request, "/messages", "anthropic", upstreams, caller)


@routes.post("/v1/messages/count_tokens", **OF_ANTHROPIC)
async def count_tokens(request: Request, upstreams: UpstreamsDep, caller: CallerDep) -> Response:
    """Anthropic's token counting API."""
    return await forward(request, "/messages/count_tokens", "anthropic", upstreams, caller)


@routes.get("/v1/models", response_model=ModelList | AnthropicModelList)
async def list_models(request: Request, upstreams: UpstreamsDep) -> Response:
    """List the models of all upstreams, in the format of the caller's API."""
    models = await upstreams.lists.models()
    if not _is_anthropic(request):
        return JSONResponse({"object": "list", "data": models})
    data = [anthropic_model(model) for model in models]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return JSONResponse({"first_id": None, "last_id": None, **ends, "data": data, "has_more": False})


@routes.get(
    "/v1/models/{model:path}",
    response_model=Model | AnthropicModel,
    responses={404: {"model": OpenAIErrorBody | AnthropicErrorBody, "description": "No such model"}},
)
async def read_model(model: str, request: Request, upstreams: UpstreamsDep) -> Response:
    """Read a model, in the format of the caller's API."""
    found = next((entry for entry in await upstreams.lists.models() if entry["id"] == model), None)
    anthropic = _is_anthropic(request)
    if found is not None:
        return JSONResponse(anthropic_model(found) if anthropic else found)
    path = "/v1/messages" if anthropic else request.url.path
    message = f"The model {model[:200]!r} does not exist."
    return JSONResponse(error_body(path, 404, "model_not_found", message, field="model"), 404)


def _is_anthropic(request: Request) -> bool:
    """Return whether the caller is a client of Anthropic's API, all of which send this header."""
    return "anthropic-version" in request.headers
