"""Dependencies of endpoints: the service, the authenticated caller, the idempotency key."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from banksman.contracts.ids import new_id
from banksman.gateway.service.auth import Caller, bearer
from banksman.gateway.service.gateway import Gateway

BEARER = HTTPBearer(
    scheme_name="bearer", description="An API key. A gateway in keyless mode needs none.", auto_error=False
)
API_KEY = APIKeyHeader(
    name="x-api-key",
    scheme_name="x-api-key",
    description="An API key, as Anthropic's clients send it.",
    auto_error=False,
)


async def gateway_of(request: Request) -> Gateway:
    """Return the service of the application."""
    return request.app.state.gateway


ServiceDep = Annotated[Gateway, Depends(gateway_of)]


def check_context_key(request: Request) -> None:
    """Check that a request has a key for the context endpoints, before its body is read.

    Raises:
        Unauthorized: The key is missing, unknown or expired.
        Forbidden: The key does not open the context endpoints.
    """
    gateway: Gateway = request.app.state.gateway
    gateway.keys.caller(bearer(request.headers.get("authorization"))).check("context")


async def context_caller(
    gateway: ServiceDep, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
) -> Caller:
    """Return the caller of a context endpoint.

    Raises:
        Unauthorized: The key is missing, unknown or expired.
        Forbidden: The key does not open the context endpoints.
    """
    caller = gateway.keys.caller(_token(credentials))
    caller.check("context")
    return caller


async def passthrough_caller(
    gateway: ServiceDep,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
    api_key: Annotated[str | None, Security(API_KEY)],
) -> Caller:
    """Return the caller of a passthrough endpoint.

    Raises:
        Unauthorized: The key is missing, unknown or expired.
        Forbidden: The key does not open the passthrough endpoints.
    """
    caller = gateway.keys.caller(_token(credentials) or api_key)
    caller.check("passthrough")
    return caller


def _token(credentials: HTTPAuthorizationCredentials | None) -> str | None:
    return credentials.credentials.strip() or None if credentials else None


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
    return idempotency_key[:128] or new_id("http-")


CallerDep = Annotated[Caller, Depends(context_caller)]
RequestId = Annotated[str, Depends(request_id)]
