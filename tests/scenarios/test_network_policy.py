"""The network policy of an assistant, from its settings to the socket."""

from __future__ import annotations

import shlex
from typing import Any

import httpx
import pytest

from tests.scenarios.conftest import Play
from tests.scenarios.test_assistants import TOOLS_ON, created
from tests.support.client import Client
from tests.support.replies import bash
from tests.support.scripted_models import ScriptedCall, ScriptedReply

AUTO = [{"action": "auto"}]


async def first_result(
    client: Client, http: httpx.AsyncClient, model: str, network: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the result of the first call of a run, with an assistant that has this network policy."""
    tools = TOOLS_ON if network is None else {**TOOLS_ON, "network": network}
    assistant = await created(http, model=model, tools=tools, approval_policy=AUTO)
    outcome = await client.run(await client.create(assistant=assistant), "go")
    return outcome["tool_calls"][0]["result"]


@pytest.mark.parametrize(
    ("network", "success"),
    [
        (None, True),
        ({"allow_hosts": ["127.0.0.1"]}, True),
        ({"allow_hosts": ["*.example.org"]}, False),
        ({"deny_hosts": ["127.0.0.1"]}, False),
    ],
)
async def test_an_assistant_fetches_from_its_hosts_only(
    client: Client, http: httpx.AsyncClient, play: Play, json_api: str, network: Any, success: bool
) -> None:
    """R73."""
    url = f"http://{json_api}/changes/"
    name = play(
        ScriptedReply(tool_calls=(ScriptedCall(name="web_fetch", arguments={"url": url}),)),
        ScriptedReply(text="ok"),
    )
    result = await first_result(client, http, name, network)
    assert result["success"] is success
    assert success or "is not allowed for this assistant" in result["error"]


async def test_a_command_connects_to_hosts_that_its_assistant_grants(
    client: Client, http: httpx.AsyncClient, play: Play, json_api: str
) -> None:
    program = f"import urllib.request as r; print(r.urlopen('http://{json_api}/changes/').status)"
    seen: list[str] = []
    for network in (None, {"commands": True}, {"commands": True, "allow_hosts": ["example.org"]}):
        name = play(bash(f"python3 -c {shlex.quote(program)}"), ScriptedReply(text="ok"))
        result = await first_result(client, http, name, network)
        seen.append(result["stdout"] or result["stderr"].splitlines()[-1])
    assert seen[1] == "200\n"
    assert ("URLError" in seen[0], "403" in seen[2]) == (True, True)


async def test_an_approval_request_shows_the_hosts_of_a_call(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    policy = {"commands": True, "allow_hosts": ["example.org"]}
    name = play(bash("echo hi"), ScriptedReply(text="ok"))
    assistant = await created(http, model=name, tools={**TOOLS_ON, "network": policy})
    run_id = await client.chat(await client.create(assistant=assistant), "go")
    request = await client.approval_request(run_id)
    assert request["items"][0]["network"] == {**policy, "deny_hosts": []}
    await client.approve(run_id)
    assert (await client.finished(run_id))["status"] == "completed"


async def test_an_invalid_host_pattern_is_refused_when_it_is_set(http: httpx.AsyncClient) -> None:
    body = {"tools": {"network": {"allow_hosts": ["http://example.org/"]}}}
    response = await http.post("/context/assistants", json=body)
    assert response.status_code == 400
    assert "a host such as example.org" in response.text
