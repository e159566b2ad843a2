"""A user compacts a conversation, over each interface."""

from __future__ import annotations

import json
import os

import httpx

from banksman import sdk
from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.commands import run_command
from tests.support.scripted_models import Gate, HttpError, ScriptedReply
from tests.support.system import ScriptedModel, System

LONG = "The harbour of Genoa has 14 basins. " + "word " * 6_000
SUMMARY = "Genoa was looked up; it has 14 basins."


async def test_a_compaction_runs_after_the_open_run_and_before_later_messages(
    client: Client, http: httpx.AsyncClient, model: ScriptedModel, play: Play
) -> None:
    """Over HTTP; a repeated request starts no second compaction."""
    gate = Gate(name="compact-order")
    replies = ScriptedReply(text=LONG, gate=gate), ScriptedReply(text=SUMMARY), ScriptedReply(text="14.")
    name = play(*replies, by="count")
    conversation = await client.create(name)
    first = await client.chat(conversation, "Look up Genoa.")
    again = {"Idempotency-Key": "compact-1"}
    path = f"/context/conversations/{conversation}/compact"
    accepted = [await http.post(path, headers=again) for _ in range(2)]
    later = await client.chat(conversation, "How many basins?")
    model.open_gate(gate.name)

    outcomes = [await client.finished(run) for run in (first, accepted[0].json()["run_id"], later)]

    assert [one.status_code for one in accepted] == [202, 202]
    assert accepted[0].json()["run_id"] == accepted[1].json()["run_id"]
    assert [one["status"] for one in outcomes] == ["completed"] * 3
    assert outcomes[1]["content"].startswith("A summary replaces the older messages: ")
    assert outcomes[2]["content"] == "14."
    requests = [json.dumps(body, ensure_ascii=False) for body in model_requests(model, name)]
    assert len(requests) == 3
    assert SUMMARY in requests[2] and "word word word" not in requests[2]


async def test_a_summary_that_waits_for_an_overloaded_model_shows_it(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    busy = HttpError(status=503, message="Overloaded.", times=1)
    summary = ScriptedReply(text=SUMMARY)
    replies = ScriptedReply(text=LONG), ScriptedReply(text="", fault=busy), summary, summary
    conversation = await client.create(play(*replies, by="count"))
    await client.run(conversation, "Look up Genoa.")

    accepted = await http.post(f"/context/conversations/{conversation}/compact")
    run = accepted.json()["run_id"]

    assert (await client.finished(run))["status"] == "completed"
    waits = [frame for frame in client.frames if frame["type"] == "model.waiting"]
    assert [(wait["run_id"], wait["data"]["reason"]) for wait in waits][:1] == [(run, "overloaded")]


async def test_a_service_on_nats_learns_that_there_is_nothing_to_compact(
    nats: sdk.Client, play: Play
) -> None:
    conversation = await nats.create_conversation(model=play(ScriptedReply(text="x")))

    outcome = await nats.outcome(await nats.compact(conversation))

    assert outcome.content.startswith("There is nothing to compact")


async def test_the_command_shows_the_result_of_a_compaction(
    system: System, client: Client, play: Play
) -> None:
    conversation = await client.create(play(ScriptedReply(text="Hello.")))
    await client.run(conversation, "Hi.")
    environment = {"PATH": os.environ["PATH"], "BANKSMAN_GATEWAY_URL": system.url}

    shown = run_command("compact", conversation, environment=environment)

    assert shown.returncode == 0, shown.stderr
    assert "There is nothing to compact" in shown.stdout
