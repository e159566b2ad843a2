"""What an assistant decides of its runs: options, tools, protocol, limits and who must be asked."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.scenarios.conftest import PRICED, Play, asked, logged
from tests.support.client import Client, Frame
from tests.support.system import ScriptedModel, System

from banksman.model_server import Reply, ToolCall, Usage

READ = ToolCall(name="read_file", arguments={"path": "none"})
TOOLS_ON = {"enabled": True}


async def made(http: httpx.AsyncClient, **fields: Any) -> str:
    """The id of a new assistant."""
    answer = await http.post("/context/assistants", json=fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def bash(*commands: str) -> Reply:
    """A reply that asks for these commands at once."""
    return Reply(tool_calls=tuple(ToolCall(name="bash", arguments={"command": c}) for c in commands))


def kinds(client: Client, conversation: str) -> list[str | None]:
    """How each call of a conversation went wrong, in the order of the results."""
    completed = client.events(conversation, "tool_call.completed")
    return [event["data"]["error_kind"] for event in completed]


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_options_reach_the_vendors_request(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, vendor: str
) -> None:
    """R80: the model is asked with the messages, its name, max_tokens and temperature of the assistant."""
    name = play(Reply(text="ok"), vendor=vendor)
    options = {"max_tokens": 321, "temperature": 0.25}
    assistant = await made(http, model=name, options=options, service="support")
    conversation = await client.create(assistant=assistant)

    outcome = await client.run(conversation, "hi")

    [body] = asked(model, name)
    assert (body["max_tokens"], body["temperature"], body["model"]) == (321, 0.25, name.partition(":")[2])
    assert body["messages"][-1]["role"] == "user"
    assert (outcome["service"], outcome["model"]) == ("support", name)


@pytest.mark.parametrize("tools", [{}, {"tools": {"enabled": False}}])
async def test_an_assistant_made_without_tools_answers_as_plain_chat(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, tools: dict[str, Any]
) -> None:
    """R82, R83, R40: tools are opt-in; without them nothing of tools reaches the model."""
    name = play(Reply(text="Just chat."))
    assistant = await made(http, model=name, system_prompt="Be brief.", **tools)
    conversation = await client.create(assistant=assistant)

    outcome = await client.run(conversation, "hi")

    [body] = asked(model, name)
    assert (outcome["content"], outcome["tool_calls"]) == ("Just chat.", [])
    assert "tools" not in body
    assert "## Tools" not in body["messages"][0]["content"]


async def test_a_call_that_nobody_offered_is_not_executed(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R82, R84: a model that calls a tool it was not given gets an error as the result."""
    assistant = await made(
        http,
        model=play(bash("touch x"), Reply(text="ok")),
        tools={**TOOLS_ON, "allowed_tools": ["read_file"]},
    )
    conversation = await client.create(assistant=assistant)

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], kinds(client, conversation)) == ("completed", ["unknown_tool"])
    assert "read_file" in outcome["tool_calls"][0]["result"]["error"]


@pytest.mark.parametrize("protocol", ["native", "json_text"])
async def test_only_the_tools_that_an_assistant_names_are_offered(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, protocol: str
) -> None:
    """R84, R113: the filter holds for both protocols, in the vendor's field and in the prompt."""
    name = play(Reply(text="ok"))
    tools = {**TOOLS_ON, "allowed_tools": ["read_file", "bash"], "tool_protocol": protocol}
    conversation = await client.create(assistant=await made(http, model=name, tools=tools))

    await client.run(conversation, "hi")

    [body] = asked(model, name)
    prompt = body["messages"][0]["content"]
    offered = {tool["function"]["name"] for tool in body.get("tools", ())}
    assert offered == ({"read_file", "bash"} if protocol == "native" else set())
    assert "**read_file**" in prompt and "write_file" not in prompt and "**web_fetch**" not in prompt


