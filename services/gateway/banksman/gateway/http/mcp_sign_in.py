"""Sign-in at servers of the Model Context Protocol that require OAuth."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, unquote, urlsplit

from fastapi import Query, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse

from banksman.contracts.errors import BanksmanError
from banksman.contracts.ids import digest
from banksman.gateway.audit.audited import MCP_SIGNED_IN
from banksman.gateway.mcp_servers.bodies import (
    McpServerDescription,
    McpSignInBody,
    McpSignInReturned,
    McpSignInStarted,
    described,
)
from banksman.gateway.mcp_servers.sign_ins import (
    CALLBACK,
    SIGN_IN_TIME,
    BegunElsewhere,
    Returned,
    SignInEnded,
)
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.errors import ERRORS
from banksman.gateway.service.dependencies import AdminDep, ServiceDep
from banksman.gateway.service.routing import LazyRouter, StrictBody, router

HEADERS = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
ELSEWHERE = """\
You are not signed in yet: this sign-in was not begun in this browser.

If you began it in a terminal or another program, copy the address of this page, and paste it there.
If another person sent you here, close this window. Its address is a key to your account: keep it secret.
"""
TO_PAGE = "page"
"""The part of the cookie that states that the browser returns to the page after the sign-in."""
Part = Annotated[str | None, Query(max_length=4_096)]

routes = LazyRouter(tags=["mcp-servers"], responses=ERRORS)
endpoint = router("mcp-servers")


@endpoint.post("/context/mcp-servers/{server_id}/sign-in")
async def begin_mcp_sign_in(
    server_id: str,
    body: StrictBody[McpSignInBody],
    request: Request,
    response: Response,
    gateway: ServiceDep,
    caller: AdminDep,
) -> McpSignInStarted:
    """Begin a sign-in at a server. The access that the user grants there is for the whole tenant.

    A browser that sends this request gets a cookie, with which it finishes the sign-in when it returns.
    Other clients send the address to which the browser was redirected to `…/sign-in/finish`.
    """
    base = (body.gateway_url or str(request.base_url)).rstrip("/")
    begun = await gateway.mcp_sign_ins.begin(
        caller.tenant, caller.user, server_id, f"{base}{CALLBACK}", body.client
    )
    # A proxy may serve the gateway below a path, which the request of the callback does not show.
    below = quote(urlsplit(base).path, safe="/%")
    response.set_cookie(
        _cookie(begun.state),
        ".".join((begun.browser, TO_PAGE if body.to_page else "", quote(below, safe=""))),
        max_age=int(SIGN_IN_TIME.total_seconds()),
        path=f"{below}{CALLBACK}",
        secure=base.startswith("https:"),
        httponly=True,
        # Not strict: the browser returns from another site.
        samesite="lax",
    )
    return McpSignInStarted(url=begun.url)


@endpoint.post("/context/mcp-servers/{server_id}/sign-in/finish")
async def finish_mcp_sign_in_for_user(
    server_id: str, body: StrictBody[McpSignInReturned], gateway: ServiceDep, caller: AdminDep
) -> McpServerDescription:
    """Finish a sign-in that the same user began without a browser, and list the tools of the server."""
    return described(await gateway.mcp_sign_ins.finish_for(caller.tenant, caller.user, server_id, body.url))


@endpoint.delete("/context/mcp-servers/{server_id}/sign-in", status_code=204)
async def delete_mcp_sign_in(server_id: str, gateway: ServiceDep, caller: AdminDep) -> None:
    """Delete the tokens of a server. Its tools cannot be called before an administrator signs in again."""
    await gateway.mcp_sign_ins.forget(caller.tenant, server_id)


@routes.get(
    CALLBACK,
    response_class=PlainTextResponse,
    responses={
        202: {"description": "Not signed in: another client began it", "content": {"text/plain": {}}},
        303: {"description": "To the page, which began the sign-in and shows its outcome"},
    },
)
async def finish_mcp_sign_in(
    request: Request,
    gateway: ServiceDep,
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
        done = await gateway.mcp_sign_ins.finish_in_browser(Returned(state, code, iss, error), browser)
    except BegunElsewhere:
        return PlainTextResponse(ELSEWHERE, 202, headers=HEADERS)
    except BanksmanError as failure:
        if target != TO_PAGE:
            raise
        # Every other failure is stored as the problem of the server, which its view shows.
        ended = "/ended" if isinstance(failure, SignInEnded) else ""
        return _without(cookie, path, _page(state, ended))
    caller = Caller(done.tenant, done.user)
    await gateway.trail.record(
        caller, MCP_SIGNED_IN, "http", tenant=done.tenant, target=done.server_id, reply={}
    )
    if target == TO_PAGE:
        return _without(cookie, path, _page(state))
    text = f"You are signed in at the MCP server {done.server_id}. You can close this window.\n"
    return _without(cookie, path, PlainTextResponse(text, headers=HEADERS))


def _page(state: str, note: str = "") -> Response:
    """Return the redirect to the page's view of the server that a state names."""
    # Relative, because a proxy may serve the gateway below a path.
    view = f"../#/mcp/{quote(state.partition('.')[2].partition('.')[0])}{note}"
    return RedirectResponse(view, 303, headers=HEADERS)


def _without(cookie: str, path: str, response: Response) -> Response:
    response.delete_cookie(cookie, path=path)
    return response


def _cookie(state: str) -> str:
    """Return the name of the cookie of a sign-in: several may be open in one browser."""
    return f"mcp-sign-in-{digest(state.encode())[:16]}"


routes.routes += endpoint.routes
