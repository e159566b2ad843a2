"""Servers of the Model Context Protocol: configure them, approve their tools, sign in at them."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote, unquote, urlsplit

from fastapi import Query, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse

from banksman.contracts.errors import BanksmanError
from banksman.contracts.ids import digest
from banksman.gateway.audit.operations import Trail
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.identity.api_keys import ApiKeys
from banksman.gateway.mcp_servers.bodies import (
    Approval,
    BeginMcpSignIn,
    BeginOwnSignIn,
    McpAccountDescription,
    McpOwnSignInBody,
    McpServerDescription,
    McpSignInBody,
    McpSignInReturned,
    McpSignInStarted,
    described_account,
    described_to,
)
from banksman.gateway.mcp_servers.configuration import McpServerChange, NewMcpServer
from banksman.gateway.mcp_servers.prompts import operations as prompt_operations
from banksman.gateway.mcp_servers.servers import ConfiguredServers, LookedAt
from banksman.gateway.mcp_servers.sign_ins import (
    CALLBACK,
    SIGN_IN_TIME,
    Begun,
    BegunElsewhere,
    McpSignIns,
    Returned,
    SignInEnded,
)
from banksman.gateway.operation.caller import ADMIN, CHAT, PUBLIC
from banksman.gateway.operation.declaration import CONFLICT, MISSING, Audit, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, StrictBody, provided
from banksman.runs.runners.placement import Placements

Servers = Annotated[ConfiguredServers, provided(ConfiguredServers)]
SignIns = Annotated[McpSignIns, provided(McpSignIns)]
MCP_SIGNED_IN: Final = Audit("mcp_server.signed_in")
"""Recorded by the callback itself: the user returns from another server, without a key."""
MCP_SIGNED_OUT: Final = Audit("mcp_server.signed_out")
ACCOUNT_SIGNED_IN: Final = Audit("mcp_account.signed_in")
ACCOUNT_SIGNED_OUT: Final = Audit("mcp_account.signed_out")
HEADERS = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
ELSEWHERE = """\
You are not signed in yet: this sign-in was not begun in this browser.

If you began it in a terminal or another program, copy the address of this page, and paste it there.
If another person sent you here, close this window. Its address is a key to your account: keep it secret.
"""
TO_PAGE, TO_SETTINGS = "page", "settings"
"""The part of the cookie that states that the browser returns to the page after the sign-in: to the view of
the server, or to the user's own sign-ins."""
_VIEWS = {TO_PAGE: "mcp", TO_SETTINGS: "settings/mcp"}
Part = Annotated[str | None, Query(max_length=4_096)]
DETAILS = ("name",)

operations = Operations("mcp-servers", right=ADMIN)


@operations.add("mcp.list", "GET /context/mcp-servers")
async def list_mcp_servers(servers: Servers, caller: CallerDep) -> Listing[McpServerDescription]:
    """List the tenant's servers."""
    found = [LookedAt(server) for server in await servers.list(caller)]
    items = [await described_to(caller, servers, looked_at) for looked_at in found]
    return Listing[McpServerDescription](items=tuple(items))


@operations.add(
    "mcp.create",
    "POST /context/mcp-servers",
    errors=(CONFLICT,),
    audit=Audit("mcp_server.created", DETAILS),
    confidential=True,
)
async def create_mcp_server(
    body: StrictBody[NewMcpServer], servers: Servers, caller: CallerDep
) -> McpServerDescription:
    """Configure a server and list its tools. Models are offered the tools after approval."""
    return await described_to(caller, servers, await servers.create(caller, body))


@operations.add("mcp.read", "GET /context/mcp-servers/{server_id}")
async def read_mcp_server(server_id: str, servers: Servers, caller: CallerDep) -> McpServerDescription:
    """Read a server, with its tools as last listed."""
    return await described_to(caller, servers, LookedAt(await servers.get(caller, server_id)))


@operations.add(
    "mcp.update",
    "PUT /context/mcp-servers/{server_id}",
    errors=(MISSING, CONFLICT),
    audit=Audit("mcp_server.changed", DETAILS),
    confidential=True,
)
async def replace_mcp_server(
    server_id: str, body: StrictBody[McpServerChange], servers: Servers, caller: CallerDep
) -> McpServerDescription:
    """Replace the configuration of a server. A different address or program withdraws its approvals.

    A secret that is null keeps its stored value; a secret that is omitted is removed.
    """
    return await described_to(caller, servers, await servers.replace(caller, server_id, body))


@operations.add("mcp.delete", "DELETE /context/mcp-servers/{server_id}", audit=Audit("mcp_server.deleted"))
async def delete_mcp_server(server_id: str, servers: Servers, caller: CallerDep) -> None:
    """Delete a server. Models are no longer offered its tools."""
    await servers.delete(caller, server_id)


