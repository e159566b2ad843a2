"""The return of a user's browser from an authorization server, which finishes a sign-in."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote, unquote, urlsplit

from fastapi import Query, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse

from banksman.contracts.errors import BanksmanError
from banksman.contracts.ids import digest
from banksman.gateway.audit.operations import Trail
from banksman.gateway.mcp_servers.sign_ins import (
    CALLBACK,
    SIGN_IN_TIME,
    Begun,
    BegunElsewhere,
    McpSignIns,
    Returned,
    SignInEnded,
)
from banksman.gateway.operation.caller import PUBLIC
from banksman.gateway.operation.declaration import Audit, Operations
from banksman.gateway.operation.parameters import provided

SignIns = Annotated[McpSignIns, provided(McpSignIns)]
MCP_SIGNED_IN: Final = Audit("mcp_server.signed_in")
"""Recorded by the callback itself: the user returns from another server, without a key."""
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

operations = Operations("mcp-servers")


def base_of(gateway_url: str | None, request: Request) -> str:
    """Return the address of the gateway as browsers reach it, without a slash at the end."""
    return (gateway_url or str(request.base_url)).rstrip("/")


def set_cookie(response: Response, begun: Begun, base: str, target: str) -> None:
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
        user, server_id = await sign_ins.finish_in_browser(Returned(state, code, iss, error), browser)
    except BegunElsewhere:
        return PlainTextResponse(ELSEWHERE, 202, headers=HEADERS)
    except BanksmanError as failure:
        if target not in _VIEWS:
            raise
        # Every other failure is stored as the problem of the server, which its view shows.
        failed = "/ended" if isinstance(failure, SignInEnded) else "" if target == TO_PAGE else "/failed"
        return _without(cookie, path, _page(target, state, failed))
    await trail.record(user, MCP_SIGNED_IN, "http", tenant=user.tenant, target=server_id, reply={})
    if target in _VIEWS:
        return _without(cookie, path, _page(target, state))
    text = f"You are signed in at the MCP server {server_id}. You can close this window.\n"
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
