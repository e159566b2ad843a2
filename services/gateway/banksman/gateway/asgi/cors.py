"""Cross-origin requests of the pages that the operator allows."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from banksman.gateway.settings import GatewaySettings

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
READABLE_HEADERS = ("location", "request-id", "retry-after", "x-request-id")
"""Headers of responses that a page may read, in addition to those that every page may."""
REMEMBERED_S = 600
"""Seconds for which a browser caches the response to a preflight request."""


def with_cors(app: ASGIApp, settings: GatewaySettings) -> ASGIApp:
    """Return an application that also answers the preflight requests of browsers.

    It wraps the checks of every request: a preflight request has no key, and a page reads the errors of the
    checks too. Pages of other origins receive no response that they can read.
    """
    if not settings.origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=tuple(settings.origins),
        allow_methods=METHODS,
        # Keys are headers that a page must set itself: there are no cookies that another page could misuse.
        allow_headers=("*",),
        expose_headers=READABLE_HEADERS,
        max_age=REMEMBERED_S,
    )
