"""The sign-ins of users at servers of the Model Context Protocol at which each user signs in."""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response

from banksman.gateway.mcp_servers.bodies import (
    GatewayUrl,
    McpAccountDescription,
    McpOwnSignInBody,
    McpSignInReturned,
    McpSignInStarted,
    described_account,
)
from banksman.gateway.mcp_servers.returning import MCP_SIGNED_IN, TO_SETTINGS, SignIns, base_of, set_cookie
from banksman.gateway.mcp_servers.sign_ins import CALLBACK
from banksman.gateway.operation.caller import CHAT
from banksman.gateway.operation.declaration import CONFLICT, MISSING, Audit, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestBody, StrictBody

ERRORS: Final = (MISSING, CONFLICT)

operations = Operations("mcp-servers", right=CHAT)


@operations.add("mcp_account.list", "GET /context/mcp-accounts")
async def list_mcp_accounts(sign_ins: SignIns, caller: CallerDep) -> Listing[McpAccountDescription]:
    """List the servers at which each user signs in, with the sign-ins of the caller."""
    found = await sign_ins.own(caller)
    return Listing[McpAccountDescription](items=tuple(map(described_account, found)))


@operations.add(
    "mcp_account.sign_in",
    "POST /context/mcp-accounts/{server_id}/sign-in",
    errors=ERRORS,
    not_over_nats="declared below, without the cookie of a browser",
)
async def begin_own_sign_in(
    server_id: str,
    body: StrictBody[McpOwnSignInBody],
    request: Request,
    response: Response,
    sign_ins: SignIns,
    caller: CallerDep,
) -> McpSignInStarted:
    """Begin a sign-in of the caller at a server. Only runs that act for the caller use the access.

    It is finished as the sign-in of an administrator is.
    """
    base = base_of(body.gateway_url, request)
    begun = await sign_ins.begin_own(caller, server_id, f"{base}{CALLBACK}")
    set_cookie(response, begun, base, TO_SETTINGS if body.to_page else "")
    return McpSignInStarted(url=begun.url)


class BeginOwnSignIn(RequestBody):
    """How a user signs in at an MCP server."""

    gateway_url: GatewayUrl
    """The address of the gateway as browsers reach it."""


@operations.over_nats(
    "mcp_account.sign_in",
    "server_id",
    right=CHAT,
    errors=ERRORS,
    not_over_http="declared above, with a cookie for browsers",
)
async def begin_own_sign_in_over_nats(
    server_id: str, request: BeginOwnSignIn, sign_ins: SignIns, caller: CallerDep
) -> McpSignInStarted:
    """Begin a sign-in of the caller at a server. Only runs that act for the caller use the access."""
    begun = await sign_ins.begin_own(caller, server_id, f"{request.gateway_url.rstrip('/')}{CALLBACK}")
    return McpSignInStarted(url=begun.url)


@operations.add(
    "mcp_account.finish",
    "POST /context/mcp-accounts/{server_id}/sign-in/finish",
    errors=ERRORS,
    audit=MCP_SIGNED_IN,
    confidential=True,
)
async def finish_own_sign_in(
    server_id: str, body: StrictBody[McpSignInReturned], sign_ins: SignIns, caller: CallerDep
) -> McpAccountDescription:
    """Finish a sign-in that the caller began without a browser."""
    looked_at = await sign_ins.finish_for(caller, server_id, body.url)
    return described_account(await sign_ins.servers.seen_by(caller, looked_at.server))


@operations.add(
    "mcp_account.sign_out",
    "DELETE /context/mcp-accounts/{server_id}/sign-in",
    errors=ERRORS,
    audit=Audit("mcp_server.signed_out"),
)
async def delete_own_sign_in(server_id: str, sign_ins: SignIns, caller: CallerDep) -> None:
    """Delete the caller's tokens of a server. Runs for the caller then need another sign-in for its tools."""
    await sign_ins.forget_own(caller, server_id)
