"""The structure of the product: services over NATS, each with one concern, in the specified layout."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.registry import WorkflowList
from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.paths import ROOT
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import System, descendants
from tests.support.timeouts import WAIT_TIMEOUT_S

SERVICES = ("gateway", "agent", "tool-runner", "workflows")
LIBRARIES = ("faststream", "nats-py", "pydantic", "httpx", "anthropic", "docker", "pytest", "testcontainers")
CANARIES = ("sk-test-canary-openai", "sk-ant-test-canary-anthropic")


def test_the_tree_has_the_specified_layout() -> None:
    """R107: services, shared code, tests, and the files that build and start them."""
    folders = [f"services/{name}" for name in SERVICES] + ["shared", "tests"]
    files = ["pyproject.toml", "compose.yaml", "Makefile"]

    assert [path for path in folders if not (ROOT / path).is_dir()] == []
    assert [path for path in files if not (ROOT / path).is_file()] == []
    assert all(list((ROOT / "services" / name).glob("banksman/*/app.py")) for name in SERVICES)


def test_the_specified_libraries_are_declared_and_installed() -> None:
    """R107: the specified libraries are used, and none under another name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = json.dumps([project["dependencies"], project["optional-dependencies"]])

    assert [name for name in LIBRARIES if f'"{name}' not in declared] == []
    assert all(version(name) for name in LIBRARIES)


def test_every_service_has_a_container() -> None:
    """R107: compose starts NATS and each service in its own container."""
    compose = (ROOT / "compose.yaml").read_text()

    assert [
        name for name in ("nats", *SERVICES) if not re.search(rf"^  {name}:", compose, re.MULTILINE)
    ] == []


async def test_each_service_is_a_process_that_reports_readiness(system: System) -> None:
    """R28, R107: gateway, agents, tool-runner and workflows are separate processes beside nats-server."""
    run = json.loads((system.data_dir / "run.json").read_text())

    assert set(run["processes"]) == {"nats", "gateway", "agent-1", "agent-2", "tool-runner", "workflows"}
    assert len({process["pid"] for process in run["processes"].values()}) == 6
    async with httpx.AsyncClient(timeout=WAIT_TIMEOUT_S) as http:
        statuses = {name: (await http.get(url)).status_code for name, url in run["health"].items()}
    assert set(statuses.values()) == {200}, statuses


async def test_each_part_of_the_backend_has_its_own_interface(
    client: Client, http: httpx.AsyncClient, operator: Bus, play: Play
) -> None:
    """R28: the loop is in the agent, tools in the runner, prompts in their store, workflows in theirs."""
    conversation = await client.create(
        play(
            ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments={"path": "x"}),)),
            ScriptedReply(text="ok"),
        )
    )
    await client.run(conversation, "go")
    [result] = client.events(conversation, "tool_call.completed")
    listed = WorkflowList.model_validate_json(await operator.request(subjects.workflow_api("list"), b"{}", 5))

    assert result["data"]["runner"]
    assert "create_project" in [workflow.name for workflow in listed.workflows]
    assert (await http.get("/v1/system-prompts/default/enhanced")).status_code == 200
    assert (await http.get("/context/assistants/default")).json()["tools"]["enabled"] is True


def test_vendor_keys_exist_only_where_models_are_called(system: System) -> None:
    """R17, R109: agents and the gateway's passthrough have the keys; runner, workflows and NATS do not."""
    given = {name: str(environment) for name, environment in system.environments().items()}
    shown = [_environment(pid) for pid in descendants(system.pid)]

    holders = {name for name, text in given.items() if any(canary in text for canary in CANARIES)}

    assert holders == {"agent-1", "agent-2", "gateway"}
    # The content of /proc for every process, including the process that forks all services.
    assert not [text for text in shown for canary in CANARIES if canary in text]


async def test_a_command_has_no_key_no_network_and_no_other_files(client: Client, play: Play) -> None:
    """R17, R109: a model's command is confined to its workspace."""
    command = (
        "env | grep -ci 'key\\|nkey\\|banksman_\\|nats'; "
        "ls /workspace | wc -l; ls /work /root /home 2>&1 | grep -c banksman; "
        "(echo > /dev/tcp/1.1.1.1/53) 2>/dev/null && echo online || echo offline; id -u"
    )
    conversation = await client.create(
        play(
            ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": command}),)),
            ScriptedReply(text="ok"),
        )
    )
    run_id = await client.chat(conversation, "go")
    await client.approve(run_id)

    outcome = await client.finished(run_id)

    secrets, files, ours, network, uid = outcome["tool_calls"][0]["result"]["stdout"].split()
    assert (secrets, files, ours, network) == ("0", "0", "0", "offline")
    assert uid != "0"


async def test_the_page_selects_workflows_and_parses_no_calls(
    http: httpx.AsyncClient,
) -> None:
    """R38, R16: the selector requests workflow categories; no module requests tools or parses a call."""
    index = (await http.get("/")).text
    modules = await _modules(http, index)

    source = "\n".join(modules.values())
    assert "workflows/categories" in source and "approval.requested" in source
    assert "tools/available" not in source and '"tool"' not in source and '"parameters"' not in source
    assert len(modules) > 5


@pytest.mark.parametrize("protocol", ["native", "json_text"])
async def test_a_frontend_needs_only_messages_approval_requests_and_outcomes(
    client: Client, play: Play, protocol: str
) -> None:
    """R38, R29: an approval request is complete at the lowest detail; a client parses nothing."""
    name = play(
        _call(protocol, "read_file", path="x"),
        _call(protocol, "bash", command="echo 1"),
        ScriptedReply(text="Done."),
    )
    conversation = await client.create(name, detail="final", settings={"tool_protocol": protocol})
    run_id = await client.chat(conversation, "go")

    approval_request = await client.approval_request(run_id)
    [item] = approval_request["items"]
    await client.approve(run_id)
    outcome = await client.finished(run_id)

    requested_in = [f["iteration"] for f in client.events(conversation, "approval.requested")]
    assert (item["name"], item["arguments"], requested_in) == ("bash", {"command": "echo 1"}, [2])
    assert outcome["content"] == "Done."
    types = {event["type"] for event in client.events(conversation)}
    assert types <= {
        "run.started",
        "message.completed",
        "approval.requested",
        "approval.resolved",
        "run.finished",
    }
    texts = [e["data"]["content"] for e in client.events(conversation, "message.completed")]
    assert not any(text and "{" in text for text in texts)


def _call(protocol: str, tool: str, **arguments: str) -> ScriptedReply:
    """Return a reply that is one call, as a model would write it."""
    if protocol == "native":
        return ScriptedReply(tool_calls=(ScriptedCall(name=tool, arguments=arguments),))
    return ScriptedReply(text=json.dumps({"tool": tool, "parameters": arguments, "terminate": False}))


async def _modules(http: httpx.AsyncClient, index: str) -> dict[str, str]:
    """Return the page's own modules by following their imports."""
    base = httpx.URL("http://page/")
    ahead = [base.join(src) for src in re.findall(r'<script[^>]*src="([^"]+\.mjs)"', index)]
    found: dict[str, str] = {}
    while ahead:
        url = ahead.pop()
        if url.path in found or "/vendor/" in url.path:
            continue
        response = await http.get(url.path)
        assert response.status_code == 200, url.path
        found[url.path] = response.text
        ahead += [url.join(path) for path in re.findall(r"from '(\.[^']+\.mjs)'", response.text)]
    return found


def _environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""
