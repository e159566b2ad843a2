"""An operation that is declared once is served, checked, recorded and described on every interface."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.routing import BaseRoute, Route
from tests.gateway.conftest import TOKENS, Served, gateway_on, key_of
from tests.support.fixtures import SecuredNats
from tools.client_types import javascript_routes, python_routes

from banksman.bus.connection import NatsSettings
from banksman.contracts.errors import NotFound
from banksman.contracts.wire import Stored
from banksman.deployment.users import GATEWAY
from banksman.gateway.composition import FEATURES, operations_of, routes_of
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.front import application
from banksman.gateway.interfaces.http.routes import OperationRoute
from banksman.gateway.operation.declaration import MISSING, Audit, Operations
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import CallerDep, RequestBody, ServiceMap, StrictBody, provided
from banksman.runtime.health import Health
from banksman.sdk import RemoteError, connect

TENANT = "acme"


class NewNote(RequestBody):
    text: str = Field(min_length=1)


class Note(Stored):
    id: str
    text: str


class Notes(dict[str, str]):
    """The notes, of all tenants."""


operations = Operations("notes")
Service = Annotated[Notes, provided(Notes)]


@operations.add("note.create", "POST /context/notes", status=201, audit=Audit("note.created", ("text",)))
async def create_note(body: StrictBody[NewNote], stored: Service, caller: CallerDep) -> Note:
    """Create a note."""
    note = Note(id=f"n{len(stored) + 1}", text=body.text)
    stored[f"{caller.tenant}.{note.id}"] = note.text
    return note


@operations.add("note.read", "GET /context/notes/{note_id}", errors=(MISSING,))
async def read_note(note_id: str, stored: Service, caller: CallerDep) -> Note:
    """Read a note."""
    if (text := stored.get(f"{caller.tenant}.{note_id}")) is None:
        raise NotFound("note", note_id)
    return Note(id=note_id, text=text)


async def build(base: Foundation) -> None:
    base.services.add(Notes())


NOTES = Feature(operations, build)


@pytest.fixture
async def gateway(secured_nats: SecuredNats) -> AsyncGenerator[Served]:
    """A gateway with the notes, on a server with accounts. The key of `reader` may only approve."""
    async with await secured_nats.connect(GATEWAY) as bus:
        nats = NatsSettings(
            url=secured_nats.server.url, nkey_seed_file=secured_nats.seed_file(GATEWAY), connect_timeout_s=10
        )
        keys = (
            key_of("alice", TENANT, rights=("chat", "approve", "admin")),
            key_of("reader", TENANT, rights=("approve",)),
        )
        features = (*FEATURES, NOTES)
        async with gateway_on(
            secured_nats.server, bus, TENANT, nats=nats, keys=keys, features=features
        ) as served:
            served.headers = {"authorization": f"Bearer {TOKENS['alice']}"}
            yield served


async def test_an_operation_is_served_checked_recorded_and_described_on_http_and_nats(
    gateway: Served, secured_nats: SecuredNats
) -> None:
    """R114: its declaration is all that HTTP, NATS, the trail and both documents need."""
    seed = secured_nats.seed_file(f"tenant-{TENANT}")
    reader = {"authorization": f"Bearer {TOKENS['reader']}"}
    async with gateway.http as http, connect(secured_nats.server.url, TENANT, nkey_seed_file=seed) as client:
        created = await http.post("/context/notes", json={"text": "over HTTP"})
        refused = await http.post("/context/notes", json={"text": "no"}, headers=reader)
        invalid = await http.post("/context/notes", json={"text": ""})
        transport = client._transport  # calls operations by name
        over_nats = await transport.call("note.create", Note, body={"text": "over NATS"})
        read = await transport.call("note.read", Note, created.json()["id"])
        with pytest.raises(RemoteError) as missing:
            await transport.call("note.read", Note, "n99")
        trail = (await http.get("/v1/audit", params={"action": "note.created"})).json()["items"]
        openapi, asyncapi = await documents(http)

    assert (created.status_code, refused.status_code, invalid.status_code) == (201, 403, 400)
    assert invalid.json()["error"]["field"] == "text"
    assert (over_nats, read) == (Note(id="n2", text="over NATS"), Note(id="n1", text="over HTTP"))
    assert missing.value.frame.code == "not_found"
    recorded = [(one["actor"], one["interface"], one["target"], one["details"]) for one in trail]
    assert recorded == [
        ("nats", "nats", "n2", {"text": "over NATS"}),
        ("alice", "http", "n1", {"text": "over HTTP"}),
    ]
    assert openapi["paths"]["/context/notes/{note_id}"]["get"]["description"] == "Read a note."
    assert asyncapi["channels"]["note read"]["address"] == "api.{tenant}.note.read.{note_id}"
    assert "not_found" in asyncapi["operations"]["note read"]["x-error-codes"]


async def documents(http: httpx.AsyncClient) -> tuple[dict[str, Any], dict[str, Any]]:
    return (await http.get("/openapi.json")).json(), (await http.get("/asyncapi.json")).json()


def test_the_clients_get_the_route_of_an_operation() -> None:
    assert json.loads(python_routes(operations))["note.read"] == ["GET", "/context/notes/{note_id}"]
    assert '  "note.create": ["POST", "/context/notes"],' in list(javascript_routes(operations))


def test_an_operation_that_an_interface_lacks_states_the_reason() -> None:
    for operation in operations_of(FEATURES):
        assert bool(operation.path) != bool(operation.not_over_http), operation.name
        assert operation.not_over_nats == "" or len(operation.not_over_nats) > 20, operation.name


def test_every_http_handler_is_an_operation_or_a_route_of_a_protocol() -> None:
    app: FastAPI = application(
        Health("test"), Dispatcher(operations_of(FEATURES), ServiceMap()), routes_of(FEATURES)
    )
    others = [route for route in app.router.routes if not isinstance(route, OperationRoute)]
    assert {path_of(route) for route in others} == PROTOCOLS
    served = [(one.operation.name, one.path) for one in app.router.routes if isinstance(one, OperationRoute)]
    assert served == [(one.name, one.path) for one in operations_of(FEATURES) if one.path]


def path_of(route: BaseRoute) -> str:
    assert isinstance(route, Route | APIRoute)
    return route.path


PROTOCOLS = {
    # Files of the page, and documents.
    *("/", "/static/{path:path}", "/service_worker.js"),
    *("/docs", "/docs.css", "/openapi.json", "/asyncapi", "/asyncapi.json", "/v1/schemas/ws.json"),
    # Forwarded requests, whose bodies are not parsed.
    *("/v1/models", "/v1/models/{model:path}", "/v1/chat/completions", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens", "/.well-known/agent-card.json"),
    # Health.
    *("/healthz", "/readyz"),
}
"""The routes that are no operations."""
