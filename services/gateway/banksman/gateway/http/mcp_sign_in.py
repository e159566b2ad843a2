"""Sign-in at servers of the Model Context Protocol that demand OAuth."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field, StringConstraints

from banksman.contracts.mcp_sign_in import OAuthClient
from banksman.contracts.wire import Stored
from banksman.gateway.asgi.dependencies import AdminDep, ServiceDep
from banksman.gateway.asgi.errors import ERRORS
from banksman.gateway.asgi.routing import StrictBody, router
from banksman.gateway.service.audited import MCP_SIGNED_IN
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.bodies import RequestBody
from banksman.gateway.service.mcp_sign_ins import Returned

CALLBACK = "/context/mcp-sign-in"
"""Where authorization servers send users back to: below no server, whose id may be any word."""
HEADERS = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
Word = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]+$", max_length=2_000)]
GatewayUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^/@\s?#]+(/[^\s?#@]*)?$", max_length=500)]
Part = Annotated[str | None, Query(max_length=4_096)]

routes = APIRouter(tags=["mcp-servers"], responses=ERRORS)
endpoint = router("mcp-servers")


class McpSignInBody(RequestBody):
    """How to sign in. All fields may be absent."""

    gateway_url: GatewayUrl | None = None
    """The address of this gateway as browsers reach it; by default, the one of this request."""
    client_id: Word | None = None
    """The id of a client that the authorization server knows; without it, one is registered."""
    client_secret: Word | None = Field(default=None, repr=False)
    """The secret of that client."""


class McpSignInStarted(Stored):
    """A sign-in that a user may finish within ten minutes."""

    url: str
    """The page of the authorization server: open it in a browser."""


@endpoint.post("/context/mcp-servers/{server_id}/sign-in")
async def begin_mcp_sign_in(
    server_id: str,
    body: StrictBody[McpSignInBody],
    request: Request,
    gateway: ServiceDep,
    caller: AdminDep,
) -> McpSignInStarted:
    """Begin a sign-in at a server. Who grants access there grants it to the whole tenant."""
    base = (body.gateway_url or str(request.base_url)).rstrip("/")
    url = await gateway.mcp_sign_ins.begin(
        caller.tenant, caller.user, server_id, f"{base}{CALLBACK}", _client(body)
    )
    return McpSignInStarted(url=url)


@endpoint.delete("/context/mcp-servers/{server_id}/sign-in", status_code=204, response_class=Response)
async def delete_mcp_sign_in(server_id: str, gateway: ServiceDep, caller: AdminDep) -> None:
    """Forget the tokens of a server. Its tools are not called before an administrator signs in again."""
    await gateway.mcp_sign_ins.forget(caller.tenant, server_id)


@routes.get(CALLBACK, response_class=PlainTextResponse)
async def finish_mcp_sign_in(
    gateway: ServiceDep,
    state: Annotated[str, Query(max_length=500)],
    code: Part = None,
    iss: Part = None,
    error: Part = None,
) -> PlainTextResponse:
    """Finish a sign-in. Authorization servers send users here, without a key: `state` replaces it, once."""
    done = await gateway.mcp_sign_ins.finish(Returned(state, code, iss, error))
    caller = Caller(done.tenant, done.user)
    await gateway.trail.record(
        caller, MCP_SIGNED_IN, "http", tenant=done.tenant, target=done.server_id, reply={}
    )
    text = f"You are signed in at the MCP server {done.server_id}. You can close this window.\n"
    return PlainTextResponse(text, headers=HEADERS)


def _client(body: McpSignInBody) -> OAuthClient | None:
    if body.client_id is None:
        return None
    method = "none" if body.client_secret is None else "client_secret_basic"
    return OAuthClient(client_id=body.client_id, client_secret=body.client_secret, method=method)


routes.include_router(endpoint)
