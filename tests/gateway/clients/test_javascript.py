"""The package `@banksman/client`."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.contracts.messages.samples import BODIES, TS
from tests.gateway.clients.drivers import CLIENT
from tests.gateway.conftest import Served
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.contracts.event_frames import LEVELS
from banksman.contracts.events import Event
from banksman.gateway.composition import FEATURES, operations_of, routes_of
from banksman.gateway.front import application
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import ServiceMap
from banksman.runtime.health import Health

UNDESCRIBED = {
    *(("GET", "/v1/sign-in"), ("POST", "/v1/sign-in"), ("DELETE", "/v1/sign-in")),
    *(("POST", "/v1/sign-in/renew"), ("POST", "/v1/invitations")),
    *(("POST", "/mcp"), ("POST", "/context/chat/v1/messages")),
}
"""Routes of the page, of a protocol and of a vendor's SDK, which the OpenAPI document omits."""
REQUESTED = re.compile(
    r"(?:this|\bapi)\s*\.(?:call|items|blob|#fetch|#url)\(\s*'([a-z_.]+)'(?:,\s*\{([^}]*)\})?"
)
"""A request of the client or of the page for an operation, with the parameters that it gives."""
EVENTS = [Event(seq=1, ts=TS, data=body) for body in BODIES]


async def run(folder: Path, *command: str) -> tuple[int | None, str]:
    """Run a command; return its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, output.decode()


async def test_a_typed_program_compiles_against_the_packed_client(node_folder: Path) -> None:
    """The program also has lines that must not compile."""
    assert await run(node_folder, "node_modules/.bin/tsc", "--project", ".") == (0, "")


async def test_a_refused_token_ends_the_client_with_one_sentence(guarded: Served, node_folder: Path) -> None:
    code, output = await run(
        node_folder,
        "node",
        "--unhandled-rejections=strict",
        "follow.mjs",
        guarded.url,
        "wrong",
        "c1",
        "c2",
        "9",
    )

    assert code == 1
    assert "The gateway ended the connection" in output and "code: 'unauthorized'" in output


def test_the_client_knows_the_level_of_every_event() -> None:
    listed = dict(re.findall(r'"([a-z_.]+)": "(steps|full)"', (CLIENT / "levels.mjs").read_text("utf-8")))
    live = {"tool_call.started": "steps", "tool_call.output": "full", "reasoning.delta": "full"}
    stored = {event.data.type: LEVELS[event.data.type] for event in EVENTS}
    assert listed == live | {kind: level for kind, level in stored.items() if level != "final"}


def test_the_client_requests_operations_that_exist_with_the_parameters_of_their_path() -> None:
    text = (CLIENT / "routes.mjs").read_text("utf-8")
    paths = dict(re.findall(r'"([a-z_.]+)": \["[A-Z]+", "(.+)"\]', text))
    modules = [path for path in CLIENT.parent.rglob("*.mjs") if "vendor" not in path.parts]
    requests = [one for path in modules for one in REQUESTED.findall(path.read_text("utf-8"))]

    assert len(requests) > 100
    assert [name for name, _ in requests if name not in paths] == []
    for name, given in requests:
        assert set(re.findall(r"\{(\w+)\}", paths[name])) <= set(re.findall(r"\w+", given)), name


def test_every_route_of_the_client_is_in_the_api_document() -> None:
    routes = re.findall(r'"([a-z_.]+)": \["([A-Z]+)", "(.+)"\]', (CLIENT / "routes.mjs").read_text("utf-8"))
    dispatcher = Dispatcher(operations_of(FEATURES), ServiceMap())
    app = application(Health("test"), dispatcher, routes_of(FEATURES))
    described = {(method.upper(), path) for path, found in app.openapi()["paths"].items() for method in found}
    assert {(method, path) for _, method, path in routes} <= described | UNDESCRIBED
    names = [name for name, _, _ in routes]
    assert names == sorted(set(names))
