"""The settings of an assistant: options, tools, protocol, limits and approval policy."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.scenarios.conftest import PRICED, Play, logged, model_requests
from tests.support.client import Client, Frame
from tests.support.replies import bash
from tests.support.scripted_models import ScriptedCall, ScriptedReply, ScriptedUsage
from tests.support.system import ScriptedModel, System

READ = ScriptedCall(name="read_file", arguments={"path": "none"})
TOOLS_ON = {"enabled": True}


async def created(http: httpx.AsyncClient, **fields: Any) -> str:
    """Create an assistant; return its id."""
    response = await http.post("/context/assistants", json=fields)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


def kinds(client: Client, conversation: str) -> list[str | None]:
    """Return the error kind of each call of a conversation, in the order of the results."""
    completed = client.events(conversation, "tool_call.completed")
    return [event["data"]["error_kind"] for event in completed]


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_options_reach_the_vendors_request(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, vendor: str
) -> None:
    """R80: the request has the messages, and the assistant's model, max_tokens and temperature."""
    name = play(ScriptedReply(text="ok"), vendor=vendor)
    options = {"max_tokens": 321, "temperature": 0.25}
    assistant = await created(http, model=name, options=options, service="support")
    conversation = await client.create(assistant=assistant)

    outcome = await client.run(conversation, "hi")

    [body] = model_requests(model, name)
    assert (body["max_tokens"], body["temperature"], body["model"]) == (321, 0.25, name.partition(":")[2])
    assert body["messages"][-1]["role"] == "user"
    assert (outcome["service"], outcome["model"]) == ("support", name)


@pytest.mark.parametrize("tools", [{}, {"tools": {"enabled": False}}])
async def test_an_assistant_without_tools_is_plain_chat(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, tools: dict[str, Any]
) -> None:
    """R82, R83, R40: tools are opt-in; without them a request contains nothing about tools."""
    name = play(ScriptedReply(text="Just chat."))
    assistant = await created(http, model=name, system_prompt="Be brief.", **tools)
    conversation = await client.create(assistant=assistant)

    outcome = await client.run(conversation, "hi")

    [body] = model_requests(model, name)
    assert (outcome["content"], outcome["tool_calls"]) == ("Just chat.", [])
    assert "tools" not in body
    assert "## Tools" not in body["messages"][0]["content"]


