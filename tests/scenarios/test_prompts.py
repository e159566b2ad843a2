"""The content of model requests: prompts, variables, tools by category, and the order of messages."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from banksman.contracts.ids import new_id
from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel

OK = ScriptedReply(text="ok")


async def created(http: httpx.AsyncClient, content: str) -> str:
    """Create a system prompt; return its id."""
    response = await http.post("/v1/system-prompts", json={"name": "mine", "content": content})
    assert response.status_code == 201
    return str(response.json()["id"])


def system_prompt(body: dict[str, Any]) -> str:
    """Return the system prompt of a request to either vendor."""
    if "system" in body:
        return "".join(block["text"] for block in body["system"])
    first = body["messages"][0]
    assert first["role"] == "system"
    return str(first["content"])


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_variables_are_filled_in_including_nested_ones(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, vendor: str
) -> None:
    """R78: the four variables of every run, and nested fields of the request's variables."""
    prompt = await created(
        http,
        "Serve {{service}}. Intent: {{ intent }}. Known: {{rag_context}}. "
        "They ask: {{user_message}} Plan: {{customer.plan.name}}, {{customer.seats}} seats.",
    )
    name = play(OK, vendor=vendor)
    conversation = await client.create(name, system_prompt_id=prompt)
    variables = {
        "intent": "refund",
        "rag_context": "page 3",
        "customer": {"plan": {"name": "Pro"}, "seats": 5},
    }

    await client.run(conversation, "Where is it?", variables=variables)

    prompt = system_prompt(model_requests(model, name)[0])
    assert prompt.startswith(
        "Serve banksman. Intent: refund. Known: page 3. They ask: Where is it? Plan: Pro, 5 seats."
    )
    assert "{{" not in prompt


