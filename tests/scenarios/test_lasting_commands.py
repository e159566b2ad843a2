"""Commands in the background and sessions, end to end."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import httpx
import pytest

from banksman import sdk
from banksman.bus.errors import RemoteError
from tests.scenarios.conftest import Play
from tests.scenarios.test_workspace_tools import run_approved, use
from tests.support.client import Client
from tests.support.commands import run_command
from tests.support.scripted_models import ScriptedReply
from tests.support.system import System

SERVER = "python3 -u -m http.server 8123 --bind 127.0.0.1"
DONE = ScriptedReply(text="ok")


def results(outcome: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry["result"] for entry in outcome["tool_calls"]]


async def test_a_server_is_started_used_by_later_runs_and_stopped(client: Client, play: Play) -> None:
    first = (use("bash", command=SERVER, background=True), DONE)
    name = play(*first)
    conversation = await client.create(name)
    run_id = await client.chat(conversation, "go")
    request = await client.approval_request(run_id)
    (item,) = request["items"]
    assert item["arguments"] == {"command": SERVER, "background": True}
    assert item["preview"]["command"].startswith("# In the background")
    await client.request("approval.reply", approval_id=request["approval_id"], all="approve")
    (started,) = results(await client.finished(run_id))
    process = started["process"]
    assert (started["status"], started["command"]) == ("running", SERVER)

    fetch = "python3 -c \"import urllib.request as u; print(u.urlopen('http://localhost:8123/').status)\""
    play(
        *first,
        use("bash", command=fetch),
        use("process_output", process=process, offset=0, wait_s=10),
        use("process_stop", process=process),
        use("process_list"),
        DONE,
    )
    fetched, output, stopped, listed = results(await run_approved(client, conversation, requests=1))
    assert fetched["stdout"] == "200\n"
    assert '"GET / HTTP/1.1" 200' in output["output"]
    assert (stopped["status"], stopped["reason"]) == ("ended", "it was stopped")
    assert [(one["process"], one["status"]) for one in listed["processes"]] == [(process, "ended")]


async def test_a_session_keeps_its_variables_between_runs(client: Client, play: Play) -> None:
    first = (use("bash", command="count=41; cd /tmp", session="work"), DONE)
    name = play(*first)
    conversation = await client.create(name)
    await run_approved(client, conversation, requests=1)
    play(*first, use("bash", command="echo $((count + 1)) $PWD", session="work"), DONE)
    (result,) = results(await run_approved(client, conversation, requests=1))
    assert result["stdout"] == "42 /tmp\n"


async def test_a_user_lists_reads_and_stops_what_runs(
    client: Client, play: Play, http: httpx.AsyncClient, nats: sdk.Client
) -> None:
    """Over HTTP, and by the same names over NATS; the next result states that a user stopped it."""
    first = (use("bash", command="echo ready; exec sleep 600", background=True), DONE)
    name = play(*first)
    conversation = await client.create(name)
    assert (await http.get(f"/context/conversations/{conversation}/processes")).json()["items"] == []
    (started,) = results(await run_approved(client, conversation, requests=1))
    process = started["process"]
    (run,) = (await http.get(f"/context/conversations/{conversation}/runs")).json()["items"]
    (listed,) = await nats.processes(conversation)
    assert (listed.id, listed.status, listed.run_id) == (process, "running", run["run_id"])
    over_http = (await http.get(f"/context/conversations/{conversation}/processes")).json()["items"]
    assert [one["id"] for one in over_http] == [process]

    async with asyncio.timeout(60):
        while (part := await nats.process_output(conversation, process)).output != "ready\n":
            pass
    assert (part.start, part.next, part.more) == (0, 6, False)
    path = f"/context/conversations/{conversation}/processes/{process}"
    rest = (await http.get(path, params={"after": 2})).json()
    assert (rest["output"], rest["start"], rest["process"]["output_bytes"]) == ("ady\n", 2, 6)

    stopped = await http.post(f"/context/conversations/{conversation}/processes/{process}/stop")
    assert (stopped.json()["status"], stopped.json()["reason"]) == ("ended", "a user stopped it")
    assert await nats.stop_process(conversation, process) == (await nats.processes(conversation))[0]
    play(*first, use("read_file", path="none"), DONE)
    (result,) = results(await run_approved(client, conversation, requests=0))
    assert f"Process {process}" in result.get("notice", ""), result
    assert "a user stopped it" in result["notice"]

    other = await client.create(name)
    unknown = await http.get(f"/context/conversations/{other}/processes/{process}")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    with pytest.raises(RemoteError, match="process"):
        await nats.stop_process(other, process)


async def test_the_command_line_and_the_sdk_over_http_list_and_stop_what_runs(
    client: Client, play: Play, system: System
) -> None:
    name = play(use("bash", command="echo ready; exec sleep 600", background=True), DONE)
    conversation = await client.create(name)
    (started,) = results(await run_approved(client, conversation, requests=1))
    process = started["process"]
    environment = {"PATH": os.environ["PATH"], "BANKSMAN_GATEWAY_URL": system.url}

    def shown(operation: str, *ids: str) -> dict[str, Any]:
        found = run_command("call", operation, conversation, *ids, environment=environment)
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    async with sdk.connect(system.url) as web:
        async with asyncio.timeout(60):
            while not (await web.process_output(conversation, process, after=3)).output:
                pass
        (listed,) = (await asyncio.to_thread(shown, "process.list"))["items"]
        assert (listed["id"], listed["status"]) == (process, "running")
        assert (await asyncio.to_thread(shown, "process.read", process))["output"] == "ready\n"
        assert (await asyncio.to_thread(shown, "process.stop", process))["reason"] == "a user stopped it"
        assert (await web.stop_process(conversation, process)).status == "ended"
