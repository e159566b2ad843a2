"""Documents of the doors: OpenAPI, AsyncAPI and the websocket's schemas, as JSON and as plain pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Response
from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from banksman.contracts.errors import ErrorCode
from banksman.contracts.events import KnownBody
from banksman.contracts.frames import CLIENT_FRAME, SUBPROTOCOL, ServerFrame
from banksman.gateway.http.answers import json_response
from banksman.gateway.http.bodies import BODIES

METHODS = ("get", "post", "put", "patch", "delete")
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
summary { cursor: pointer; padding: .4rem 0 } code, pre { font: .875rem/1.5 ui-monospace, monospace }
pre { overflow: auto; padding: .75rem; border: 1px solid color-mix(in srgb, currentColor 20%, transparent) }
b { display: inline-block; min-width: 4.5rem } h2 { margin-top: 2rem; text-transform: capitalize }
"""
PAGE_POLICY = "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'"


def pages_router(app: FastAPI, asyncapi: Callable[[], Mapping[str, Any]]) -> APIRouter:
    """The routes of the documents."""
    router = APIRouter(include_in_schema=False)

    @router.get("/openapi.json")
    async def openapi_json() -> Response:
        return json_response(openapi(app))

    @router.get("/docs")
    async def openapi_page() -> Response:
        return _page("HTTP API", "openapi.json", _http_sections(openapi(app)))

    @router.get("/asyncapi.json")
    async def asyncapi_json() -> Response:
        return json_response(asyncapi())

    @router.get("/asyncapi")
    async def asyncapi_page() -> Response:
        return _page("NATS API", "asyncapi.json", _channel_sections(asyncapi()))

    @router.get("/docs.css")
    async def style() -> Response:
        return Response(STYLE, media_type="text/css")

    @router.get("/v1/schemas/ws.json")
    async def websocket_schemas() -> Response:
        return json_response(websocket_schema())

    return router


def openapi(app: FastAPI) -> dict[str, Any]:
    """The HTTP API, OpenAPI 3.1, with the bodies that endpoints read themselves."""
    document = app.openapi()
    _, definitions = models_json_schema(
        [(model, "validation") for model in BODIES], ref_template="#/components/schemas/{model}"
    )
    schemas = cast(dict[str, Any], document.setdefault("components", {})).setdefault("schemas", {})
    schemas.update(definitions.get("$defs", {}))
    return document


@cache
def websocket_schema() -> dict[str, Any]:
    """JSON Schemas of all frames, and the codes of errors."""
    events: TypeAdapter[Any] = TypeAdapter(KnownBody)
    server: TypeAdapter[Any] = TypeAdapter(ServerFrame)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SUBPROTOCOL,
        "client": CLIENT_FRAME.json_schema(),
        "server": server.json_schema(mode="serialization"),
        "events": events.json_schema(mode="serialization"),
        "error_codes": [code.value for code in ErrorCode],
    }


def _http_sections(document: Mapping[str, Any]) -> str:
    groups: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method in METHODS:
            if operation := operations.get(method):
                tag = next(iter(operation.get("tags", ["other"])))
                groups.setdefault(tag, []).append(_operation(method, path, operation, document))
    return "".join(f"<h2>{escape(tag)}</h2>{''.join(found)}" for tag, found in groups.items())


def _operation(method: str, path: str, operation: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    shown = {name: operation[name] for name in ("parameters", "requestBody") if name in operation}
    schema = _body_reference(operation).rpartition("/")[2]
    if schema:
        shown["body"] = document["components"]["schemas"].get(schema, {})
        shown.pop("requestBody", None)
    text = escape(operation.get("description") or "")
    return (
        f"<details><summary><b>{method.upper()}</b><code>{escape(path)}</code> "
        f"{escape(operation.get('summary', ''))}</summary><p>{text}</p>{_json(shown)}</details>"
    )


def _body_reference(operation: Mapping[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("schema", {}).get("$ref", "")


def _channel_sections(document: Mapping[str, Any]) -> str:
    found = [
        f"<details><summary><code>{escape(channel.get('address') or name)}</code> {escape(name)}</summary>"
        f"<p>{escape(channel.get('description') or '')}</p>{_json(channel)}</details>"
        for name, channel in document["channels"].items()
    ]
    schemas = document["components"].get("schemas", {})
    models = [
        f"<details><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>"
        for name, schema in schemas.items()
    ]
    return f"<h2>channels</h2>{''.join(found)}<h2>schemas</h2>{''.join(models)}"


def _json(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2))}</pre>" if value else ""


def _page(title: str, source: str, content: str) -> Response:
    html = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<title>Banksman: {title}</title><link rel="stylesheet" href="docs.css">'
        f'<h1>Banksman: {title}</h1><p><a href="{source}">{source}</a></p>{content}</html>'
    )
    return Response(html, media_type="text/html", headers={"content-security-policy": PAGE_POLICY})
