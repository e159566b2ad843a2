"""What the routers of the HTTP interface have in common."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from banksman.gateway.http.models import ErrorBody
from banksman.gateway.http.strict_json import StrictRoute

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "A field is missing or wrong"},
    401: {"model": ErrorBody, "description": "The API key is missing, unknown or expired"},
    403: {"model": ErrorBody, "description": "The API key does not open this endpoint"},
    404: {"model": ErrorBody, "description": "Not found"},
    409: {"model": ErrorBody, "description": "The stored state forbids the request"},
    413: {"model": ErrorBody, "description": "The body is too large"},
    429: {"model": ErrorBody, "description": "Too many requests; `retry-after` in seconds"},
    503: {"model": ErrorBody, "description": "Not now; `retry-after` in seconds"},
    "default": {"model": ErrorBody, "description": "Any other error"},
}
"""The error responses of every endpoint."""


def router(tag: str) -> APIRouter:
    """Return a router whose bodies are validated strictly."""
    return APIRouter(tags=[tag], route_class=StrictRoute, responses=ERRORS)
