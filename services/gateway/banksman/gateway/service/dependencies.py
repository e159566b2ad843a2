"""Dependencies of endpoints: the service, the authenticated caller, the idempotency key.

`BEARER` only describes the key in OpenAPI; `caller_of` reads it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Header, Request
from fastapi.security import HTTPBearer

from banksman.contracts.errors import Unavailable
from banksman.gateway.identity.auth import Keys
from banksman.gateway.identity_settings import Mode, Right
from banksman.gateway.operation.caller import READ, Caller, key_of
from banksman.gateway.operation.parameters import unrepeated_id
from banksman.gateway.service.gateway import Gateway

NOT_CONNECTED = "the gateway is connecting to NATS"

BEARER = HTTPBearer(
    scheme_name="bearer", description="An API key. A gateway in keyless mode needs none.", auto_error=False
)


async def gateway_of(request: Request) -> Gateway:
    """Return the service of the application.

    Raises:
        Unavailable: The gateway has not connected to NATS yet.
    """
    gateway: Gateway | None = request.app.state.gateway
    if gateway is None:
        raise Unavailable(NOT_CONNECTED)
    return gateway


ServiceDep = Annotated[Gateway, Depends(gateway_of)]


def caller_of(request: Request, mode: Mode) -> Caller:
    """Return the caller of a request. The caller's key must open the endpoints of the given mode.

    Raises:
        Unauthorized: The key is missing, unknown or expired.
        Forbidden: The key does not open these endpoints.
    """
    keys: Keys = request.app.state.keys
    caller = keys.caller(key_of(request.headers))
    caller.check(mode)
    return caller


async def context_caller(request: Request) -> Caller:
    """Return the caller of a context endpoint.

    A `GET` request needs the right `chat` or `approve`, any other request needs `chat`.

    Raises:
        Unauthorized: The key is missing, unknown or expired.
        Forbidden: The key does not open these endpoints, or lacks the right.
    """
    return _having(request, READ if request.method == "GET" else ("chat",))


def _with(*rights: Right) -> Any:
    """Return the dependency of a context endpoint on a caller with one of the rights."""

    async def caller(request: Request) -> Caller:
        return _having(request, rights)

    return Depends(caller)


def _having(request: Request, rights: tuple[Right, ...]) -> Caller:
    caller = caller_of(request, "context")
    caller.need(*rights)
    return caller


async def request_id(
    idempotency_key: Annotated[
        str,
        Header(
            alias="Idempotency-Key",
            description="Identifies the request for 24 hours: a repeat returns the first result.",
        ),
    ] = "",
) -> str:
    """Return the first 128 characters of the `Idempotency-Key` header; a new id without it."""
    return idempotency_key[:128] or unrepeated_id()


CallerDep = Annotated[Caller, Depends(context_caller)]
ReaderDep = Annotated[Caller, _with(*READ)]
"""A caller who may chat or approve."""
ApproverDep = Annotated[Caller, _with("approve")]
AdminDep = Annotated[Caller, _with("admin", "operator")]
"""A caller who may administer a tenant."""
OperatorDep = Annotated[Caller, _with("operator")]
"""A caller who may see all tenants."""
RequestId = Annotated[str, Depends(request_id)]
