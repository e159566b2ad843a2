"""One running system for all scenarios: `banksman up`, with a scripted model server as its vendors."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from banksman import sdk
from banksman.bus.connection import Bus, NatsSettings
from banksman.cli.machine import free_port
from tests.scenarios.gerrit import gerrit
from tests.support import privileged
from tests.support.client import Client
from tests.support.paths import ROOT
from tests.support.polling import eventually
from tests.support.scripted_models import RawReply, ScriptedReply
from tests.support.system import ScriptedModel, System, scripted_model
from tests.support.timeouts import WAIT_TIMEOUT_S

T = TypeVar("T")
Play = Callable[..., str]

TENANTS = {
    "thrifty": {"tokens_per_day": 500},
    "poor": {"cost_usd_per_month": 60.0},
    "poor-per-run": {"max_cost_usd_per_run": 60.0},
    "bounded": {
        "max_iterations": 2,
        "run_timeout_s": 60,
        "calls_per_reply": 2,
    },
    "modest": {"calls_per_reply": 2, "max_tokens_per_run": 1_000},
}
"""Tenants with limits. Only services on NATS use them."""

VENDORS = {
    "claude": ("anthropic", "", "anthropic"),
    "deepseek": ("chat", "", "deepseek"),
    "gemini": ("chat", "/v1beta/openai", "gemini"),
    "gpt": ("chat", "/v1", "openai"),
    "gpt-responses": ("responses", "/v1", "openai"),
    "mistral": ("chat", "/v1", "mistral"),
    "ollama": ("chat", "/v1", "ollama"),
}
"""The API, the path and the vendor of providers. Importing the stand-ins would cost every worker seconds."""

PRICED = "priced"
"""The script whose model has a price: one dollar per token."""


@pytest.fixture(scope="session")
def model() -> Generator[ScriptedModel]:
    """The model server. No request of the whole session may violate the vendors' rules."""
    with scripted_model() as scripted:
        yield scripted
        # The test of the described API starts runs in conversations of other tests, whose scripts have ended.
        broken = [one for one in scripted.violations() if "replies; number" not in one["message"]]
        assert broken == []


@pytest.fixture(scope="session")
def json_api() -> Generator[str]:
    """The address and port of a local JSON API that the system's runner may fetch from."""
    with gerrit() as address:
        yield address


@pytest.fixture(scope="session")
def backboard_port() -> int:
    """The port of Backboard in the system's settings, on which a test may serve it."""
    return free_port()


@pytest.fixture(scope="session")
def webhook_port() -> int:
    """The port to which webhooks of the system may be sent, on which a test may serve a receiver."""
    return free_port()


@pytest.fixture(scope="session")
def vendors() -> dict[str, dict[str, str]]:
    """Providers at free ports, on which a test may serve a vendor's stand-in."""
    return {
        name: {
            "api": api,
            "base_url": f"http://127.0.0.1:{free_port()}{prefix}",
            "api_key": "key",
            "vendor": vendor,
        }
        for name, (api, prefix, vendor) in VENDORS.items()
    }


@pytest.fixture(scope="session")
def mcp_port() -> int:
    """The port that the system's runner may connect to, on which a test may serve MCP."""
    return free_port()


@pytest.fixture(scope="session")
def search_port() -> int:
    """The port of the search provider of tenant `searching`, on which a test may serve it."""
    return free_port()


@pytest.fixture(scope="session")
def git_port() -> int:
    """The port from which workspaces of the system may start, on which a test may serve a repository."""
    return free_port()


