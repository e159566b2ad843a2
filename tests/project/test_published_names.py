"""Every name that the interfaces publish is in a test: an interface without one would change unnoticed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from tools.reference import nats_document

from banksman.contracts.errors import ErrorCode
from banksman.gateway.composition import FEATURES, operations_of, routes_of
from banksman.gateway.front import application
from banksman.gateway.interfaces.http.routes import websocket_schema
from banksman.gateway.interfaces.websocket import transport
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import ServiceMap
from banksman.runtime.health import Health
from tests.support.paths import ROOT

NAME_ALL = {"test_rights.py", "test_published_names.py", "samples.py", "test_frozen_broker.py"}
"""Files that list names without testing them."""
PARAMETER = r"""(?:\{[^}]*\}|[^/"'?\s]+)"""
UNTESTED_CODES = {1000, 1001}
"""Close codes of clients."""


OTHER_NAMES = {
    "/context/conversations/{conversation_id}/archive": "/archive",
    "/context/assistants/{assistant_id}/revisions": '{PATH}/revisions"',
    "/context/assistants/{assistant_id}/revisions/{revision}": "['revision']}\")",
    "/context/assistants/{assistant_id}/revisions/{revision}/changes": "['revision']}/changes\"",
    "/context/assistants/{assistant_id}/revisions/{revision}/restore": "['revision']}/restore\"",
    "/context/chat/messages": '/context/chat", api_key',
    "/v1/messages/count_tokens": "messages.count_tokens(",
    "/context/schedules/coming": '{PATH}/coming"',
    "/context/schedules/{schedule_id}/run": "['id']}/run\"",
    "/context/webhooks/{webhook_id}": "/context/webhooks",
    "/context/webhooks/{webhook_id}/test": "['id']}/test\"",
    "/context/mcp-servers/{server_id}": "/context/mcp-servers",
    "/context/mcp-servers/{server_id}/look": '/look"',
    "/context/mcp-servers/{server_id}/approve": '/approve"',
    "/context/mcp-servers/{server_id}/prompt": '/prompt"',
    "/context/mcp-servers/{server_id}/sign-in": '/sign-in"',
    "/context/mcp-servers/{server_id}/sign-in/finish": '/sign-in/finish"',
    "/context/mcp-accounts/{server_id}/sign-in": '{OWN}/issues/sign-in"',
    "/context/mcp-accounts/{server_id}/sign-in/finish": '{SIGN_IN}/finish"',
    "workspace.restored": "WorkspaceRestored(",
    "approval.forgotten": "ApprovalForgotten(",
    "approval.escalated": "isinstance(body, ApprovalEscalated)",
    "tool list": ".tools()",
    "assistant read": ".assistant(",
    "assistant update": ".update_assistant(",
    "assistant delete": ".delete_assistant(",
    "schedule coming": 'request("coming")',
    "schedule list": 'subjects.api(TENANT, "schedule"',
    "schedule read": 'subjects.api(TENANT, "schedule"',
    "schedule delete": 'subjects.api(TENANT, "schedule"',
    "/context/model-servers/{name}": "SERVERS}/{",
    "/context/model-servers/{name}/test": "{named}/test",
    "conversation share": 'subjects.api(tenant, "conversation"',
    "instructions read": 'subjects.api(tenant, "instructions"',
    "instructions set": 'subjects.api(tenant, "instructions"',
    "model_server list": 'subjects.api(tenant, "model_server"',
    "model_server set": 'subjects.api(tenant, "model_server"',
    "model_server delete": 'subjects.api(tenant, "model_server"',
    "model_server test": 'subjects.api(tenant, "model_server"',
    "search_provider read": 'subjects.api(tenant, "search_provider"',
    "search_provider set": 'subjects.api(tenant, "search_provider"',
    "search_provider delete": 'subjects.api(tenant, "search_provider"',
    "search_provider test": 'subjects.api(tenant, "search_provider"',
    "/context/search-provider/test": '{PROVIDER}/test"',
    "secret list": 'subjects.api(tenant, "secret"',
    "secret set": 'subjects.api(tenant, "secret"',
    "secret delete": 'subjects.api(tenant, "secret"',
}
"""The text in tests that use a name through a client or a variable."""
WITHOUT_USE = {"call_limit"}
"""Published for clients of a later version: nothing ends a run with it."""


@cache
def sources() -> str:
    """Return the sources of the tests."""
    files = [file for file in (ROOT / "tests").rglob("*.py") if file.name not in NAME_ALL]
    files += [file for file in (ROOT / "tests").rglob("*.mjs") if "node_modules" not in file.parts]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def quoted(name: str) -> re.Pattern[str]:
    return re.compile(rf"""["'`]{re.escape(name)}["'`]""")


def paths() -> Iterator[tuple[str, re.Pattern[str]]]:
    app = application(Health("test"), Dispatcher(operations_of(FEATURES), ServiceMap()), routes_of(FEATURES))
    for path in app.openapi()["paths"]:
        parts = [PARAMETER if part.startswith("{") else re.escape(part) for part in path.split("/")]
        yield path, re.compile(rf"""{"/".join(parts)}(?:["'?]|$)""", re.MULTILINE)


def frames() -> Iterator[tuple[str, re.Pattern[str]]]:
    document = websocket_schema()
    found = {*document["client"]["discriminator"]["mapping"]}
    found |= {
        frame["properties"]["type"]["default"]
        for frame in document["server"]["$defs"].values()
        if _is_frame(frame)
    }
    found |= {frame["title"] for frame in document["events"]["oneOf"]}
    return ((name, quoted(name)) for name in sorted(found))


def _is_frame(schema: dict[str, Any]) -> bool:
    return "default" in schema.get("properties", {}).get("type", {})


def requests() -> Iterator[tuple[str, re.Pattern[str]]]:
    for title, operation in nats_document()["operations"].items():
        if "x-error-codes" in operation:
            words = title.split()
            forms = (" ".join(words), ".".join(words), '", "'.join(words))
            yield title, re.compile("|".join(map(re.escape, forms)))


def codes() -> Iterator[tuple[str, re.Pattern[str]]]:
    for name, value in vars(transport).items():
        if name.isupper() and isinstance(value, int) and value not in UNTESTED_CODES and 1000 <= value < 5000:
            yield f"{value}", re.compile(rf"\b{value}\b|\b{name}\b")
    for code in ErrorCode:
        if code.value not in WITHOUT_USE:
            yield code.value, re.compile(rf"""\b{code.value}["'`]|ErrorCode\.{code.name}\b""")


def test_every_published_name_is_in_a_test() -> None:
    """Interfaces, sections 1, 3, 6 and 8: each endpoint, frame, event, subject, close code and error."""
    published = [*paths(), *frames(), *requests(), *codes()]
    assert len(published) > 150
    patterns = (
        (name, re.compile(re.escape(OTHER_NAMES[name])) if name in OTHER_NAMES else pattern)
        for name, pattern in published
    )
    assert [name for name, pattern in patterns if not pattern.search(sources())] == []
