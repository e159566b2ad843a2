"""Cross-origin requests of the pages that the operator allows."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from banksman.gateway.settings import GatewaySettings

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
READABLE_HEADERS = ("location", "request-id", "retry-after", "x-request-id")
"""Response headers that pages of allowed origins may read, in addition to CORS-safelisted headers."""
PREFLIGHT_CACHE_S = 600
"""Seconds for which a browser caches the response to a preflight request."""


def with_cors(app: ASGIApp, settings: GatewaySettings) -> ASGIApp:
    """Return an application that also answers the preflight requests of browsers.

    It wraps the checks of every request: a preflight request has no key and would fail them, and an allowed
    page must be able to read their errors. Pages of other origins cannot read any response.
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
        max_age=PREFLIGHT_CACHE_S,
    )
