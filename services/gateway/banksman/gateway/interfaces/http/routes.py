"""The HTTP API: the routes of operations, and the documents that describe the API.

FastAPI's own pages of documents load scripts from another host; these pages load none.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import cache, wraps
from html import escape
from inspect import Parameter, Signature, signature
from types import NoneType
from typing import Any, ClassVar, cast, get_args, get_type_hints

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from pydantic_core import to_json
from starlette.routing import BaseRoute

from banksman.contracts.administration import AuditInterface
from banksman.contracts.errors import ErrorCode, Unavailable
from banksman.contracts.frames import CLIENT_FRAME, SUBPROTOCOL, ServerFrame
from banksman.contracts.wire import JsonValue
from banksman.gateway.feature import Feature
from banksman.gateway.identity.auth import Keys
from banksman.gateway.live.event_frames import event_schema
from banksman.gateway.operation.caller import PUBLIC, Caller, key_of
from banksman.gateway.operation.declaration import Operation
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.errors import ERRORS
from banksman.gateway.operation.parameters import BEARER, CHECKED, NOT_CONNECTED, parameters_of
from banksman.gateway.operation.streaming import StreamedResponse

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
summary { cursor: pointer; padding: .4rem 0 } code, pre { font: .875rem/1.5 ui-monospace, monospace }
pre { overflow: auto; padding: .75rem; border: 1px solid color-mix(in srgb, currentColor 20%, transparent) }
h2 { margin-top: 2rem; text-transform: capitalize }
"""
PAGE_POLICY = "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'"
SHOWN = ("parameters", "requestBody", "responses")
"""The parts of an operation that the page shows."""
ASKED = "asked_by"
"""The parameter for the request of a function that declares none."""
Document = Mapping[str, Any]
router = APIRouter(include_in_schema=False)


class _RawRequest(Request):
    """A request whose body FastAPI does not parse; an empty one counts as `{}`."""

    async def body(self) -> bytes:
        body = await super().body()
        return self.scope.get(CHECKED, body) if body else b"{}"

    async def json(self) -> JsonValue:
        return cast(JsonValue, await self.body())


class OperationRoute(APIRoute):
    """A route that checks the caller's right before the body is read, and records the action.

    The perimeter has checked the load.
    """

    operation: ClassVar[Operation]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        operation = self.operation

        async def handle_operation(request: Request) -> Response:
            caller = None if operation.right == PUBLIC else _caller(request, operation)
            response = await handle(_RawRequest(request.scope, request.receive))
            if operation.audit is not None and caller is not None:
                await _record(request, operation, caller, response)
            return response

        return handle_operation


def operation_routes(operations: Iterable[Operation]) -> list[BaseRoute]:
    router = APIRouter(generate_unique_id_function=lambda route: route.name, responses=ERRORS)
    for operation in operations:
        if operation.path:
            _add(router, operation)
    return router.routes


def _add(router: APIRouter, operation: Operation) -> None:
    options = dict(operation.options)
    if operation.method not in ("GET", "DELETE"):
        options["openapi_extra"] = {"x-body-limit": operation.body, **options.get("openapi_extra", {})}
    if operation.status == 204:
        # FastAPI sends a content type even without content, unless the class of the response has none.
        options["response_class"] = Response
    router.add_api_route(
        operation.path,
        operation.handler if operation.right == PUBLIC else _of_visible(operation),
        methods=[operation.method],
        status_code=operation.status,
        tags=[operation.tag],
        dependencies=[] if operation.right == PUBLIC else [Depends(BEARER)],
        route_class_override=type("Route", (OperationRoute,), {"operation": operation}),
        **options,
    )


def _of_visible(operation: Operation) -> Callable[..., Awaitable[Any]]:
    """Return the function of an operation, which first checks that the caller may see what is named."""
    parameters = parameters_of(operation)
    others = {parameters.caller, parameters.request_id, *parameters.services}
    # FastAPI passes the request to one parameter only.
    own = next((name for name, kind in parameters.others if kind is Request), None)

    @wraps(operation.handler)
    async def handle(**arguments: Any) -> Any:
        request: Request = arguments[own] if own else arguments.pop(ASKED)
        dispatcher: Dispatcher = request.app.state.dispatcher
        caller: Caller = request.state.caller
        named = {name: value for name, value in arguments.items() if name not in others}
        dispatcher.check_visible(operation, caller, named)
        reply = await operation.handler(**arguments)
        if not isinstance(reply, StreamedResponse):
            dispatcher.check_visible(operation, caller, named)
        return reply

    handle.__dict__["__signature__"] = _signature(operation, () if own else (ASKED,))
    return handle