async def test_without_a_tool_left_a_warning_is_logged_and_the_answer_is_plain(
    system: System, client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R86: nothing is left after the filter, so nothing is attempted."""
    name = play(Reply(text="Plain."))
    tools = {**TOOLS_ON, "allowed_tools": ["no_such_tool"]}
    conversation = await client.create(assistant=await made(http, model=name, tools=tools))
    outcome = await client.run(conversation, "hi")

    assert (outcome["status"], outcome["content"]) == ("completed", "Plain.")
    assert "tools" not in asked(model, name)[0]
    warning = await logged(system, "agent", "no tools are left", allowed=["no_such_tool"])
    assert warning["level"] == "warning"


async def test_an_assistant_can_be_switched_off_and_its_next_run_says_which_revision_it_was(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R40, R82: the switch of one assistant; conversations go on as plain text."""
    name = play(Reply(text="With."), Reply(text="Without."))
    assistant = await made(http, model=name, tools=TOOLS_ON)
    conversation = await client.create(assistant=assistant)
    await client.run(conversation, "one")

    changed = await http.put(f"/context/assistants/{assistant}", json={"model": name})
    await client.run(conversation, "two")

    assert ["tools" in body for body in asked(model, name)] == [True, False]
    first, second = (e["data"]["assistant_revision"] for e in client.events(conversation, "run.started"))
    assert first < second == changed.json()["revision"]


async def test_rules_decide_by_tool_and_argument_which_call_asks(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R17: the first rule that matches decides: auto, ask or deny; a denied call asks nobody."""
    rules = [
        {"tool": "bash", "arguments": {"command": "rm *"}, "action": "deny"},
        {"tool": "bash", "arguments": {"command": "echo *"}, "action": "auto"},
        {"tool": "read_*", "arguments": {"path": "secret*"}, "action": "ask"},
    ]
    secret = ToolCall(name="read_file", arguments={"path": "secret.txt"})
    calls = (*bash("rm -rf /", "echo free", "echo a; curl b", "ls").tool_calls, READ, secret)
    name = play(Reply(tool_calls=calls), Reply(text="ok"))
    assistant = await made(http, model=name, tools=TOOLS_ON, approval_policy=rules)
    conversation = await client.create(assistant=assistant)
    run_id = await client.chat(conversation, "go")

    asked_for = await client.question(run_id)
    # `echo *` covers no operator of the shell, so the command that smuggles one asks too.
    shown = [next(iter(item["arguments"].values())) for item in asked_for["items"]]
    assert shown == ["echo a; curl b", "ls", "secret.txt"]
    await client.approve(run_id)

    outcome = await client.finished(run_id)
    results = [entry["result"] for entry in outcome["tool_calls"]]
    by_command = {
        str(entry["params"].get("command")): result
        for entry, result in zip(outcome["tool_calls"], results, strict=True)
    }
    assert by_command["echo free"]["stdout"] == "free\n"
    assert by_command["rm -rf /"]["error_kind"] == "denied"
    assert len(client.events(conversation, "approval.requested")) == 1


async def test_with_feedback_a_refusal_goes_to_the_model_and_the_approved_call_runs(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R104, R106, R13: `on_reject: feedback` is the other way to take a no."""
    name = play(bash("echo yes", "echo no"), Reply(text="Then I will not."))
    assistant = await made(http, model=name, tools={**TOOLS_ON, "on_reject": "feedback"})
    conversation = await client.create(assistant=assistant)
    run_id = await client.chat(conversation, "go")
    question = await client.question(run_id)
    yes, no = (item["tool_call_id"] for item in question["items"])

    decisions = [
        {"tool_call_id": yes, "decision": "approve"},
        {"tool_call_id": no, "decision": "reject", "reason": "too loud"},
    ]
    ack = await client.request("approval.reply", approval_id=question["approval_id"], decisions=decisions)
    outcome = await client.finished(run_id)

    assert (ack["outcome"], outcome["status"], outcome["content"]) == (
        "mixed",
        "completed",
        "Then I will not.",
    )
    told = [json.loads(m["content"]) for m in asked(model, name)[1]["messages"] if m["role"] == "tool"]
    assert [one["success"] for one in told] == [True, False]
    assert told[0]["stdout"] == "yes\n" and "too loud" in told[1]["error"]


@pytest.mark.parametrize(("remember", "asks_again"), [("run", True), ("conversation", False)])
async def test_a_decision_can_be_remembered(
    client: Client, play: Play, remember: str, asks_again: bool
) -> None:
    """R34: the same call is not asked twice, for the run or for the whole conversation."""
    name = play(bash("echo x"), bash("echo x"), Reply(text="one"), bash("echo x"), Reply(text="two"))
    conversation = await client.create(name)
    first = await client.chat(conversation, "one")
    await client.approve(first, remember=remember)
    assert (await client.finished(first))["status"] == "completed"

    second = await client.chat(conversation, "two")
    if asks_again:
        await client.approve(second)
    outcome = await client.finished(second)

    assert outcome["content"] == "two"
    questions = client.events(conversation, "approval.requested")
    assert [event["run_id"] for event in questions] == [first, second][: 2 if asks_again else 1]


async def test_a_final_summary_asks_the_model_once_more(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R36, R3: with the option a terminating call is followed by one last answer in text."""
    call = json.dumps({"tool": "read_file", "parameters": {"path": "none"}, "terminate": True})
    name = play(Reply(text=call), Reply(text="In short: there is no file."))
    tools = {**TOOLS_ON, "final_summary": True, "tool_protocol": "json_text"}
    conversation = await client.create(assistant=await made(http, model=name, tools=tools))

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"]) == ("completed", "In short: there is no file.")
    assert len(asked(model, name)) == 2


async def ended_by(client: Client, http: httpx.AsyncClient, name: str, limits: dict[str, Any]) -> Frame:
    """The outcome of a run whose assistant has these limits."""
    assistant = await made(http, model=name, tools=TOOLS_ON, limits=limits)
    conversation = await client.create(assistant=assistant)
    return await client.run(conversation, "go")


async def test_too_many_calls_in_one_reply_end_the_run(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R31: the limit of calls; none of them is executed."""
    name = play(Reply(tool_calls=(READ, READ, READ)))

    outcome = await ended_by(client, http, name, {"calls_per_reply": 2})

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "call_limit")
    assert (outcome["tool_calls"], "3 calls" in outcome["content"]) == ([], True)


async def test_too_many_tokens_end_the_run(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R31: the limit of tokens; the model is not asked again."""
    usage = Usage(input_tokens=900, output_tokens=200)
    name = play(Reply(tool_calls=(READ,), usage=usage), Reply(text="unreachable"))

    outcome = await ended_by(client, http, name, {"max_tokens_per_run": 1000})

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "token_limit")
    assert (outcome["usage"]["input_tokens"], outcome["usage"]["output_tokens"]) == (900, 200)
    assert len(asked(model, name)) == 1


async def test_too_much_money_ends_the_run(
    client: Client, http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    """R31: the limit of cost, by the operator's prices."""
    usage = Usage(input_tokens=3, output_tokens=2)
    name = model.play(PRICED, (Reply(tool_calls=(READ,), usage=usage), Reply(text="unreachable")))

    outcome = await ended_by(client, http, name, {"max_cost_usd": 4.5})

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "cost_limit")
    assert outcome["usage"]["cost_usd"] == 5.0


async def test_limits_are_warned_of_in_the_log(
    system: System, client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R7, R98: who operates the system reads why a run was ended by force."""
    tools = {**TOOLS_ON, "max_iterations": 1}
    assistant = await made(http, model=play(Reply(tool_calls=(READ,))), tools=tools)
    conversation = await client.create(assistant=assistant)
    run_id = await client.chat(conversation, "go")
    await client.finished(run_id)

    entry = await logged(system, "agent", "the run ended", run_id=run_id)

    assert (entry["level"], entry["status"], entry["code"]) == ("warning", "max_iterations", "max_iterations")


async def test_a_wrong_assistant_is_refused_by_field(http: httpx.AsyncClient) -> None:
    """R80: what could not be used is refused when it is written, with the field's name."""
    answer = await http.post("/context/assistants", json={"options": {"temperature": 9}})

    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "options.temperature")
