"""All interfaces reach the same runs: HTTP, server-sent events, websocket, NATS, several gateways."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

from banksman import sdk
from banksman.bus.connection import Bus
from banksman.bus.jetstream import next_message
from banksman.bus.messages import Message
from banksman.bus.names import RUNS
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import JsonObject
from banksman.deployment.declarations import MAX_MESSAGE_BYTES
from tests.scenarios.conftest import Play, model_requests, until
from tests.support.client import Client, Frame
from tests.support.paths import ROOT
from tests.support.replies import bash
from tests.support.scripted_models import Gate, ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System, wait_ready
from tests.support.timeouts import WAIT_TIMEOUT_S

READ = ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments={"path": "none"}),))
SSE = {"accept": "text/event-stream"}


async def conversation_of(http: httpx.AsyncClient, model: str) -> str:
    """Create a conversation; return its id."""
    response = await http.post("/context/conversations", json={"model": model})
    assert response.status_code == 201
    return str(response.json()["conversation_id"])


@pytest.mark.parametrize("short_of_limit", [0, 1_680, 2_160, 15_000, 18_100, 20_000])
async def test_an_accepted_message_of_any_length_has_a_terminal_event(
    http: httpx.AsyncClient, play: Play, short_of_limit: int
) -> None:
    """P1. A message that just fits the queue would not fit the log together with the facts of its run."""
    conversation = await conversation_of(http, play(ScriptedReply(text="Read.")))
    content = "\N{SLIGHTLY SMILING FACE}" * ((MAX_MESSAGE_BYTES - short_of_limit) // 4)

    response = await http.post(
        f"/context/conversations/{conversation}/runs",
        json={"content": content},
        params={"wait_s": WAIT_TIMEOUT_S},
        timeout=2 * WAIT_TIMEOUT_S,
    )

    ended = response.status_code == 200 and response.json()["status"] in ("completed", "failed")
    refused = response.status_code == 413 and response.json()["error"]["code"] == "too_large"
    assert ended or refused, response.text


async def test_http_starts_a_run_and_may_wait_for_its_outcome(http: httpx.AsyncClient, play: Play) -> None:
    """R111, R114: 202 with the id, or 200 with the outcome."""
    conversation = await conversation_of(
        http, play(READ, ScriptedReply(text="Done."), ScriptedReply(text="Again."))
    )
    path = f"/context/conversations/{conversation}/runs"

    waited = await http.post(path, json={"content": "go"}, params={"wait_s": WAIT_TIMEOUT_S})
    started = await http.post(path, json={"content": "more"})
    found = (await http.get(started.headers["location"])).json()

    assert (waited.status_code, waited.json()["status"], waited.json()["content"]) == (
        200,
        "completed",
        "Done.",
    )
    assert [entry["tool"] for entry in waited.json()["tool_calls"]] == ["read_file"]
    assert (started.status_code, started.json()["status"]) == (202, "queued")
    assert found["run_id"] == started.json()["run_id"]


async def test_a_run_that_outlasts_the_wait_is_returned_in_its_current_state(
    http: httpx.AsyncClient, play: Play
) -> None:
    """R111: a waiting HTTP client receives the open approval request, and may decide it."""
    conversation = await conversation_of(http, play(bash("echo hi"), ScriptedReply(text="Done.")))
    path = f"/context/conversations/{conversation}/runs"

    waited = await http.post(path, json={"content": "go"}, params={"wait_s": 1})
    run = await _with_approval_request(http, waited.json()["run_id"])
    [approval_request] = run["pending_approvals"]
    decided = await http.post(
        f"/context/approvals/{approval_request['approval_id']}", json={"all": "approve"}
    )

    assert (waited.status_code, run["status"]) == (202, "awaiting_approval")
    assert decided.json()["already_resolved"] is False
    outcome = await _outcome(http, run["run_id"])
    assert (outcome["content"], outcome["tool_calls"][0]["result"]["stdout"]) == ("Done.", "hi\n")


async def test_server_sent_events_contain_the_whole_run(
    http: httpx.AsyncClient, model: ScriptedModel, play: Play
) -> None:
    """R30, R20: the frames of the websocket, numbered, with streamed text; the stream closes at the end.

    The reply ends when the client has its text: a delta that arrives after the stored message is not shown.
    """
    gate, whole = new_id("g"), "one two three"
    reply = ScriptedReply(text=whole, chunk_chars=4, gate=Gate(name=gate, after_events=1 + 4))
    conversation = await conversation_of(http, play(READ, reply))

    frames: list[Frame] = []
    text = ""
    async for frame in _stream(http, conversation, detail="steps"):
        frames.append(frame)
        if frame["type"] == "message.delta":
            text += frame["data"]["text"]
            if text == whole:
                await asyncio.to_thread(model.open_gate, gate)

    types = [frame["type"] for frame in frames]
    assert types[0] == "run.started" and types[-1] == "run.finished"
    assert {"tool_call.requested", "tool_call.completed", "message.delta"} <= set(types)
    assert text == whole
    seqs = [frame["seq"] for frame in frames if "seq" in frame]
    assert seqs == sorted(set(seqs))


async def test_a_client_that_closes_its_stream_cancels_its_run(
    http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R114: no client reads the reply, so the request to the vendor ends."""
    gate = Gate(name=new_id("g"), after_events=2)
    name = play(ScriptedReply(text="never the whole of it", gate=gate))
    conversation = await conversation_of(http, name)

    async with aclosing(_stream(http, conversation)) as frames:
        async for frame in frames:
            if frame["type"] == "message.delta":
                break

    [run] = (await http.get(f"/context/conversations/{conversation}/runs")).json()["items"]
    assert (await _outcome(http, run["run_id"]))["status"] == "cancelled"
    assert await _ending(model, name) == "disconnected"


