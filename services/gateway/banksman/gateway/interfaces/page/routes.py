"""The web page: its files in memory, and their routes with strict headers.

The sources need no build: the gateway serves them unchanged at `/static/{path}`. The page itself loads them
from `/static/v{version}/{path}`, which a browser caches without revalidation, because a change of any file
changes the version. One version names the whole tree, so relative imports need no rewriting.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import posixpath
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from banksman.gateway.feature import Feature

_VERSIONED = re.compile(r"v([0-9a-f]{12})/(.+)")
IMMUTABLE = "public, max-age=31536000, immutable"
DIAGRAM_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; sandbox allow-scripts"
)
"""Policy of the frame that draws diagrams. mermaid writes inline styles, so it runs in an opaque origin."""
POLICIES = {"diagram.html": DIAGRAM_POLICY, "highlighter.mjs": "default-src 'none'; script-src 'self'"}
routes = APIRouter(include_in_schema=False)
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
"""Suffix to media type. A file with another suffix is served as plain text."""
PACKED_MEDIA_TYPES = frozenset({"font/woff2", "image/png"})
"""Media types whose files are compressed already."""
COMPRESSIBLE_FROM_BYTES = 1024
"""Size below which a body is not compressed: gzip saves less than its header costs."""
INDEX = "index.html"
ENTRY = "main.mjs"
STYLES = "styles/all.css"
"""All style sheets of the page as one file, in the order of the page."""
_IMPORT_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)
INLINE_SCRIPT = re.compile(r'<script(?: type="importmap")?>(.*?)</script>', re.DOTALL)
"""The import map, and the script that loads the page again if it does not start."""
_STYLE_LINK = re.compile(r' *<link rel="stylesheet" href="static/(styles/[\w.-]+)" />\n')
_STATIC_IMPORT = re.compile(
    r"""(?<![^\n;}])(?:im|ex)port\s*(?:[\w$*{},\s]+?\bfrom\s*|[{*][^'"()]*?from\s*)?["']([^"']+)["']"""
)


@routes.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    page = page_file()
    return _respond(request, page, page_policy(page.body.decode()), "no-cache")


@routes.api_route("/static/{path:path}", methods=["GET", "HEAD"])
async def static(request: Request, path: str) -> Response:
    """Return a file of the page.

    While gateways of two versions serve one page, a request may name the other gateway's version. It gets the
    file of this version, which the browser must not cache under that address.
    """
    versioned = _VERSIONED.fullmatch(path)
    name = versioned[2] if versioned else path
    asset = sources().get(name)
    if asset is None:
        headers = {"x-content-type-options": "nosniff"}
        return PlainTextResponse("Not found\n", status_code=404, headers=headers)
    is_current = versioned is not None and versioned[1] == version()
    policy = POLICIES.get(name, "default-src 'none'; sandbox")
    return _respond(request, asset, policy, IMMUTABLE if is_current else "no-cache")


@routes.api_route("/service_worker.js", methods=["GET", "HEAD"])
async def service_worker(request: Request) -> Response:
    """Return the service worker, which shows the page offline; its path determines what it controls."""
    worker = sources()["service_worker.js"]
    return _respond(request, worker, "default-src 'none'; connect-src 'self'", "no-cache")


def page_policy(page: str) -> str:
    """Return the Content-Security-Policy of the page.

    It allows no inline script or style, except the scripts of the page itself, by their hashes. Text of the
    model enters the document only through DOMPurify: `trusted-types` names that policy, and a policy that
    only returns the addresses of the page's workers.
    """
    inline = [hashlib.sha256(text.encode()).digest() for text in INLINE_SCRIPT.findall(page)]
    scripts = " ".join(["'self'", *(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in inline)])
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self'; img-src 'self' data: blob:; "
        "font-src 'self'; connect-src 'self'; manifest-src 'self'; frame-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types dompurify workers"
    )


def _respond(request: Request, asset: Asset, policy: str, cache_control: str) -> Response:
    headers = {
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
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    body = asset.compressed if "gzip" in request.headers.get("accept-encoding", "") else None
    if body is not None:
        headers["content-encoding"] = "gzip"
    return Response(asset.body if body is None else body, headers=headers, media_type=asset.media_type)


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


@cache
def sources() -> dict[str, Asset]:
    root = Path(__file__).with_name("static")
    files = (path for path in root.rglob("*") if path.is_file())
    found = {path.relative_to(root).as_posix(): _loaded(path.name, path.read_bytes()) for path in files}
    styles = _STYLE_LINK.findall(found[INDEX].body.decode())
    return {**found, STYLES: _loaded(STYLES, b"\n".join(found[path].body for path in styles))}


@cache
def version() -> str:
    """Return the version of all files: 12 hexadecimal digits."""
    digest = hashlib.sha256()
    for path, found in sorted(sources().items()):
        digest.update(f"{path}\0{len(found.body)}\0".encode() + found.body)
    return digest.hexdigest()[:12]


@cache
def page_file() -> Asset:
    """Return the page, with addresses of this version and a preload list of all modules of its start.

    Without the list a browser finds the modules level by level, one round trip each.
    """
    text = sources()[INDEX].body.decode()
    folder = f"static/v{version()}/"
    links = [f'    <link rel="stylesheet" href="static/{STYLES}" />\n']
    links += [f'    <link rel="modulepreload" href="static/{path}" />\n' for path in first_modules()]
    first, *others = _STYLE_LINK.finditer(text)
    for link in reversed(others):
        text = text[: link.start()] + text[link.end() :]
    text = text.replace(first.group(0), links[0])
    # A module may not be loaded before the import map that names its imports.
    text = text.replace("</script>\n", "</script>\n" + "".join(links[1:]), 1)
    return _loaded(INDEX, re.sub(r"\bstatic/(?!v[0-9a-f]{12}/)", folder, text).encode())


@cache
def first_modules() -> list[str]:
    """Return the paths of all modules that the page imports at its start."""
    names = _import_map(sources()[INDEX].body.decode())
    found: list[str] = []
    waiting = [ENTRY]
    while waiting:
        path = waiting.pop(0)
        if path in found:
            continue
        found.append(path)
        code = re.sub(r"/\*.*?\*/", "", sources()[path].body.decode(), flags=re.DOTALL)
        for name in _STATIC_IMPORT.findall(code):
            relative = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
            waiting.append(names.get(name, relative))
    return found


def _loaded(path: str, body: bytes) -> Asset:
    suffix = "." + path.rpartition(".")[2]
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(body, etag, MEDIA_TYPES.get(suffix, "text/plain; charset=utf-8"))


def _import_map(text: str) -> dict[str, str]:
    found = _IMPORT_MAP.search(text)
    imports: dict[str, str] = json.loads(found.group(1))["imports"] if found else {}
    return {name: target.removeprefix("./static/") for name, target in imports.items()}


FEATURE = Feature(routes=tuple(routes.routes))
