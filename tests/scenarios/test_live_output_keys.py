"""Live output with the key of a runner: only of the calls that were sent to this runner."""

from __future__ import annotations

import httpx

from banksman.bus.connection import Bus, NatsSettings
from banksman.contracts import subjects
from banksman.contracts.calls import CallProgress, CallRequest
from banksman.deployment import users
from tests.scenarios.conftest import Play, nats_url, until
from tests.scenarios.test_assistants import created
from tests.scenarios.test_mcp_servers import AUTO
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import System

FORGED = "output of another process"
WAIT = "echo begun; until [ -e go ]; do :; done"


async def test_the_key_of_a_runner_writes_live_output_only_of_calls_that_it_holds(
    system: System, client: Client, http: httpx.AsyncClient, operator: Bus, play: Play
) -> None:
    """The forger knows the ticket of one call, which is sent to its runner, and tries others with it."""
    sent: list[CallRequest] = []
    listening = await operator.listen(
        subjects.tool_call(subjects.ANY, "local", subjects.ANY),
        lambda message: sent.append(CallRequest.model_validate_json(message.data)),
    )
    await operator.ready()
    call = ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": WAIT}),))
    model = play(call, ScriptedReply(text="done"), ScriptedReply(text="done"))
    assistant = await created(http, model=model, **AUTO)
    conversation, other = await client.create(assistant=assistant), await client.create(assistant=assistant)
    run_id = await client.chat(conversation, "go")
    started = await client.wait_for(lambda frame: frame["type"] == "tool_call.started")
    held = await until(lambda: next((one for one in sent if one.run_id == run_id), None))
    await listening.unsubscribe()

    genuine = CallProgress(
        conversation_id=conversation,
        run_id=run_id,
        tool_call_id=held.call.id,
        kind="output",
        runner=started["data"]["runner"],
        stream="stdout",
        text=FORGED,
        ticket=held.output_ticket,
    )
    forged = [
        (conversation, {"ticket": None}),
        (conversation, {"ticket": "0" * 32}),
        (conversation, {"tool_call_id": "another-call"}),
        (conversation, {"run_id": "another-run"}),
        (conversation, {"runner": "another-runner"}),
        (other, {}),
        (other, {"conversation_id": other}),
    ]
    runner = NatsSettings(
        url=nats_url(system), nkey_seed_file=next((system.data_dir / "keys").glob("tool-runner*.nk"))
    )
    prefix = users.inbox_prefix(runner.nkey_seed_file.stem if runner.nkey_seed_file else "")
    async with await Bus(runner, name="forger", inbox_prefix=prefix).open() as forger:
        for target, changes in forged:
            progress = genuine.model_copy(update=changes)
            subject = subjects.tool_progress("local", target)
            await forger.publish(subject, progress.model_dump_json().encode())
        last = genuine.model_copy(update={"text": "own output"}).model_dump_json().encode()
        await forger.publish(subjects.tool_progress("local", conversation), last)
        await client.wait_for(lambda frame: "own output" in str(frame))
        await http.put(f"/context/conversations/{conversation}/files/go", content=b"")
        outcome = await client.finished(run_id)
        # A call that has ended has no live output.
        await forger.publish(
            subjects.tool_progress("local", conversation), genuine.model_dump_json().encode()
        )
        await forger.ready()
    again = await client.run(conversation, "go on")

    assert outcome["tool_calls"][0]["result"]["stdout"] == "begun\n"
    assert again["status"] == "completed"
    assert [frame for frame in client.frames if FORGED in str(frame)] == []