def _signature(operation: Operation, requests: Iterable[str]) -> Signature:
    """Return the signature of an operation, for FastAPI, with further parameters for the request."""
    declared, hints = signature(operation.handler), get_type_hints(operation.handler, include_extras=True)
    own = [one.replace(annotation=hints[name]) for name, one in declared.parameters.items()]
    more = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=Request) for name in requests]
    returned = None if hints["return"] is NoneType else hints["return"]
    return declared.replace(parameters=[*own, *more], return_annotation=returned)


def _caller(request: Request, operation: Operation) -> Caller:
    keys: Keys = request.app.state.keys
    caller = keys.caller(key_of(request.headers))
    if operation.tag in get_args(AuditInterface):
        # The protocols of others, whose operations have its name as their tag.
        caller = replace(caller, interface=cast(AuditInterface, operation.tag))
    request.state.caller = caller
    operation.check(caller)
    return caller


async def _record(request: Request, operation: Operation, caller: Caller, response: Response) -> None:
    dispatcher: Dispatcher = request.app.state.dispatcher
    reply = cast(dict[str, Any], json.loads(bytes(response.body))) if response.body else {}
    parameters = {name: str(value) for name, value in request.path_params.items()}
    if "tenant" in parameters_of(operation).fields and (tenant := request.query_params.get("tenant")):
        parameters.setdefault("tenant", tenant)
    request_id = request.headers.get("idempotency-key")
    await dispatcher.record(operation, caller, "http", parameters, reply, request_id)


# Plain functions run in threads: building a document for its first request takes about a second.
@router.get("/openapi.json")
def openapi_json(request: Request) -> Response:
    return _json(request.app.openapi())


@router.get("/docs")
def openapi_page(request: Request) -> Response:
    return _page("HTTP API", "openapi.json", _http_sections(request.app.openapi()))


@router.get("/asyncapi.json")
def asyncapi_json(request: Request) -> Response:
    return _json(_asyncapi(request))


@router.get("/asyncapi")
def asyncapi_page(request: Request) -> Response:
    return _page("NATS API", "asyncapi.json", _nats_sections(_asyncapi(request)))


@router.get("/docs.css")
async def style() -> Response:
    return Response(STYLE, media_type="text/css")


@router.get("/v1/schemas/ws.json")
def websocket_schemas() -> Response:
    return _json(websocket_schema())


def _asyncapi(request: Request) -> Document:
    document: Callable[[], Document] | None = request.app.state.asyncapi
    if document is None:
        raise Unavailable(NOT_CONNECTED)
    return document()


@cache
def websocket_schema() -> dict[str, Any]:
    server: TypeAdapter[Any] = TypeAdapter(ServerFrame)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SUBPROTOCOL,
        "client": CLIENT_FRAME.json_schema(),
        "server": server.json_schema(mode="serialization"),
        "events": event_schema(),
        "error_codes": [code.value for code in ErrorCode],
    }


def _http_sections(document: Document) -> str:
    groups: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            shown = {name: operation[name] for name in SHOWN if name in operation}
            details = _details(f"{method.upper()} {path}", operation.get("description", ""), shown)
            groups.setdefault(operation["tags"][0], []).append(details)
    return "".join(_section(tag, found) for tag, found in groups.items()) + _schemas(document)


def _nats_sections(document: Document) -> str:
    channels = (
        _details(channel.get("address") or name, channel.get("description") or name, channel)
        for name, channel in document["channels"].items()
    )
    return _section("channels", channels) + _schemas(document)


def _schemas(document: Document) -> str:
    schemas = document["components"].get("schemas", {})
    return _section("schemas", (_details(name, "", schema) for name, schema in schemas.items()))


def _section(title: str, details: Iterable[str]) -> str:
    return f"<h2>{escape(title)}</h2>{''.join(details)}"


def _details(title: str, text: str, value: Document) -> str:
    body = f"<p>{escape(text)}</p><pre>{escape(json.dumps(value, indent=2))}</pre>"
    return f"<details><summary><code>{escape(title)}</code></summary>{body}</details>"


def _json(document: Document) -> Response:
    return Response(to_json(document), media_type="application/json")


def _page(title: str, source: str, content: str) -> Response:
    html = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<title>Banksman: {title}</title><link rel="stylesheet" href="docs.css">'
        f'<h1>Banksman: {title}</h1><p><a href="{source}">{source}</a></p>{content}</html>'
    )
    return Response(html, media_type="text/html", headers={"content-security-policy": PAGE_POLICY})


FEATURE = Feature(routes=tuple(router.routes))
