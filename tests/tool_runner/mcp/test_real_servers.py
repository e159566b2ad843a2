"""Servers of others as they are published, run in the sandbox: what each one offers, and that it works."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.support.mcp_programs import PINS, linked, node_packages, python_packages
from tests.support.paths import ROOT
from tests.tool_runner.conftest import Runner, only
from tests.tool_runner.mcp.clients import mcp_client

from banksman.contracts.mcp import McpTarget, ServedTool, StdioServer
from banksman.tool_runner.mcp.servers import McpClient
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.settings import GIB, RunnerLimits, SandboxLimits
from banksman.tool_runner.tools.toolbox import ToolOutcome, ToolRun

pytestmark = [
    only("bwrap", "containers of the backend docker have no channel"),
    pytest.mark.timeout(180),
]
"""Seconds; Node and Chromium start slowly on a busy machine."""

NODE_PINS, PYTHON_PINS = ((PINS / name).read_text() for name in ("package.json", "python.in"))
SQLITE_PINS = (PINS / "sqlite.in").read_text()
NODE = "/workspace/node_modules"
FILES = f"{NODE}/@modelcontextprotocol/server"
PLAYWRIGHT = (f"{NODE}/@playwright/mcp/cli.js", "--headless", "--isolated", "--no-sandbox")
# The script `/usr/bin/chromium` needs `/etc/chromium.d`.
CHROMIUM = ("--executable-path", "/usr/lib/chromium/chromium", "--output-dir", "/workspace/browser")


@pytest.fixture
def limits() -> RunnerLimits:
    """Chromium needs more than the default limits."""
    sandbox = SandboxLimits(data_bytes=4 * GIB, memory_bytes=2 * GIB, max_processes=512, max_open_files=4096)
    return RunnerLimits(sandbox=sandbox)


class Conversation:
    """The calls of one conversation to one server."""

    def __init__(self, client: McpClient, runner: Runner, server: StdioServer) -> None:
        self.client, self.runner, self.server = client, runner, server
        self.tools: dict[str, ServedTool] = {}

    async def list(self) -> set[str]:
        """Return the names of the tools; all must be usable."""
        found = await self.client.list_tools(self.server, self.runner.workspace)
        assert found.refused == ()
        self.tools = {tool.name: tool for tool in found.usable}
        return set(self.tools)

    async def outcome(self, name: str, shown: list[str] | None = None, /, **arguments: Any) -> ToolOutcome:
        """Call a tool."""
        progress = [] if shown is None else shown
        run = ToolRun(
            self.runner.workspace, 60, Stop(), lambda _, text: progress.append(text.split()[0].strip())
        )
        target = McpTarget(transport=self.server, tool=name, digest=self.tools[name].digest)
        return await self.client.call(target, arguments, run)

    async def text(self, name: str, shown: list[str] | None = None, /, **arguments: Any) -> str:
        """Call a tool and return its text; add its progress to `shown`. The call must succeed."""
        outcome = await self.outcome(name, shown, **arguments)
        assert outcome.value["success"] is True, str(outcome.value)
        return str(outcome.value["result"])


@pytest.fixture
async def client(runner: Runner, limits: RunnerLimits) -> AsyncGenerator[McpClient]:
    async with mcp_client(limits, runner.sandbox) as client:
        yield client


@pytest.fixture
def files(runner: Runner) -> Path:
    return runner.workspace.directory


def in_node(client: McpClient, runner: Runner, *arguments: str, **env: str) -> Conversation:
    linked(node_packages(), runner.workspace.directory / "node_modules")
    return Conversation(client, runner, StdioServer(command=("/usr/bin/node", *arguments), env=env))


def in_python(
    client: McpClient, runner: Runner, *arguments: str, packages: str = "python", **env: str
) -> Conversation:
    linked(python_packages(packages), runner.workspace.directory / "site")
    command, env = ("/usr/bin/python3", *arguments), {"PYTHONPATH": "/workspace/site", **env}
    return Conversation(client, runner, StdioServer(command=command, env=env))


def tried(name: str, pins: str, server: Conversation) -> None:
    """Compare the row of a server in the documentation with the pin and with the tools that it listed."""
    (version,) = re.findall(rf"{name}(?:==|\": \")([0-9.]+)", pins)
    (row,) = re.findall(rf"^\| `@?[a-z/]*{name}` .*$", (ROOT / "docs/mcp.md").read_text(), re.MULTILINE)
    assert row.split(" | ")[1:3] == [version, str(len(server.tools))]


async def test_server_everything(client: McpClient, runner: Runner) -> None:
    server = in_node(client, runner, f"{FILES}-everything/dist/index.js", "stdio")
    assert await server.list() >= {"echo", "get-sum", "trigger-long-running-operation"}
    assert await server.text("echo", message="hello") == "Echo: hello"
    assert "5" in await server.text("get-sum", a=2, b=3)
    assert "file:///workspace" in await server.text("get-roots-list")
    assert "demo://resource" in await server.text("read_resource")
    assert "simple-prompt" in await server.text("get_prompt")
    assert await server.text("get_prompt", name="simple-prompt")
    shown: list[str] = []
    await server.text("trigger-long-running-operation", shown, duration=0.2, steps=2)
    assert shown == ["1/2", "2/2"]
    tried("server-everything", NODE_PINS, server)


async def test_server_filesystem(client: McpClient, runner: Runner, files: Path) -> None:
    server = in_node(client, runner, f"{FILES}-filesystem/dist/index.js", "/workspace")
    await server.list()
    await server.text("write_file", path="/workspace/a.txt", content="one")
    refused = await server.outcome("read_text_file", path="/etc/passwd")
    assert await server.text("read_text_file", path="/workspace/a.txt") == "one"
    assert (files / "a.txt").read_text() == "one"
    assert "Access denied" in str(refused.value["error"])
    tried("server-filesystem", NODE_PINS, server)


async def test_server_memory(client: McpClient, runner: Runner) -> None:
    place = {"MEMORY_FILE_PATH": "/workspace/memory.jsonl"}
    server = in_node(client, runner, f"{FILES}-memory/dist/index.js", **place)
    await server.list()
    ada = {"name": "ada", "entityType": "person", "observations": ["writes notes"]}
    await server.text("create_entities", entities=[ada])
    assert "writes notes" in await server.text("search_nodes", query="ada")
    tried("server-memory", NODE_PINS, server)


async def test_mcp_server_git(client: McpClient, runner: Runner) -> None:
    server = in_python(client, runner, "-m", "mcp_server_git", GIT_TEST_ASSUME_DIFFERENT_OWNER="false")
    made = "mkdir repository && cd repository && git init -q && echo one > a && git add a"
    await runner.box.run("bash", runner.workspace, {"command": made})
    await server.list()
    assert "new file" in await server.text("git_status", repo_path="/workspace/repository")
    tried("mcp-server-git", PYTHON_PINS, server)


async def test_mcp_server_time(client: McpClient, runner: Runner) -> None:
    server = in_python(client, runner, "-m", "mcp_server_time")
    await server.list()
    assert '"timezone": "Europe/Berlin"' in await server.text("get_current_time", timezone="Europe/Berlin")
    tried("mcp-server-time", PYTHON_PINS, server)


async def test_mcp_server_fetch_has_no_network(client: McpClient, runner: Runner) -> None:
    server = in_python(client, runner, "-m", "mcp_server_fetch")
    await server.list()
    refused = await server.outcome("fetch", url="https://example.org/")
    assert "connection issue" in str(refused.value["error"])
    tried("mcp-server-fetch", PYTHON_PINS, server)


async def test_mcp_server_sqlite(client: McpClient, runner: Runner) -> None:
    program = "import mcp_server_sqlite; mcp_server_sqlite.main()"
    arguments = ("-c", program, "--db-path", "/workspace/a.db")
    server = in_python(client, runner, *arguments, packages="sqlite")
    await server.list()
    await server.text("create_table", query="CREATE TABLE notes (text TEXT)")
    await server.text("write_query", query="INSERT INTO notes VALUES ('kept')")
    assert "kept" in await server.text("read_query", query="SELECT * FROM notes")
    tried("mcp-server-sqlite", SQLITE_PINS, server)


async def test_playwright_mcp_keeps_its_page_between_calls(
    client: McpClient, runner: Runner, files: Path
) -> None:
    (files / "page.html").write_text(
        "<title>A page</title><button onclick='this.textContent=1'>Press</button>"
    )
    server = in_node(client, runner, *PLAYWRIGHT, *CHROMIUM, "--allow-unrestricted-file-access")
    await server.list()
    opened = await server.text("browser_navigate", url="file:///workspace/page.html")
    await server.text("browser_evaluate", function="() => document.querySelector('button').click()")
    assert "A page" in opened
    assert 'button "1"' in await server.text("browser_snapshot")
    tried("playwright/mcp", NODE_PINS, server)
