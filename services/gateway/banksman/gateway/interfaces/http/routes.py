"""Makes FastAPI routes from operations."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar, cast

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from banksman.contracts.wire import JsonValue
from banksman.gateway.identity.auth import Keys
from banksman.gateway.operation.caller import PUBLIC, Caller, key_of
from banksman.gateway.operation.declaration import Operation
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.errors import ERRORS
from banksman.gateway.operation.parameters import BEARER, parameters_of


class _RawRequest(Request):
    """A request whose body FastAPI does not parse; an empty one counts as `{}`."""

    async def body(self) -> bytes:
        return await super().body() or b"{}"

    async def json(self) -> JsonValue:
        return cast(JsonValue, await self.body())


class OperationRoute(APIRoute):
    """A route that checks the caller's right before the body is read, and records the action."""

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
    """Return the routes of all operations that HTTP has, in their order."""
    router = APIRouter(generate_unique_id_function=lambda route: route.name, responses=ERRORS)
    for operation in operations:
        if operation.path:
            _add(router, operation)
    return router.routes


def _add(router: APIRouter, operation: Operation) -> None:
    options = dict(operation.options)
    if operation.status == 204:
        # FastAPI sends a content type even without content, unless the class of the response has none.
        options["response_class"] = Response
    router.add_api_route(
        operation.path,
        operation.handler,
        methods=[operation.method],
        status_code=operation.status,
        tags=[operation.tag],
        dependencies=[] if operation.right == PUBLIC else [Depends(BEARER)],
        route_class_override=type("Route", (OperationRoute,), {"operation": operation}),
        **options,
    )


def _caller(request: Request, operation: Operation) -> Caller:
    """Return the caller of a request, whose key and right are checked.

    Raises:
        Unauthorized: The key is missing, unknown or expired.
        Forbidden: The key does not open these endpoints, or lacks the right.
    """
    keys: Keys = request.app.state.keys
    caller = request.state.caller = keys.caller(key_of(request.headers))
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