async def test_a_missing_variable_is_named_and_the_model_is_not_called(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R78: an error that names the variable, never a prompt with braces in it."""
    prompt = await created(http, "Serve {{customer.name}}.")
    name = play(OK)
    conversation = await client.create(name, system_prompt_id=prompt)

    outcome = await client.run(conversation, "hi", variables={"customer": {}})

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "bad_request")
    assert "variables.customer.name" in outcome["error"]["message"]
    assert model_requests(model, name) == []


async def test_braces_in_a_message_reach_no_variable(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R78: values are inserted once; a user's text cannot read another variable."""
    prompt = await created(http, "They ask: {{user_message}}")
    name = play(OK)
    conversation = await client.create(name, system_prompt_id=prompt)

    await client.run(conversation, "{{secret}}", variables={"secret": "hunter2"})

    prompt = system_prompt(model_requests(model, name)[0])
    assert prompt.startswith("They ask: {{secret}}") and "hunter2" not in prompt


async def test_variables_of_a_request_replace_no_message_and_intent_is_empty_without_one(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R78: the words of the user are theirs; a classifier of intents is optional."""
    prompt = await created(http, "They ask: {{user_message}} Intent: <{{intent}}>.")
    name = play(OK)
    conversation = await client.create(name, system_prompt_id=prompt)

    variables = {"user_message": "Ignore them.", "intent": None}
    shown = await http.get(
        f"/v1/system-prompts/{prompt}/enhanced",
        params={"variables": json.dumps(variables), "user_message": "Where is it?"},
    )
    await client.run(conversation, "Where is it?", variables=variables)

    sent = system_prompt(model_requests(model, name)[0])
    assert sent.startswith("They ask: Where is it? Intent: <>.")
    assert shown.json()["base"] == "They ask: Where is it? Intent: <>."


async def test_the_model_receives_the_enhanced_prompt(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R24, R25, R36: base, tools and diagrams are readable, and requests contain exactly them."""
    prompt = await created(http, "Speak like {{who}}.")
    name = play(OK)
    conversation = await client.create(name, system_prompt_id=prompt, settings={"tool_protocol": "json_text"})
    await client.run(conversation, "hi", variables={"who": "a pilot"})

    read = await http.get(
        f"/v1/system-prompts/{prompt}/enhanced",
        params={"protocol": "json_text", "variables": json.dumps({"who": "a pilot"})},
    )

    enhanced = read.json()["content"]
    assert system_prompt(model_requests(model, name)[0]) == enhanced
    assert enhanced.startswith("Speak like a pilot.")
    assert '"terminate"' in enhanced and "```mermaid" in enhanced


@pytest.mark.parametrize("wanted", [None, "json_text", "native"])
async def test_the_endpoint_shows_what_the_model_receives_in_its_own_protocol(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, wanted: str | None
) -> None:
    """R25: the conversation's protocol, else that of its assistant."""
    name = play(OK)
    settings = {} if wanted is None else {"tool_protocol": wanted}
    conversation = await client.create(name, settings=settings)
    await client.run(conversation, "hi")

    query = {"conversation_id": conversation, "user_message": "hi"}
    read = (await http.get("/v1/system-prompts/default/enhanced", params=query)).json()
    plain = (await http.get("/v1/system-prompts/default/enhanced")).json()

    assert system_prompt(model_requests(model, name)[0]) == read["content"]
    assert (read["protocol"], plain["protocol"]) == (wanted or "native", "native")


async def test_the_prompt_lists_tools_by_category(http: httpx.AsyncClient) -> None:
    """R27, R18: categories group the tools for the model, each with its parameters."""
    prompt = await created(http, "Base.")

    content = (await http.get(f"/v1/system-prompts/{prompt}/enhanced")).json()["content"]

    web, workspace = content.index("### web"), content.index("### workspace")
    assert web < content.index("**web_fetch**") < workspace < content.index("**bash**")
    assert "- `path` (string, required)" in content


async def test_a_long_prompt_is_shortened_first_and_then_drops_tools(
    http: httpx.AsyncClient,
) -> None:
    """R33, R17: descriptions are cut first; then tools of the lowest priority are dropped, and named."""
    prompt = await created(http, "The base is never cut. " * 20)
    path = f"/v1/system-prompts/{prompt}/enhanced"

    async def read(budget_tokens: int) -> dict[str, Any]:
        return dict((await http.get(path, params={"budget_tokens": budget_tokens})).json())

    whole = await read(8_000)
    base_tokens = len(whole["base"]) // 4
    shortened = await read(whole["estimated_tokens"] - base_tokens - 20)
    smaller = await read(shortened["estimated_tokens"] - base_tokens - 20)

    assert (whole["shortened"], whole["dropped_tools"]) == (False, [])
    assert (shortened["shortened"], shortened["dropped_tools"]) == (True, [])
    assert shortened["estimated_tokens"] < whole["estimated_tokens"]
    assert smaller["dropped_tools"] == ["get_current_weather"]
    assert "get_current_weather" not in smaller["content"]
    assert smaller["content"].startswith(whole["base"].strip())


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_a_request_contains_system_prompt_history_and_message(
    client: Client, play: Play, model: ScriptedModel, vendor: str
) -> None:
    """R79: in this order, each with its role."""
    name = play(ScriptedReply(text="First answer."), ScriptedReply(text="Second answer."), vendor=vendor)
    conversation = await client.create(name)
    await client.run(conversation, "First question")
    await client.run(conversation, "Second question")

    body = model_requests(model, name)[1]

    said = [(message["role"], _text(message)) for message in body["messages"] if message["role"] != "system"]
    assert system_prompt(body)
    assert said == [("user", "First question"), ("assistant", "First answer."), ("user", "Second question")]


async def test_a_prompt_can_be_changed_and_the_next_run_uses_it(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R25: prompts belong to the backend; a frontend only names one by its id."""
    prompt = await created(http, "One.")
    name = play(OK, OK)
    conversation = await client.create(name, system_prompt_id=prompt)
    await client.run(conversation, "hi")

    changed = await http.put(f"/v1/system-prompts/{prompt}", json={"content": "Two."})
    await client.run(conversation, "again")

    first, second = (system_prompt(body).partition("\n")[0] for body in model_requests(model, name))
    assert (first, second) == ("One.", "Two.")
    assert changed.json()["revision"] > 1


async def test_a_prompt_with_malformed_braces_is_refused(http: httpx.AsyncClient) -> None:
    """R78: a template that can never be filled in is refused when it is written."""
    response = await http.post("/v1/system-prompts", json={"content": "{{not a name}}"})

    assert (response.status_code, response.json()["error"]["field"]) == (400, "system_prompt")


async def test_an_unknown_prompt_is_named(client: Client) -> None:
    """R5: a conversation cannot begin with a prompt that does not exist."""
    missing = new_id("p")

    refused = await client.request("conversation.create", system_prompt_id=missing)

    assert (refused["type"], refused["code"]) == ("error", "not_found")
    assert missing in refused["message"]


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block["text"] for block in content)
