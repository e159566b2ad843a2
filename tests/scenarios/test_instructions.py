"""What a user wants of every reply follows the system prompt of the user's runs."""

from __future__ import annotations

import json

import httpx

from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel

INSTRUCTIONS = "/context/instructions"
WISH = "Answer in Latin. {{not_a_variable}}"


async def test_own_instructions_reach_the_model_until_they_are_removed(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    name = play(ScriptedReply(text="Salve."), ScriptedReply(text="Hello."))
    conversation = await client.create(name)

    before = (await http.get(INSTRUCTIONS)).json()["text"]
    await http.put(INSTRUCTIONS, json={"text": f" {WISH} "})
    stored = (await http.get(INSTRUCTIONS)).json()["text"]
    await client.run(conversation, "Hi")
    await http.put(INSTRUCTIONS, json={"text": ""})
    await client.run(conversation, "Hi again")
    first, second = (json.dumps(request["messages"]) for request in model_requests(model, name))
    too_long = await http.put(INSTRUCTIONS, json={"text": "x" * 4_001})

    assert (before, stored) == ("", WISH)
    assert WISH in first and WISH not in second
    assert too_long.status_code == 400 and "text" in too_long.text
