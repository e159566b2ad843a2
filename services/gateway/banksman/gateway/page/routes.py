"""The web page: static files in memory, served with strict headers."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""Suffix to media type. A file with another suffix is served as plain text."""

PACKED_MEDIA_TYPES = frozenset({"font/woff2"})
"""Media types whose files are compressed already."""

COMPRESSIBLE_FROM_BYTES = 1024
"""Size below which a body is not compressed: gzip saves less than its header costs."""

_IMPORT_MAP = re.compile(rb'<script type="importmap">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True)
class Asset:
    """One file of the page. Its ETag is weak, because the plain and the compressed body share it."""

    body: bytes
    etag: str
    media_type: str

    @cached_property
    def compressed(self) -> bytes | None:
        """The gzip form, made on first use; None if gzip saves nothing."""
        if self.media_type in PACKED_MEDIA_TYPES or len(self.body) < COMPRESSIBLE_FROM_BYTES:
            return None
        return gzip.compress(self.body, 6, mtime=0)


def page_policy(index: bytes) -> str:
    """Return the Content-Security-Policy of the page.

    It allows no inline script or style, except the import map, by its hash. Text of the model enters the
    document only through DOMPurify, because `trusted-types` names that policy alone.
    """
    maps = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in _IMPORT_MAP.findall(index)]
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in maps)])
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {scripts}",
            "style-src 'self'",
            "img-src 'self' data: blob:",
            "font-src 'self'",
            "connect-src 'self'",
            "frame-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types dompurify",
        ]
    )


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


@cache
def assets() -> dict[str, Asset]:
    """Return every file under `static/` by its relative path; reads them once."""
    root = files("banksman.gateway.page").joinpath("static")
    return {path: _asset(path, node.read_bytes()) for path, node in _walk(root, "")}


def content_security_policy() -> str:
    """Return the Content-Security-Policy that the page is served with."""
    return page_policy(assets()["index.html"].body)


routes = APIRouter(include_in_schema=False)


@routes.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """Return the page."""
    return _respond(request, "index.html")


@routes.api_route("/static/{path:path}", methods=["GET", "HEAD"])
async def static(request: Request, path: str) -> Response:
    """Return a file of the page."""
    return _respond(request, path)


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for child in folder.iterdir():
        path = prefix + child.name
        found += _walk(child, path + "/") if child.is_dir() else [(path, child)]
    return found


def _asset(path: str, body: bytes) -> Asset:
    suffix = "." + path.rpartition(".")[2]
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(body, etag, MEDIA_TYPES.get(suffix, "text/plain; charset=utf-8"))


def _respond(request: Request, path: str) -> Response:
    asset = assets().get(path)
    if asset is None:
        return PlainTextResponse(
            "Not found\n", status_code=404, headers={"x-content-type-options": "nosniff"}
        )
    headers = _headers(path, asset)
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    wants_gzip = "gzip" in request.headers.get("accept-encoding", "")
    if wants_gzip and asset.compressed is not None:
        headers["content-encoding"] = "gzip"
        return Response(asset.compressed, headers=headers, media_type=asset.media_type)
    return Response(asset.body, headers=headers, media_type=asset.media_type)


def _headers(path: str, asset: Asset) -> dict[str, str]:
    headers = {
        "etag": asset.etag,
        "cache-control": "no-cache",
        "vary": "accept-encoding",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        # The sandboxed diagram frame has an opaque origin and loads its modules with CORS.
        "access-control-allow-origin": "*",
    }
    match path:
        case "index.html":
            headers["content-security-policy"] = content_security_policy()
        case "diagram.html":
            headers["content-security-policy"] = DIAGRAM_POLICY
        case _:
            headers["content-security-policy"] = "default-src 'none'; sandbox"
    return headers
