"""An administrator sets a server of models with its key; runs use it without a restart."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator

import httpx
import pytest

from banksman import sdk
from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.scripted_models import HttpError, ScriptedReply
from tests.support.system import ScriptedModel

SERVERS = "/context/model-servers"
KEY = "key-of-the-tenant-1234"


@pytest.fixture
async def named(http: httpx.AsyncClient, model: ScriptedModel) -> AsyncGenerator[str]:
    """A server `mine` at the scripted model."""
    body = {"base_url": f"{model.url}/v1", "api_key": KEY}
    assert (await http.put(f"{SERVERS}/mine", json=body)).status_code == 200
    yield "mine"
    await http.delete(f"{SERVERS}/mine")


async def test_runs_use_a_server_from_the_moment_it_is_set(
    client: Client, http: httpx.AsyncClient, named: str, play: Play, model: ScriptedModel
) -> None:
    script = play(ScriptedReply(text="From mine.")).partition(":")[2]

    tested = (await http.post(f"{SERVERS}/{named}/test")).json()
    outcome = await client.run(await client.create(f"{named}:{script}"), "Hi")
    listed = [each["id"] for each in (await http.get("/context/models")).json()["items"]]
    [first, *_] = model.requests(script.rpartition("/")[2])

    assert tested["problem"] is None and "demo" in tested["models"]
    assert (outcome["content"], outcome["model"]) == ("From mine.", f"{named}:{script}")
    assert f"{named}:demo" in listed
    assert first["headers"]["authorization"].endswith(hashlib.sha256(KEY.encode()).hexdigest()[:12])


async def test_a_new_address_needs_its_key_again_and_a_deleted_server_fails_its_runs(
    client: Client, http: httpx.AsyncClient, named: str, model: ScriptedModel
) -> None:
    kept = (await http.put(f"{SERVERS}/{named}", json={"base_url": f"{model.url}/v1"})).json()
    moved = (await http.put(f"{SERVERS}/{named}", json={"base_url": f"{model.url}/v1/"})).json()
    conversation = await client.create(f"{named}:demo")
    await http.delete(f"{SERVERS}/{named}")
    refused = await client.request("chat.send", conversation_id=conversation, content="Hi")

    assert (kept["has_key"], moved["has_key"]) == (True, False)
    assert refused["code"] == "bad_request" and "provider" in refused["message"]


async def test_the_key_is_in_no_response_and_in_no_error_of_its_server(
    client: Client, http: httpx.AsyncClient, named: str, play: Play
) -> None:
    """The vendor echoes the key: the error of the run names it in no form."""
    script = play(
        ScriptedReply(text="x", fault=HttpError(status=401, message=f"Wrong API key: {KEY}"))
    ).partition(":")[2]

    conversation = await client.create(f"{named}:{script}")
    outcome = await client.run(conversation, "Hi")
    listed = await http.get(SERVERS)
    events = await http.get(f"/context/conversations/{conversation}/events")

    assert outcome["status"] == "failed" and "Wrong API key" in outcome["error"]["message"]
    assert KEY not in listed.text and KEY not in events.text and KEY not in str(outcome)
    [own] = [one for one in listed.json()["items"] if one["name"] == named]
    assert (own["source"], own["has_key"]) == ("tenant", True)


async def test_the_servers_of_the_settings_come_first_and_are_named_with_their_setting(
    http: httpx.AsyncClient, nats: sdk.Client
) -> None:
    listed = {one["name"]: one for one in (await http.get(SERVERS)).json()["items"]}
    refused = await http.put(f"{SERVERS}/openai", json={"api_key": KEY})

    assert (listed["openai"]["source"], listed["my-server"]["source"]) == ("settings", "settings")
    assert listed["openai"]["setting"] == "BANKSMAN_MODELS__OPENAI_API_KEY"
    assert listed["my-server"]["setting"] == "BANKSMAN_MODELS__PROVIDERS"
    assert refused.status_code == 409 and "settings" in refused.text
