"""Runs and approval requests survive kill -9."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from tests.scenarios.conftest import Play
from tests.support.browser import WAIT_TIMEOUT_MS, opened
from tests.support.client import Client
from tests.support.connections import sockets_connected_to, sockets_of
from tests.support.polling import eventually
from tests.support.replies import bash
from tests.support.scripted_models import Gate, ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System, descendants, kill
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(240)
"""Seconds; processes are restarted, which is slow on a busy machine."""

RECORD_TEXTS = """() => {
  window.shownTexts = [];
  const record = () => {
    const reply = document.querySelector('.turn.assistant .markdown');
    if (reply) window.shownTexts.push(reply.textContent.trim());
  };
  const all = { childList: true, characterData: true, subtree: true };
  new MutationObserver(record).observe(document.body, all);
}"""
"""Records every text of the reply that the page shows."""

LEDGER = "echo ran >> ledger"


@pytest.fixture(scope="module")
def own_system(model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Generator[System]:
    """A system for tests that kill its processes; each leaves all of them running."""
    system = System(tmp_path_factory.mktemp("survival"), model)
    try:
        system.start()
        yield system
    finally:
        system.close()


async def test_another_agent_continues_a_run_when_its_agent_is_killed(
    own_system: System, model: ScriptedModel, play: Play
) -> None:
    """R39, R108, R109: within five seconds, from the last commit, and no command runs twice."""
    name = play(
        bash(LEDGER),
        bash("cat ledger").model_copy(update={"gate": Gate(name="hold")}),
        ScriptedReply(text="It ran once."),
    )
    async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
        conversation = await client.create(name)
        run_id = await client.chat(conversation, "go")
        await client.approve(run_id)
        await client.event("tool_call.completed", run_id=run_id)
        driver = await _driver(own_system, model, name)
        killed_at = time.monotonic()
        kill(driver)
        model.open_gate("hold")

        await client.wait_for(lambda frame: _requests_approval_of(frame, "cat ledger"))
        took_over_in_s = time.monotonic() - killed_at
        approval_request = await client.approval_request(run_id)
        await client.request("approval.reply", approval_id=approval_request["approval_id"], all="approve")
        outcome = await client.finished(run_id)

    assert outcome["content"] == "It ran once."
    assert outcome["tool_calls"][1]["result"]["stdout"] == "ran\n"
    assert took_over_in_s < 15, "about 3 s on a machine with nothing else to do"


async def test_the_page_never_shows_spliced_text_when_its_gateway_is_killed(
    own_system: System, play: Play
) -> None:
    """R36: the shown text is always a prefix of the reply, even while pieces are missing."""
    written = " ".join(f"word{number}" for number in range(24))
    name = play(ScriptedReply(text=written, chunk_delay_s=0.3))
    async with opened(own_system.url) as page:
        async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
            conversation = await client.create(name)
            await page.goto(f"{own_system.url}/#/c/{conversation}")
            await expect(page.get_by_text("No messages yet.")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
            await client.chat(conversation, "write slowly")
        reply = page.locator(".turn.assistant .markdown")
        await expect(reply).to_contain_text("word1", timeout=WAIT_TIMEOUT_MS)
        await page.evaluate(RECORD_TEXTS)
        kill(own_system.service_pids("gateway")[-1])

        await expect(reply).to_have_text(written, timeout=WAIT_TIMEOUT_MS)

        shown = [str(text) for text in await page.evaluate("() => window.shownTexts")]
    assert len(shown) > 1
    assert [text for text in shown if not written.startswith(text)] == []


async def test_a_late_client_gets_the_text_so_far_also_after_its_gateway_was_killed(
    own_system: System, model: ScriptedModel, play: Play
) -> None:
    """R36: with the reasoning, from the agent's memory; nothing is stored for it."""
    written = " ".join(f"word{number}" for number in range(24))
    gate = Gate(name="text-so-far", after_events=12)
    name = play(ScriptedReply(text=written, reasoning="First I think.", chunk_delay_s=0.05, gate=gate))
    async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as first:
        conversation = await first.create(name)
        run_id = await first.chat(conversation, "write slowly")
        await eventually(lambda: "word3" in streamed(first, "message"))
        async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as second:
            await second.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
            await eventually(lambda: "word3" in streamed(second, "message"))
            assert streamed(second, "reasoning") == "First I think."
    kill(own_system.service_pids("gateway")[-1])
    async with opened(own_system.url) as page:
        await page.goto(f"{own_system.url}/#/c/{conversation}")
        reply = page.locator(".turn.assistant .markdown")
        await expect(reply).to_contain_text("word0 word1 word2 word3", timeout=WAIT_TIMEOUT_MS)
        await page.reload()
        await expect(reply).to_contain_text("word0 word1 word2 word3", timeout=WAIT_TIMEOUT_MS)
        model.open_gate(gate.name)
        await expect(reply).to_have_text(written, timeout=WAIT_TIMEOUT_MS)
    async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as last:
        await last.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
        await last.finished(run_id)
        kinds = [event["type"] for event in last.events(conversation)]
    assert kinds == [
        "run.started",
        "iteration.started",
        "reasoning.completed",
        "message.completed",
        "run.finished",
    ]


