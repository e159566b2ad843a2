"""JSON from an API on the network (spec 003)."""

from __future__ import annotations

import json

import pytest

from tests.scenarios.conftest import Play, model_requests
from tests.scenarios.gerrit import CHANGES
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel


def fetch(url: str) -> ScriptedReply:
    """Return a reply that fetches one page."""
    return ScriptedReply(tool_calls=(ScriptedCall(name="web_fetch", arguments={"url": url}),))


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_json_from_an_api_reaches_the_model(
    client: Client, play: Play, model: ScriptedModel, json_api: str, vendor: str
) -> None:
    """R74, R73: the unchanged body of the API, its status and its type."""
    url = f"http://{json_api}/changes/?q=status:open"
    name = play(fetch(url), ScriptedReply(text="Two changes, 352 lines."), vendor=vendor)
    conversation = await client.create(name)

    outcome = await client.run(conversation, f"Analyse {url}")

    result = outcome["tool_calls"][0]["result"]
    assert (outcome["content"], result["status"]) == ("Two changes, 352 lines.", 200)
    assert result["content_type"].startswith("application/json")
    assert json.loads(result["body"].partition("\n")[2]) == CHANGES
    assert "Fix the lease" in json.dumps(model_requests(model, name)[1]["messages"][-1])


async def test_an_error_of_an_api_is_a_result(client: Client, play: Play, json_api: str) -> None:
    """R74, R75: the model receives the status and body of the API."""
    url = f"http://{json_api}/nothing"
    conversation = await client.create(play(fetch(url), ScriptedReply(text="It says not found.")))

    outcome = await client.run(conversation, f"Analyse {url}")

    result = outcome["tool_calls"][0]["result"]
    assert (result["status"], "Not found" in result["body"]) == (404, True)


async def test_a_host_that_the_user_did_not_name_needs_approval_once(
    client: Client, play: Play, json_api: str
) -> None:
    """R74, R12: the first fetch from a host needs approval; the next one in the conversation does not."""
    url = f"http://{json_api}/changes/"
    conversation = await client.create(play(fetch(url), fetch(url), ScriptedReply(text="ok")))
    run_id = await client.chat(conversation, "What is new in our Gerrit?")

    await client.approve(run_id)
    outcome = await client.finished(run_id)

    assert [entry["result"]["status"] for entry in outcome["tool_calls"]] == [200, 200]
    assert len(client.events(conversation, "approval.requested")) == 1
