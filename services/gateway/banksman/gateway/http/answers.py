"""Answers as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Response
from pydantic_core import to_json


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON; moments are RFC 3339."""
    return Response(to_json(value), status, headers, media_type="application/json")