def streamed(client: Client, kind: str) -> str:
    """Return the text of the deltas of a client, which has all of them from the first one."""
    text = ""
    for frame in client.frames:
        if frame["type"] == f"{kind}.delta":
            assert frame["data"]["offset"] == len(text)
            text += frame["data"]["text"]
    return text


async def test_an_approval_request_survives_kill_9_of_all_processes(own_system: System, play: Play) -> None:
    """R12, R110: after kill -9 of all processes and a restart, the approval request is open, and its decision
    finishes the run."""
    name = play(bash("echo still here"), ScriptedReply(text="Finished."))
    async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
        conversation = await client.create(name)
        run_id = await client.chat(conversation, "go")
        approval_request = await client.approval_request(run_id)

    own_system.kill_everything()
    own_system.start()

    async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
        subscribed = await client.request("subscribe", conversation_id=conversation, after_seq=0)
        [pending] = subscribed["pending_approvals"]
        assert pending["approval_id"] == approval_request["approval_id"]
        await client.request("approval.reply", approval_id=approval_request["approval_id"], all="approve")
        outcome = await client.finished(run_id)

    assert (outcome["status"], outcome["content"]) == ("completed", "Finished.")
    assert outcome["tool_calls"][0]["result"]["stdout"] == "still here\n"


async def test_runs_continue_soon_after_kill_9_of_all_processes(
    own_system: System, model: ScriptedModel, tmp_path: Path
) -> None:
    """R108: one between two calls, and one whose tool server was killed in a call, which is not repeated."""
    gated = ScriptedReply(text="It went on.", gate=Gate(name="crash"))
    between = model.play("between-calls", [bash("echo one"), gated])
    call = ScriptedReply(tool_calls=(ScriptedCall(name="take_a_minute"),))
    inside = model.play("inside-a-call", [call, ScriptedReply(text="So be it.")])
    ledger = tmp_path / "ledger"
    with ExitStack() as stack:
        server = stack.enter_context(_tool_server(own_system, ledger))
        async with httpx.AsyncClient(base_url=own_system.url, timeout=WAIT_TIMEOUT_S) as http:
            await http.post("/context/assistants", json={"id": "slow", "tools": {"enabled": True}})

            async def is_offered() -> bool:
                return "take_a_minute" in (await http.get("/context/tools")).text

            await eventually(is_offered)
        async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
            conversations = await client.create(between), await client.create(inside, assistant="slow")
            runs = [await client.chat(conversation, "go") for conversation in conversations]
            await client.approve(runs[0])
            await eventually(lambda: len(model.requests("between-calls")) == 2)
            await eventually(ledger.exists)
        server.kill()
        own_system.kill_everything()
        model.open_gate("crash")
        own_system.start()
        stack.enter_context(_tool_server(own_system, ledger))
        began = time.monotonic()
        async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
            for conversation in conversations:
                await client.request("subscribe", conversation_id=conversation, after_seq=0)
            first, second = [await client.finished(run) for run in runs]
        took_s = time.monotonic() - began
    assert (first["content"], second["content"]) == ("It went on.", "So be it.")
    assert second["tool_calls"][0]["result"]["error_kind"] == "unknown_outcome"
    assert ledger.read_text() == "ran\n"
    assert took_s < 30, "about 2 s on a machine with nothing else to do; the call alone takes a minute"


@contextmanager
def _tool_server(system: System, ledger: Path) -> Generator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "BANKSMAN_DATA_DIR": str(system.data_dir), "LEDGER": str(ledger)}
    process = subprocess.Popen([sys.executable, "-m", "tests.scenarios.slow_tool"], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _driver(system: System, model: ScriptedModel, name: str) -> int:
    """Return the agent process that waits for the model server with an open connection."""
    port = int(model.url.rpartition(":")[2])
    for pid in descendants(system.pid):
        if sockets_connected_to(port) & sockets_of(pid):
            return pid
    raise AssertionError(f"no process waits for {name}")


def _requests_approval_of(frame: dict[str, object], command: str) -> bool:
    data = frame.get("data")
    return (
        frame["type"] == "tool_call.requested"
        and isinstance(data, dict)
        and data["arguments"] == {"command": command}
    )