async def test_a_call_of_a_tool_that_was_not_offered_is_not_executed(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R82, R84: a call of a tool that was not offered gets an error as its result."""
    assistant = await created(
        http,
        model=play(bash("touch x"), ScriptedReply(text="ok")),
        tools={**TOOLS_ON, "allowed_tools": ["read_file"]},
    )
    conversation = await client.create(assistant=assistant)

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], kinds(client, conversation)) == ("completed", ["unknown_tool"])
    assert "read_file" in outcome["tool_calls"][0]["result"]["error"]


@pytest.mark.parametrize("protocol", ["native", "json_text"])
async def test_only_the_tools_named_by_an_assistant_are_offered(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, protocol: str
) -> None:
    """R84, R113: the filter applies to both protocols, in the vendor's field and in the prompt."""
    name = play(ScriptedReply(text="ok"))
    tools = {**TOOLS_ON, "allowed_tools": ["read_file", "bash"], "tool_protocol": protocol}
    conversation = await client.create(assistant=await created(http, model=name, tools=tools))

    await client.run(conversation, "hi")

    [body] = model_requests(model, name)
    prompt = body["messages"][0]["content"]
    offered = {tool["function"]["name"] for tool in body.get("tools", ())}
    assert offered == ({"read_file", "bash"} if protocol == "native" else set())
    assert "**read_file**" in prompt and "write_file" not in prompt and "**web_fetch**" not in prompt


async def test_without_remaining_tools_a_warning_is_logged_and_the_reply_is_plain(
    system: System, client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R86: the filter leaves no tool, so the model gets none."""
    name = play(ScriptedReply(text="Plain."))
    tools = {**TOOLS_ON, "allowed_tools": ["no_such_tool"]}
    conversation = await client.create(assistant=await created(http, model=name, tools=tools))
    outcome = await client.run(conversation, "hi")

    assert (outcome["status"], outcome["content"]) == ("completed", "Plain.")
    assert "tools" not in model_requests(model, name)[0]
    warning = await logged(system, "agent", "no tools are left", allowed=["no_such_tool"])
    assert warning["level"] == "warning"


SHOWN_CALLS = (
    'Like this:\n{"tool": "bash", "parameters": {"command": "ls"}, "terminate": false}',
    '{"tool": "bash", "parameters": {"command": "ls"}, "terminate": false}',
    '{"tool": "bash", "parameters": {"command": ',
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>',
    '{"name": "bash", "parameters": {"command": "ls"}}',
)


@pytest.mark.parametrize("protocol", ["native", "json_text"])
@pytest.mark.parametrize(
    "tools",
    [
        {"enabled": False},
        {"enabled": True, "allowed_tools": []},
        {"enabled": True, "allowed_tools": ["no_such_tool"]},
    ],
    ids=["disabled", "empty list", "nothing left"],
)
async def test_without_tools_a_reply_that_shows_a_call_is_text(
    client: Client, http: httpx.AsyncClient, play: Play, tools: dict[str, Any], protocol: str
) -> None:
    """R82, R86, R40: a user who asks for an example call gets it, whole or broken, in any format."""
    name = play(*(ScriptedReply(text=text) for text in SHOWN_CALLS))
    settings = {**tools, "tool_protocol": protocol}
    conversation = await client.create(assistant=await created(http, model=name, tools=settings))

    outcomes = [await client.run(conversation, "show me an example call") for _ in SHOWN_CALLS]

    assert [(one["status"], one["content"], one["iterations"]) for one in outcomes] == [
        ("completed", text, 1) for text in SHOWN_CALLS
    ]
    deltas = [frame["data"]["text"] for frame in client.frames if frame["type"] == "message.delta"]
    assert "".join(deltas) == "".join(SHOWN_CALLS)
    for kind in ("tool_call.requested", "protocol.retry", "model.notice"):
        assert client.events(conversation, kind) == []


async def test_tools_of_an_assistant_can_be_disabled_and_a_run_records_its_revision(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R40, R82: tools are disabled for one assistant; its conversations continue as plain text."""
    name = play(ScriptedReply(text="With."), ScriptedReply(text="Without."))
    assistant = await created(http, model=name, tools=TOOLS_ON)
    conversation = await client.create(assistant=assistant)
    await client.run(conversation, "one")

    changed = await http.put(f"/context/assistants/{assistant}", json={"model": name})
    await client.run(conversation, "two")

    assert ["tools" in body for body in model_requests(model, name)] == [True, False]
    first, second = (e["data"]["assistant_revision"] for e in client.events(conversation, "run.started"))
    assert first < second == changed.json()["revision"]


async def test_policy_rules_match_tool_and_arguments(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R17: the first matching rule decides: auto, ask or deny; a denied call needs no approval."""
    rules = [
        {"tool": "bash", "arguments": {"command": "rm *"}, "action": "deny"},
        {"tool": "bash", "arguments": {"command": "echo *"}, "action": "auto"},
        {"tool": "read_*", "arguments": {"path": "secret*"}, "action": "ask"},
    ]
    secret = ScriptedCall(name="read_file", arguments={"path": "secret.txt"})
    calls = (*bash("rm -rf /", "echo free", "echo a; curl b", "ls").tool_calls, READ, secret)
    name = play(ScriptedReply(tool_calls=calls), ScriptedReply(text="ok"))
    assistant = await created(http, model=name, tools=TOOLS_ON, approval_policy=rules)
    conversation = await client.create(assistant=assistant)
    run_id = await client.chat(conversation, "go")

    approval_request = await client.approval_request(run_id)
    # `echo *` matches no shell operator, so a command that contains one needs approval too.
    shown = [next(iter(item["arguments"].values())) for item in approval_request["items"]]
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


async def test_with_feedback_a_rejection_goes_to_the_model_and_the_approved_call_runs(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R104, R106, R13: `on_reject: feedback` returns a rejection to the model."""
    name = play(bash("echo yes", "echo no"), ScriptedReply(text="Then I will not."))
    assistant = await created(http, model=name, tools={**TOOLS_ON, "on_reject": "feedback"})
    conversation = await client.create(assistant=assistant)
    run_id = await client.chat(conversation, "go")
    approval_request = await client.approval_request(run_id)
    yes, no = (item["tool_call_id"] for item in approval_request["items"])

    decisions = [
        {"tool_call_id": yes, "decision": "approve"},
        {"tool_call_id": no, "decision": "reject", "reason": "too loud"},
    ]
    ack = await client.request(
        "approval.reply", approval_id=approval_request["approval_id"], decisions=decisions
    )
    outcome = await client.finished(run_id)

    assert (ack["outcome"], outcome["status"], outcome["content"]) == (
        "mixed",
        "completed",
        "Then I will not.",
    )
    results = [
        json.loads(m["content"]) for m in model_requests(model, name)[1]["messages"] if m["role"] == "tool"
    ]
    assert [one["success"] for one in results] == [True, False]
    assert results[0]["stdout"] == "yes\n" and "too loud" in results[1]["error"]


@pytest.mark.parametrize(("remember", "again"), [("run", True), ("conversation", False)])
async def test_a_decision_can_be_remembered(client: Client, play: Play, remember: str, again: bool) -> None:
    """R34: the same call needs no second approval, in the run or in the whole conversation."""
    name = play(
        bash("echo x"), bash("echo x"), ScriptedReply(text="one"), bash("echo x"), ScriptedReply(text="two")
    )
    conversation = await client.create(name)
    first = await client.chat(conversation, "one")
    await client.approve(first, remember=remember)
    assert (await client.finished(first))["status"] == "completed"

    second = await client.chat(conversation, "two")
    if again:
        await client.approve(second)
    outcome = await client.finished(second)

    assert outcome["content"] == "two"
    approval_requests = client.events(conversation, "approval.requested")
    assert [event["run_id"] for event in approval_requests] == [first, second][: 2 if again else 1]


async def test_a_final_summary_calls_the_model_after_a_terminating_call(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R36, R3: with this option a final text reply follows a terminating call."""
    call = json.dumps({"tool": "read_file", "parameters": {"path": "none"}, "terminate": True})
    name = play(ScriptedReply(text=call), ScriptedReply(text="In short: there is no file."))
    tools = {**TOOLS_ON, "final_summary": True, "tool_protocol": "json_text"}
    conversation = await client.create(assistant=await created(http, model=name, tools=tools))

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"]) == ("completed", "In short: there is no file.")
    assert len(model_requests(model, name)) == 2


async def ended_by(client: Client, http: httpx.AsyncClient, name: str, limits: dict[str, Any]) -> Frame:
    """Return the outcome of a run whose assistant has these limits."""
    assistant = await created(http, model=name, tools=TOOLS_ON, limits=limits)
    conversation = await client.create(assistant=assistant)
    return await client.run(conversation, "go")


async def test_calls_beyond_the_limit_of_a_reply_get_error_results_and_the_run_continues(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R31: the limit of calls per reply; the first ones are executed."""
    name = play(ScriptedReply(tool_calls=(READ, READ, READ)), ScriptedReply(text="Two of three."))

    outcome = await ended_by(client, http, name, {"calls_per_reply": 2})

    assert (outcome["status"], outcome["content"]) == ("completed", "Two of three.")
    refused, *executed = sorted(
        (tracked["result"] for tracked in outcome["tool_calls"]), key=lambda result: result["error_kind"]
    )
    assert [result["error_kind"] for result in executed] == ["tool_error", "tool_error"]
    assert refused["error_kind"] == "not_executed"
    assert "at most 2 calls" in refused["error"]


async def test_too_many_calls_end_the_run(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R31: the limit of calls; those of the last reply still run, and there is no further model request."""
    name = play(
        ScriptedReply(tool_calls=(READ,)),
        ScriptedReply(tool_calls=(READ, READ)),
        ScriptedReply(text="unreachable"),
    )

    outcome = await ended_by(client, http, name, {"max_calls_per_run": 2})

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "call_limit")
    assert (len(outcome["tool_calls"]), len(model_requests(model, name))) == (3, 2)


async def test_too_many_tokens_end_the_run(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R31: the token limit; there is no further model request."""
    usage = ScriptedUsage(input_tokens=900, output_tokens=200)
    name = play(ScriptedReply(tool_calls=(READ,), usage=usage), ScriptedReply(text="unreachable"))

    outcome = await ended_by(client, http, name, {"max_tokens_per_run": 1000})

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "token_limit")
    assert (outcome["usage"]["input_tokens"], outcome["usage"]["output_tokens"]) == (900, 200)
    assert len(model_requests(model, name)) == 1


async def test_too_much_money_ends_the_run(
    client: Client, http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    """R31: the cost limit, by the operator's prices."""
    usage = ScriptedUsage(input_tokens=3, output_tokens=2)
    name = model.play(
        PRICED, (ScriptedReply(tool_calls=(READ,), usage=usage), ScriptedReply(text="unreachable"))
    )

    outcome = await ended_by(client, http, name, {"max_cost_usd": 4.5})

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "cost_limit")
    assert outcome["usage"]["cost_usd"] == 5.0


async def test_reached_limits_are_logged_as_warnings(
    system: System, client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R7, R98: the log shows the operator which limit ended a run."""
    tools = {**TOOLS_ON, "max_iterations": 1}
    assistant = await created(http, model=play(ScriptedReply(tool_calls=(READ,))), tools=tools)
    conversation = await client.create(assistant=assistant)
    run_id = await client.chat(conversation, "go")
    await client.finished(run_id)

    entry = await logged(system, "agent", "the run ended", run_id=run_id)

    assert (entry["level"], entry["status"], entry["code"]) == ("warning", "max_iterations", "max_iterations")


async def test_an_invalid_assistant_is_refused_with_the_field(http: httpx.AsyncClient) -> None:
    """R80: an unusable assistant is refused when it is written, with the field's name."""
    response = await http.post("/context/assistants", json={"options": {"temperature": 9}})

    assert (response.status_code, response.json()["error"]["field"]) == (400, "options.temperature")
