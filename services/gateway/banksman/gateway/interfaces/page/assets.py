"""The files of the web page in memory, under addresses that change with their content.

The sources need no build: the gateway serves them unchanged at `/static/{path}`. The page itself loads them
from `/static/v{version}/{path}`, which a browser caches without revalidation, because a change of any file
changes the version. One version names the whole tree, so relative imports need no rewriting.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import posixpath
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

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
    r"""(?<![\w/.$])(?:im|ex)port\s*(?:[\w$*{},\s]+?\bfrom\s*|[{*][^'"()]*?from\s*)?["']([^"']+)["']"""
)


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
    """Return every file under `static/` by its relative path; reads them once."""
    root = files("banksman.gateway.interfaces.page").joinpath("static")
    found = {path: asset(path, node.read_bytes()) for path, node in _walk(root, "")}
    styles = _STYLE_LINK.findall(found[INDEX].body.decode())
    return {**found, STYLES: asset(STYLES, b"\n".join(found[path].body for path in styles))}


@cache
def version() -> str:
    """Return the version of all files: 12 hexadecimal digits."""
    digest = hashlib.sha256()
    for path, found in sorted(sources().items()):
        digest.update(f"{path}\0{len(found.body)}\0".encode() + found.body)
    return digest.hexdigest()[:12]


@cache
def page() -> Asset:
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
    return asset(INDEX, re.sub(r"\bstatic/(?!v[0-9a-f]{12}/)", folder, text).encode())


@cache
def first_modules() -> list[str]:
    """Return the paths of all modules that the page imports at its start, the entry module first."""
    names = _import_map(sources()[INDEX].body.decode())
    found: list[str] = []
    waiting = [ENTRY]
    while waiting:
        path = waiting.pop(0)
        if path in found:
            continue
        found.append(path)
        for name in _STATIC_IMPORT.findall(_code(sources()[path].body.decode())):
            relative = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
            waiting.append(names.get(name, relative))
    return found


def asset(path: str, body: bytes) -> Asset:
    """Return the file with its type and ETag."""
    suffix = "." + path.rpartition(".")[2]
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(body, etag, MEDIA_TYPES.get(suffix, "text/plain; charset=utf-8"))


def _code(module: str) -> str:
    return re.sub(r"/\*.*?\*/", "", module, flags=re.DOTALL)


def _import_map(text: str) -> dict[str, str]:
    found = _IMPORT_MAP.search(text)
    imports: dict[str, str] = json.loads(found.group(1))["imports"] if found else {}
    return {name: target.removeprefix("./static/") for name, target in imports.items()}


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for child in folder.iterdir():
        path = prefix + child.name
        found += _walk(child, path + "/") if child.is_dir() else [(path, child)]
    return found