async def test_closing_a_websocket_cancels_nothing(
    system: System, client: Client, play: Play, model: ScriptedModel
) -> None:
    """R21, R35: the backend drives the loop; a client that reconnects reads the events in between."""
    gate = Gate(name=new_id("g"))
    name = play(READ.model_copy(update={"gate": gate}), ScriptedReply(text="Done without you."))
    async with Client.connected(system.url, timeout_s=WAIT_TIMEOUT_S) as leaving:
        conversation = await leaving.create(name)
        run_id = await leaving.chat(conversation, "go")
        await leaving.event("iteration.started", run_id=run_id)

    model.open_gate(gate.name)
    await client.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
    outcome = await client.finished(run_id)

    assert (outcome["content"], len(outcome["tool_calls"])) == ("Done without you.", 1)
    assert [e["seq"] for e in client.events(conversation)] == list(
        range(1, len(client.events(conversation)) + 1)
    )


async def test_a_repeated_request_runs_once_and_another_body_is_a_conflict(
    http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R114: `Idempotency-Key`: the same response to the same request, 409 for another body."""
    name = play(ScriptedReply(text="once"))
    conversation = await conversation_of(http, name)
    path = f"/context/conversations/{conversation}/runs"
    headers = {"idempotency-key": new_id("key")}

    first = await http.post(path, json={"content": "go"}, headers=headers)
    second = await http.post(path, json={"content": "go"}, headers=headers)
    other = await http.post(path, json={"content": "stop"}, headers=headers)

    assert first.json() == second.json()
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    await _outcome(http, first.json()["run_id"])
    assert len(model_requests(model, name)) == 1


async def test_chat_creates_a_conversation(http: httpx.AsyncClient, play: Play) -> None:
    """R26, R111: one request sends a message in a new conversation, in context mode."""
    body = {"model": play(ScriptedReply(text="Hello.")), "content": "hi", "title": "Greeting"}

    response = await http.post("/v1/chat", json=body, params={"wait_s": WAIT_TIMEOUT_S})

    run = response.json()
    found = (await http.get(f"/context/conversations/{run['conversation_id']}")).json()
    assert (run["content"], found["title"]) == ("Hello.", "Greeting")


async def test_a_client_selects_the_level_of_detail(system: System, client: Client, play: Play) -> None:
    """R19, R34, R41: one run at three levels; the default has replies, approval requests and the outcome.

    The output of a command that ends at once is in its result only.
    """
    conversation = await client.create(
        play(
            ScriptedReply(reasoning="Hm.", tool_calls=bash("echo out; sleep 1").tool_calls),
            ScriptedReply(text="Done."),
        ),
        detail="final",
    )
    async with (
        Client.connected(system.url, timeout_s=WAIT_TIMEOUT_S) as steps,
        Client.connected(system.url, timeout_s=WAIT_TIMEOUT_S) as full,
    ):
        await steps.request("subscribe", conversation_id=conversation, detail="steps")
        await full.request("subscribe", conversation_id=conversation, detail="full")
        run_id = await client.chat(conversation, "go")
        await client.approve(run_id)
        for watching in (client, steps, full):
            await watching.finished(run_id)
        seen = [{f["type"] for f in c.frames if f.get("run_id") == run_id} for c in (client, steps, full)]

    tools = {"tool_call.requested", "tool_call.completed", "iteration.started"}
    final, in_steps, in_full = seen
    assert {"run.started", "approval.requested", "message.completed", "run.finished"} <= final
    assert not final & (tools | {"tool_call.output", "reasoning.delta"})
    assert tools <= in_steps and not in_steps & {"tool_call.output", "reasoning.delta"}
    assert tools | {"tool_call.output"} <= in_full


async def test_a_service_starts_decides_and_follows_a_run_over_nats(
    nats: sdk.Client, play: Play, model: ScriptedModel
) -> None:
    """R114, R110: without HTTP, the request, approval request, decision and outcome are messages."""
    name = play(bash("echo from afar"), ScriptedReply(text="Done."))
    async with asyncio.timeout(WAIT_TIMEOUT_S), nats.approvals() as approval_requests:
        conversation = await nats.create_conversation(model=name)
        run = await nats.send(conversation, "go", request_id=new_id("q"))
        approval_request = await anext(q async for q in approval_requests if q.run_id == run.run_id)
        ack = await nats.reply(approval_request.approval_id, all="approve")
        outcome = await nats.outcome(run)

    assert (ack.already_resolved, ack.outcome) == (False, "approved")
    assert (outcome.status, outcome.content) == ("completed", "Done.")
    assert outcome.tool_calls[0].result["stdout"] == "from afar\n"


async def test_websocket_and_nats_clients_see_each_others_runs(
    client: Client, nats: sdk.Client, play: Play
) -> None:
    """R110, R114: both interfaces read the same log."""
    name = play(ScriptedReply(text="To the service."), ScriptedReply(text="To the user."))
    conversation = await client.create(name)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        of_service = await nats.send(conversation, "one")
        seen = await client.finished(of_service.run_id)
        of_user = await client.chat(conversation, "two")
        outcome = await nats.outcome(sdk.StartedRun(of_user))

    assert (seen["content"], outcome.content) == ("To the service.", "To the user.")


async def test_a_service_cancels_runs_and_starts_workflows_over_nats(nats: sdk.Client, play: Play) -> None:
    """R112, R114: a service on NATS has every function of a frontend."""
    gate = Gate(name=new_id("g"))
    conversation = await nats.create_conversation(model=play(ScriptedReply(text="never", gate=gate)))
    project: JsonObject = {"name": new_id("p").lower(), "template": "empty"}
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        run = await nats.send(conversation, "go")
        await nats.cancel(run, reason="changed my mind")
        cancelled = await nats.outcome(run)
        async with nats.approvals() as requests:
            started = await nats.start_workflow("create_project", project)
            request = await anext(one async for one in requests if one.run_id == started.run_id)
        await nats.reply(request.approval_id, all="approve")
        created = await nats.outcome(started)

    assert (cancelled.status, cancelled.content) == ("cancelled", "changed my mind")
    assert created.status == "completed"


async def test_every_step_of_a_run_is_a_message_on_its_own_subject(
    client: Client, operator: Bus, play: Play
) -> None:
    """R108, R109, R110: starts, calls, results, approval requests and decisions, as seen by the operator."""
    seen: list[str] = []

    async def note(message: Message) -> None:
        seen.append(message.subject)

    conversation = await client.create(play(bash("true"), ScriptedReply(text="ok")))
    for subject in (
        subjects.run_work("local", conversation),
        subjects.conversation("local", conversation),
        subjects.approval_request("local", ANY),
        subjects.approval_reply("local", ANY),
        subjects.tool_call(ANY, "local", conversation),
        subjects.tool_started("local", ANY),
        subjects.tool_result("local", ANY),
    ):
        await operator.subscribe(subject, note)
    await operator.ready()
    run_id = await client.chat(conversation, "go")
    await client.approve(run_id)
    await client.finished(run_id)
    await operator.ready()

    kinds = [".".join(subject.split(".")[:2]) for subject in seen]
    first = {kind: kinds.index(kind) for kind in kinds}
    assert first["run.work"] < first["conversation.local"] < first["approval.request"]
    assert first["approval.request"] < first["approval.reply"] < first["tool.call"]
    assert first["tool.call"] < first["tool.started"] < first["tool.result"]
    # A work queue contains unhandled messages; the agents handle all of them.
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while await next_message(operator, RUNS, subjects.run_work("local", conversation), after=0):
            await operator.ready()


async def test_two_gateways_serve_one_conversation(
    system: System, client: Client, second_gateway: str, play: Play
) -> None:
    """R114, R110: requested at one, decided at the other, published by both, in the same order."""
    conversation = await client.create(play(bash("echo scaled"), ScriptedReply(text="ok")))
    async with Client.connected(second_gateway, timeout_s=WAIT_TIMEOUT_S) as other:
        await other.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
        run_id = await client.chat(conversation, "go")
        approval_request = await other.approval_request(run_id)
        await other.request("approval.reply", approval_id=approval_request["approval_id"], all="approve")
        here, there = await client.finished(run_id), await other.finished(run_id)
        events = [[(e["seq"], e["type"]) for e in c.events(conversation)] for c in (client, other)]

    assert here == there
    assert here["tool_calls"][0]["result"]["stdout"] == "scaled\n"
    assert events[0] == events[1]


async def test_steering_reaches_the_open_run_before_its_next_model_request(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R35, R41: the message belongs to the open run and starts no other."""
    gate = Gate(name=new_id("g"))
    name = play(READ.model_copy(update={"gate": gate}), ScriptedReply(text="In French: bonjour."))
    conversation = await client.create(name)
    run_id = await client.chat(conversation, "go")
    await client.event("iteration.started", run_id=run_id)

    ack = await client.request("chat.send", conversation_id=conversation, content="In French!", mode="steer")
    await client.wait_for(lambda f: f["type"] == "message.completed" and f["data"]["role"] == "user")
    model.open_gate(gate.name)
    outcome = await client.finished(run_id)

    assert (ack["run_id"], outcome["content"]) == (run_id, "In French: bonjour.")
    assert model_requests(model, name)[1]["messages"][-1] == {"role": "user", "content": "In French!"}
    assert len(client.events(conversation, "run.started")) == 1


async def test_a_steer_supersedes_an_approval_request(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R13, R35: a further message closes the approval request, and the call does not run."""
    name = play(bash("touch never"), ScriptedReply(text="Then not."))
    conversation = await client.create(name)
    run_id = await client.chat(conversation, "go")
    approval_request = await client.approval_request(run_id)

    await client.request("chat.send", conversation_id=conversation, content="Rather not.", mode="steer")
    resolved = await client.resolved(approval_request["approval_id"])
    outcome = await client.finished(run_id)

    assert (resolved["outcome"], outcome["content"]) == ("superseded", "Then not.")
    assert outcome["tool_calls"][0]["result"]["error_kind"] == "not_executed"


async def test_a_cancel_ends_the_vendors_stream(client: Client, play: Play, model: ScriptedModel) -> None:
    """R21: a cancelled reply costs no further tokens."""
    name = play(ScriptedReply(text="never the whole of it", gate=Gate(name=new_id("g"), after_events=2)))
    conversation = await client.create(name)
    run_id = await client.chat(conversation, "go")
    await client.event("message.delta", run_id=run_id)

    await client.request("run.cancel", run_id=run_id)

    assert (await client.finished(run_id))["status"] == "cancelled"
    assert await _ending(model, name) == "disconnected"


async def test_a_cancel_ends_a_running_command_and_its_children(
    system: System, client: Client, play: Play
) -> None:
    """R17, R109: the process tree has ended, and the call has exactly one result."""
    seconds = f"{300 + os.getpid() / 1e7:.7f}"
    conversation = await client.create(play(bash(f"sleep {seconds} & sleep {seconds}; wait")))
    run_id = await client.chat(conversation, "go")
    await client.approve(run_id)
    await client.event("tool_call.started", run_id=run_id)
    await until(lambda: len(system.service_pids(seconds)) >= 2)

    await client.request("run.cancel", run_id=run_id)
    outcome = await client.finished(run_id)

    assert outcome["status"] == "cancelled"
    assert [entry["result"]["success"] for entry in outcome["tool_calls"]] == [False]
    assert client.events(conversation, "tool_call.completed")[0]["data"]["error_kind"] == "cancelled"
    await until(lambda: not system.service_pids(seconds))


@pytest.fixture(scope="module")
def second_gateway(system: System, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Another gateway of the same system, on its own port."""
    environment = system.environments()["gateway"]
    port = environment["BANKSMAN_GATEWAY__PORT"]
    output = tmp_path_factory.mktemp("gateway") / "gateway.log"
    command = [sys.executable, "-m", "banksman.cli", "gateway"]
    with output.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        wait_ready(
            f"http://127.0.0.1:{port}/readyz",
            lambda: output.read_text() if process.poll() is not None else None,
        )
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=WAIT_TIMEOUT_S)


async def _stream(
    http: httpx.AsyncClient, conversation: str, *, detail: str = "final"
) -> AsyncGenerator[Frame]:
    """Yield the frames of a run that this request starts."""
    path = f"/context/conversations/{conversation}/runs"
    async with http.stream(
        "POST", path, json={"content": "go"}, headers=SSE, params={"detail": detail}
    ) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


async def _outcome(http: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    """Return a run after its end."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            run = (await http.get(f"/context/runs/{run_id}")).json()
            if run["finished_at"] is not None:
                return dict(run)


async def _with_approval_request(http: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    """Return a run when it has an open approval request."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            run = (await http.get(f"/context/runs/{run_id}")).json()
            if run["pending_approvals"]:
                return dict(run)


async def _ending(model: ScriptedModel, name: str) -> str:
    """Return how the first request of a script ended."""

    def ended() -> str | None:
        outcome = model.requests(name.rpartition("/")[2])[0]["outcome"]
        return None if outcome == "open" else str(outcome)

    return await until(ended)


@pytest.mark.parametrize("language", ["javascript", "python"])
async def test_the_example_of_a_chat_over_nats_follows_its_run_and_approves(
    system: System, node_examples: Path, play: Play, language: str
) -> None:
    """R114: with nothing but a NATS client and docs/clients.md."""
    program = {
        "javascript": ("node", str(node_examples / "chat.mjs")),
        "python": (sys.executable, "-I", str(ROOT / "examples/chat_over_plain_nats.py")),
    }
    model = play(bash("echo over-nats"), ScriptedReply(text="It printed over-nats."))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("BANKSMAN_", "NATS_"))}
    process = await asyncio.create_subprocess_exec(
        *(*program[language], "local", "run `echo over-nats`"),
        env={**environment, "BANKSMAN_DATA_DIR": str(system.data_dir), "BANKSMAN_MODEL": model},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output
    spaced = output.replace('":"', '": "')
    assert spaced == '… bash {"command": "echo over-nats"}\n… approved\nIt printed over-nats.\n'