@operations.add("mcp.look", "POST /context/mcp-servers/{server_id}/look")
async def look_at_mcp_server(server_id: str, servers: Servers, caller: CallerDep) -> McpServerDescription:
    """List the tools of a server again. Changed ones are withdrawn until they are approved."""
    return await described_to(caller, servers, await servers.look(caller, server_id))


@operations.add(
    "mcp.approve",
    "POST /context/mcp-servers/{server_id}/approve",
    errors=(MISSING, CONFLICT),
    audit=Audit("mcp_server.approved", DETAILS),
)
async def approve_mcp_server(
    server_id: str, body: StrictBody[Approval], servers: Servers, caller: CallerDep
) -> McpServerDescription:
    """Approve the changes of a server: models are offered its tools as they are now."""
    return await described_to(caller, servers, await servers.approve(caller, server_id, body.digest))


@operations.add(
    "mcp.sign_in",
    "POST /context/mcp-servers/{server_id}/sign-in",
    not_over_nats="declared below, without the cookie of a browser",
)
async def begin_mcp_sign_in(
    server_id: str,
    body: StrictBody[McpSignInBody],
    request: Request,
    response: Response,
    sign_ins: SignIns,
    caller: CallerDep,
) -> McpSignInStarted:
    """Begin a sign-in at a server. The access that the user grants there is for the whole tenant.

    If each user signs in (`sign_in` of the server), it is for the caller, and to list the tools.

    A browser that sends this request gets a cookie, with which it finishes the sign-in when it returns.
    Other clients send the address to which the browser was redirected to `…/sign-in/finish`.
    """
    base = _base(body, request)
    begun = await sign_ins.begin(caller, server_id, f"{base}{CALLBACK}", body.client, own=False)
    return _started(response, begun, base, TO_PAGE if body.to_page else "")


@operations.over_nats(
    "mcp.sign_in",
    "server_id",
    right=ADMIN,
    errors=(MISSING, CONFLICT),
    not_over_http="declared above, with a cookie for browsers",
    confidential=True,
)
async def begin_mcp_sign_in_over_nats(
    server_id: str, request: BeginMcpSignIn, sign_ins: SignIns, caller: CallerDep
) -> McpSignInStarted:
    """Begin a sign-in at an MCP server. The access that the user grants there is for the whole tenant."""
    begun = await sign_ins.begin(caller, server_id, _callback(request), request.client, own=False)
    return McpSignInStarted(url=begun.url)


@operations.add(
    "mcp.finish",
    "POST /context/mcp-servers/{server_id}/sign-in/finish",
    errors=(MISSING, CONFLICT),
    audit=MCP_SIGNED_IN,
    confidential=True,
)
async def finish_mcp_sign_in_for_user(
    server_id: str, body: StrictBody[McpSignInReturned], sign_ins: SignIns, caller: CallerDep
) -> McpServerDescription:
    """Finish a sign-in that the same user began without a browser, and list the tools of the server."""
    looked_at = await sign_ins.finish_for(caller, server_id, body.url)
    return await described_to(caller, sign_ins.servers, looked_at)


@operations.add("mcp.sign_out", "DELETE /context/mcp-servers/{server_id}/sign-in", audit=MCP_SIGNED_OUT)
async def delete_mcp_sign_in(server_id: str, sign_ins: SignIns, caller: CallerDep) -> None:
    """Delete the tokens of a server. Its tools cannot be called before an administrator signs in again.

    If each user signs in, it deletes the caller's tokens.
    """
    await sign_ins.forget(caller, server_id, own=False)


@operations.add("mcp_account.list", "GET /context/mcp-accounts", right=CHAT)
async def list_mcp_accounts(sign_ins: SignIns, caller: CallerDep) -> Listing[McpAccountDescription]:
    """List the servers at which each user signs in, with the sign-ins of the caller."""
    found = await sign_ins.own(caller)
    return Listing[McpAccountDescription](items=tuple(map(described_account, found)))


