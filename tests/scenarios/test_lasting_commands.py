"""Commands in the background and sessions, end to end."""

from __future__ import annotations

from typing import Any

from tests.scenarios.conftest import Play
from tests.scenarios.test_workspace_tools import run_approved, use
from tests.support.client import Client
from tests.support.scripted_models import ScriptedReply

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
