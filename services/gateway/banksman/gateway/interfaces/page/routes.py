"""The web page over HTTP, with strict headers."""

from __future__ import annotations

import base64
import hashlib
import re

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from banksman.gateway.feature import Feature
from banksman.gateway.interfaces.page import assets
from banksman.gateway.interfaces.page.assets import Asset

_VERSIONED = re.compile(r"v([0-9a-f]{12})/(.+)")
IMMUTABLE = "public, max-age=31536000, immutable"
DIAGRAM_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'unsafe-inline'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
        "sandbox allow-scripts",
    ]
)
"""Policy of the frame that draws diagrams. mermaid writes inline styles, so it runs in an opaque origin."""

WORKER_POLICY = "default-src 'none'; connect-src 'self'"

routes = APIRouter(include_in_schema=False)


@routes.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    page = assets.page()
    return _respond(request, page, _headers(page, page_policy(page.body.decode()), "no-cache"))


@routes.api_route("/static/{path:path}", methods=["GET", "HEAD"])
async def static(request: Request, path: str) -> Response:
    """Return a file of the page.

    While gateways of two versions serve one page, a request may name the other gateway's version. It gets the
    file of this version, which the browser must not cache under that address.
    """
    versioned = _VERSIONED.fullmatch(path)
    name = versioned[2] if versioned else path
    asset = assets.sources().get(name)
    if asset is None:
        headers = {"x-content-type-options": "nosniff"}
        return PlainTextResponse("Not found\n", status_code=404, headers=headers)
    is_current = versioned is not None and versioned[1] == assets.version()
    return _respond(request, asset, _headers(asset, _policy(name), IMMUTABLE if is_current else "no-cache"))


@routes.api_route("/service_worker.js", methods=["GET", "HEAD"])
async def service_worker(request: Request) -> Response:
    """Return the service worker, which shows the page offline; its path determines what it controls."""
    worker = assets.sources()["service_worker.js"]
    return _respond(request, worker, _headers(worker, WORKER_POLICY, "no-cache"))


def page_policy(page: str) -> str:
    """Return the Content-Security-Policy of the page.

    It allows no inline script or style, except the scripts of the page itself, by their hashes. Text of the
    model enters the document only through DOMPurify: `trusted-types` names that policy, and a policy that
    only returns the address of the service worker.
    """
    inline = [hashlib.sha256(text.encode()).digest() for text in assets.INLINE_SCRIPT.findall(page)]
    scripts = " ".join(["'self'", *(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in inline)])
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {scripts}",
            "style-src 'self'",
            "img-src 'self' data: blob:",
            "font-src 'self'",
            "connect-src 'self'",
            "manifest-src 'self'",
            "frame-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types dompurify service-worker",
        ]
    )


def _policy(name: str) -> str:
    return DIAGRAM_POLICY if name == "diagram.html" else "default-src 'none'; sandbox"


def _respond(request: Request, asset: Asset, headers: dict[str, str]) -> Response:
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    wants_gzip = "gzip" in request.headers.get("accept-encoding", "")
    if wants_gzip and asset.compressed is not None:
        headers["content-encoding"] = "gzip"
        return Response(asset.compressed, headers=headers, media_type=asset.media_type)
    return Response(asset.body, headers=headers, media_type=asset.media_type)


def _headers(asset: Asset, policy: str, cache_control: str) -> dict[str, str]:
    return {
        "etag": asset.etag,
        "cache-control": cache_control,
        "content-security-policy": policy,
        "vary": "accept-encoding",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        # The sandboxed diagram frame has an opaque origin and loads its modules with CORS.
        "access-control-allow-origin": "*",
    }


FEATURE = Feature(routes=tuple(routes.routes))
