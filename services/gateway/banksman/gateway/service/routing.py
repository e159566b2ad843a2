"""Routers whose routes are built on first use, and whose bodies are validated strictly.

FastAPI accepts a duplicate key, `NaN`, and `"5"` for a number, and refuses a body whose content type is not
JSON. Here the first three are errors, as on the websocket, and the content type is optional.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar, cast

from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic.warnings import UnsupportedFieldAttributeWarning
from pydantic_core import CoreSchema, core_schema
from starlette.routing import compile_path, get_name

from banksman.contracts.wire import JsonValue, parse
from banksman.gateway.audit.audited import BY_HTTP, AuditedAction
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import Audit
from banksman.gateway.operation.errors import ERRORS
from banksman.gateway.service.dependencies import BEARER, caller_of, gateway_of

M = TypeVar("M", bound=BaseModel)


class StrictJson:
    """Annotation of a body: validates the bytes of the request."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Wrap the schema of the model; OpenAPI shows the model's own schema."""

        def validate(value: Any, _: core_schema.ValidatorFunctionWrapHandler) -> BaseModel:
            return value if isinstance(value, source) else parse(source, value)

        return core_schema.no_info_wrap_validator_function(validate, handler(source))


# FastAPI gives bodies an alias, of which pydantic warns that it has no effect. FastAPI silences that while it
# creates a route, and our models build their validators later, on first use.
warnings.filterwarnings("ignore", category=UnsupportedFieldAttributeWarning)
StrictBody = Annotated[M, StrictJson(), Body()]


class _RawRequest(Request):
    """A request whose body FastAPI does not parse; an empty one counts as `{}`."""

    async def body(self) -> bytes:
        return await super().body() or b"{}"

    async def json(self) -> JsonValue:
        return cast(JsonValue, await self.body())


class LazyRoute(APIRoute):
    """A route that FastAPI builds on first use of anything but its path and methods.

    FastAPI builds validators for each parameter and response. For all routes that takes a third of a
    gateway's import time, and most gateways never serve most routes.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.path, self.endpoint = path, endpoint
        self.name = options["name"] or get_name(endpoint)
        self.methods = {method.upper() for method in options["methods"] or ("GET",)}
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        if options["status_code"] == 204:
            # FastAPI sends a content type even without content, unless the class of the response has none.
            options["response_class"] = Response
        self._options = options

    def __getattr__(self, name: str) -> Any:
        # Python calls this for an attribute that is not set yet; the build sets all of them.
        attributes = vars(self)
        if "_options" not in attributes:
            raise AttributeError(name)
        # The OpenAPI document is built in a thread, which may be building the route that a request needs.
        # With a lock, the event loop would wait for that thread. Instead both build a route, and the first
        # one stays. A failed build leaves nothing, and the next use repeats it.
        built: LazyRoute = attributes.get("_built") or attributes.setdefault("_built", self._build())
        if name not in vars(built):
            raise AttributeError(name)
        return attributes.setdefault(name, vars(built)[name])

    def _build(self) -> LazyRoute:
        route = object.__new__(type(self))
        APIRoute.__init__(route, self.path, self.endpoint, **self._options)
        return route


def _name_of(route: APIRoute) -> str:
    return route.name


class LazyRouter(APIRouter):
    """A router of lazy routes, whose operation ids are the names of their functions."""

    def __init__(self, *, route_class: type[LazyRoute] = LazyRoute, **options: Any) -> None:
        super().__init__(route_class=route_class, generate_unique_id_function=_name_of, **options)


class StrictRoute(LazyRoute):
    """A route that passes the bytes of the body to `StrictJson`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route."""
        handle = super().get_route_handler()
        action = BY_HTTP.get(f"{next(iter(self.methods or ('',)))} {self.path_format}")

        async def handle_raw(request: Request) -> Response:
            # FastAPI reads the body before it calls dependencies: no body is buffered without a valid key.
            caller = caller_of(request, "context")
            response = await handle(_RawRequest(request.scope, request.receive))
            if action is not None:
                await _record(request, caller, action, response)
            return response

        return handle_raw


async def _record(request: Request, caller: Caller, action: AuditedAction, response: Response) -> None:
    """Store a successful request in the audit trail."""
    parameters: dict[str, str] = dict(request.path_params)
    reply = cast(dict[str, Any], json.loads(bytes(response.body))) if response.body else {}
    # Of the recorded requests, only those for keys have the parameter `tenant`, for use by operators.
    named = request.query_params.get("tenant") if action.name.startswith("key.") else None
    tenant = parameters.pop("tenant", None) or named or caller.tenant
    target = next(iter(parameters.values()), None) or str(
        reply.get("id") or reply.get("name") or reply.get("conversation_id") or ""
    )
    gateway = await gateway_of(request)
    await gateway.trail.record(
        caller,
        Audit(action.name, action.details),
        "http",
        tenant=tenant,
        target=target,
        reply=reply,
        request_id=request.headers.get("idempotency-key"),
    )


def router(tag: str) -> APIRouter:
    """Return a router for context endpoints."""
    return LazyRouter(tags=[tag], route_class=StrictRoute, dependencies=[Depends(BEARER)], responses=ERRORS)