@operations.add(
    "mcp_account.sign_in",
    "POST /context/mcp-accounts/{server_id}/sign-in",
    right=CHAT,
    errors=(MISSING, CONFLICT),
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
    base = _base(body, request)
    begun = await sign_ins.begin(caller, server_id, f"{base}{CALLBACK}", None, own=True)
    return _started(response, begun, base, TO_SETTINGS if body.to_page else "")


@operations.over_nats(
    "mcp_account.sign_in",
    "server_id",
    right=CHAT,
    errors=(MISSING, CONFLICT),
    not_over_http="declared above, with a cookie for browsers",
)
async def begin_own_sign_in_over_nats(
    server_id: str, request: BeginOwnSignIn, sign_ins: SignIns, caller: CallerDep
) -> McpSignInStarted:
    """Begin a sign-in of the caller at a server. Only runs that act for the caller use the access."""
    begun = await sign_ins.begin(caller, server_id, _callback(request), None, own=True)
    return McpSignInStarted(url=begun.url)


@operations.add(
    "mcp_account.finish",
    "POST /context/mcp-accounts/{server_id}/sign-in/finish",
    right=CHAT,
    errors=(MISSING, CONFLICT),
    audit=ACCOUNT_SIGNED_IN,
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
    right=CHAT,
    errors=(MISSING, CONFLICT),
    audit=ACCOUNT_SIGNED_OUT,
)
async def delete_own_sign_in(server_id: str, sign_ins: SignIns, caller: CallerDep) -> None:
    """Delete the caller's tokens of a server. Runs for the caller then need another sign-in for its tools."""
    await sign_ins.forget(caller, server_id, own=True)


@operations.add(
    "mcp.callback",
    f"GET {CALLBACK}",
    right=PUBLIC,
    not_over_nats="authorization servers redirect browsers here",
    response_class=PlainTextResponse,
    responses={
        202: {"description": "Not signed in: another client began it", "content": {"text/plain": {}}},
        303: {"description": "To the page, which began the sign-in and shows its outcome"},
    },
)
async def finish_mcp_sign_in(
    request: Request,
    sign_ins: SignIns,
    trail: Annotated[Trail, provided(Trail)],
    state: Annotated[str, Query(max_length=500)],
    code: Part = None,
    iss: Part = None,
    error: Part = None,
) -> Response:
    """Finish a sign-in. Authorization servers redirect users here; `state` and a cookie replace a key.

    Without the cookie that the browser got when the sign-in was begun, nothing changes, and the response
    explains how to continue.
    """
    cookie = _cookie(state)
    browser, target, below = (*request.cookies.get(cookie, "").split("."), "", "")[:3]
    path = f"{quote(unquote(below), safe='/%')}{CALLBACK}"
    try:
        user, server = await sign_ins.finish_in_browser(Returned(state, code, iss, error), browser)
    except BegunElsewhere:
        return PlainTextResponse(ELSEWHERE, 202, headers=HEADERS)
    except BanksmanError as failure:
        if target not in _VIEWS:
            raise
        # Every other failure is stored as the problem of the server, which its view shows.
        failed = "/ended" if isinstance(failure, SignInEnded) else "" if target == TO_PAGE else "/failed"
        return _without(cookie, path, _page(target, state, failed))
    action = ACCOUNT_SIGNED_IN if server.sign_in == "user" else MCP_SIGNED_IN
    await trail.record(user, action, "http", tenant=user.tenant, target=server.id, reply={})
    if target in _VIEWS:
        return _without(cookie, path, _page(target, state))
    text = f"You are signed in at the MCP server {server.id}. You can close this window.\n"
    return _without(cookie, path, PlainTextResponse(text, headers=HEADERS))


def _page(target: str, state: str, note: str = "") -> Response:
    # Relative, because a proxy may serve the gateway below a path.
    view = f"../#/{_VIEWS[target]}/{quote(state.partition('.')[2].partition('.')[0])}{note}"
    return RedirectResponse(view, 303, headers=HEADERS)


def _without(cookie: str, path: str, response: Response) -> Response:
    response.delete_cookie(cookie, path=path)
    return response


def _cookie(state: str) -> str:
    """Return the name of the cookie of a sign-in: several may be open in one browser."""
    return f"mcp-sign-in-{digest(state.encode())[:16]}"


def _base(body: McpOwnSignInBody, request: Request) -> str:
    """Return the address of this gateway as the browser of a request reaches it."""
    return (body.gateway_url or str(request.base_url)).rstrip("/")


def _callback(request: BeginOwnSignIn) -> str:
    """Return the address to which the authorization server redirects the browser of a client."""
    return f"{request.gateway_url.rstrip('/')}{CALLBACK}"


def _started(response: Response, begun: Begun, base: str, target: str) -> McpSignInStarted:
    """Let the browser of a response finish a sign-in; `target` is where it returns to, or empty."""
    # A proxy may serve the gateway below a path, which the request of the callback does not show.
    below = quote(urlsplit(base).path, safe="/%")
    response.set_cookie(
        _cookie(begun.state),
        ".".join((begun.browser, target, quote(below, safe=""))),
        max_age=int(SIGN_IN_TIME.total_seconds()),
        path=f"{below}{CALLBACK}",
        secure=base.startswith("https:"),
        httponly=True,
        # Not strict: the browser returns from another site.
        samesite="lax",
    )
    return McpSignInStarted(url=begun.url)


async def build(base: Foundation) -> None:
    servers = ConfiguredServers(base.bus, base.services[Placements], base.clock, base.box)
    base.services[ApiKeys].on_last_revoked = servers.forget_user
    base.services.add(servers, McpSignIns(servers, base.clock))


FEATURE = Feature((*operations, *prompt_operations), build)