@pytest.fixture(scope="package")
def system(
    model: ScriptedModel,
    json_api: str,
    mcp_port: int,
    search_port: int,
    git_port: int,
    backboard_port: int,
    webhook_port: int,
    vendors: dict[str, dict[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[System]:
    """The system, started once. A test that kills processes starts its own."""
    data: Path = tmp_path_factory.mktemp("banksman")
    dear = {"input": 1_000_000, "output": 1_000_000}
    prices = {f"openai:scripted/{PRICED}": dear, f"anthropic:scripted/{PRICED}": dear}
    brave = {
        "provider": "brave",
        "url": f"http://127.0.0.1:{search_port}/res/v1/web/search",
        "secret": "SEARCH_KEY",
    }
    environment = {
        "BANKSMAN_LOCAL__AGENTS": "2",
        "BANKSMAN_SEARCH__NAMED": json.dumps({"searching": brave}),
        "BANKSMAN_AGENT__PRICES": json.dumps(prices),
        "BANKSMAN_TENANTS__NAMED": json.dumps(TENANTS),
        "BANKSMAN_MODELS__BACKBOARD_BASE_URL": f"http://127.0.0.1:{backboard_port}/api",
        "BANKSMAN_MODELS__PROVIDERS": json.dumps({"my-server": {"base_url": f"{model.url}/v1"}, **vendors}),
        "BANKSMAN_GATEWAY__WEBHOOK_ADDRESSES": json.dumps([f"127.0.0.1:{webhook_port}"]),
        # Bursts are sent as fast as they are acknowledged.
        "BANKSMAN_GATEWAY__FRAMES_PER_S": "1000",
        "BANKSMAN_TOOL_RUNNER__EGRESS__ALLOW_PRIVATE_ADDRESSES": json.dumps(
            [json_api, f"127.0.0.1:{mcp_port}", f"127.0.0.1:{search_port}", f"127.0.0.1:{git_port}"]
        ),
        "BANKSMAN_TOOL_RUNNER__EGRESS__REPOSITORIES": json.dumps({"*": [f"http://127.0.0.1:{git_port}/*"]}),
        "BANKSMAN_TOOL_RUNNER__EGRESS__ALLOW_COMMANDS": "true",
        "BANKSMAN_TOOL_RUNNER__TOOLCHAINS": json.dumps({"greeting": {"variables": {"GREETING": "hello"}}}),
    }
    running = System(data, model, environment)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
async def client(system: System) -> AsyncGenerator[Client]:
    """A websocket client after the handshake."""
    async with Client.connected(system.url, timeout_s=WAIT_TIMEOUT_S) as connected:
        yield connected


@pytest.fixture
async def http(system: System) -> AsyncGenerator[httpx.AsyncClient]:
    """An HTTP client of the gateway."""
    async with httpx.AsyncClient(base_url=system.url, timeout=WAIT_TIMEOUT_S * 2) as connected:
        yield connected


@pytest.fixture
async def nats(system: System) -> AsyncGenerator[sdk.Client]:
    """Another service on NATS, as a client of tenant `local`."""
    async with sdk.connect(nats_url(system), "local", nkey_seed_file=operator_seed(system)) as connected:
        yield connected


@pytest.fixture
async def operator(system: System) -> AsyncGenerator[Bus]:
    """The operator's connection, which may subscribe to everything."""
    settings = NatsSettings(
        url=nats_url(system), nkey_seed_file=operator_seed(system), connect_timeout_s=WAIT_TIMEOUT_S
    )
    async with await Bus(settings, name="scenario-operator", inbox_prefix="_INBOX_operator").open() as bus:
        yield bus


@pytest.fixture
def play(model: ScriptedModel, request: pytest.FixtureRequest) -> Play:
    """A function that loads replies for this test and returns the model's name."""

    def load(*replies: ScriptedReply | RawReply, vendor: str = "openai", **options: object) -> str:
        name = "".join(c if c.isalnum() else "-" for c in request.node.name)[-60:]
        model.play(name, replies, **options)
        return f"{vendor}:scripted/{name}"

    return load


@pytest.fixture(scope="session")
def node_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the JavaScript examples, with the NATS client that they need."""
    node, npm = shutil.which("node"), shutil.which("npm")
    privileged.require("node and npm", bool(node and npm), "the examples in JavaScript need them")
    folder = tmp_path_factory.mktemp("node") / "node"
    shutil.copytree(ROOT / "examples" / "node", folder, ignore=shutil.ignore_patterns("node_modules"))
    done = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_TIMEOUT_S,
    )
    privileged.require("npm packages", done.returncode == 0, f"npm ci: {done.stderr[-300:]}")
    return folder


def model_requests(model: ScriptedModel, name: str) -> list[dict[str, Any]]:
    """Return the bodies of a model's requests, oldest first."""
    return [request["body"] for request in model.requests(name.rpartition("/")[2])]


async def until(wanted: Callable[[], T | None]) -> T:
    """Wait for a state that sends no event: of a process, a log file, the end of a request."""
    return await eventually(wanted, WAIT_TIMEOUT_S)


async def logged(system: System, service: str, event: str, **fields: Any) -> dict[str, Any]:
    """Wait for the log line of a service with this event and these fields; return it."""

    def line() -> dict[str, Any] | None:
        # Parsing every line of a long log at every check would take longer than the run itself.
        entries = (json.loads(line) for line in _log_lines(system, service) if event in line)
        named = (entry for entry in entries if entry["event"].startswith(event))
        return next((e for e in named if all(e.get(k) == v for k, v in fields.items())), None)

    return await until(line)


def _log_lines(system: System, service: str) -> Iterator[str]:
    # A file that reaches its size limit is renamed to `….log.1` while a test searches it.
    for file in system.data_dir.glob(f"logs/{service}*.log*"):
        # The last line may be incomplete.
        yield from (line for line in file.read_text().splitlines(keepends=True) if line.endswith("}\n"))


def nats_url(system: System) -> str:
    """The URL of the system's nats-server."""
    return str(json.loads((system.data_dir / "run.json").read_text())["nats_url"])


def operator_seed(system: System) -> Path:
    """The operator's key."""
    return system.data_dir / "keys" / "operator.nk"
