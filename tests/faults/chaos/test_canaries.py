"""The search for secrets finds every planted secret, and nothing else."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from zstandard import ZstdCompressor

from banksman.bus.connection import Bus
from banksman.bus.names import OUTPUTS, WORKSPACES, kv_subject
from banksman.bus.publish import durable
from banksman.bus.storage.objects import Objects
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from tests.faults.chaos.conftest import Stage
from tests.support.chaos.canaries import Canaries, Search
from tests.support.chaos.plans import command
from tests.support.model_server import ModelServer
from tests.support.scripted_models import ScriptedCall, ScriptedReply

Plant = Callable[[Bus, str], Awaitable[object]]


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


@pytest.fixture
def search(canaries: Canaries) -> Search:
    return Search(canaries.secrets)


async def _in_a_bucket(bus: Bus, secret: str) -> object:
    key = kv_subject("prompts", new_id("p"))
    return await durable(bus, key, json.dumps({"content": f"use {secret}"}).encode(), msg_id=new_id("m"))


async def _in_a_header(bus: Bus, secret: str) -> object:
    key, headers = kv_subject("prompts", new_id("p")), {"Forwarded-Key": secret}
    return await durable(bus, key, b"{}", msg_id=new_id("m"), headers=headers)


async def _in_a_queue(bus: Bus, secret: str) -> object:
    """A stream without direct get."""
    subject = subjects.run_work(new_id("t"), new_id("c"))
    return await durable(bus, subject, secret.encode(), msg_id=new_id("m"))


async def _in_a_dead_letter(bus: Bus, secret: str) -> object:
    """A dead letter contains its payload in base64."""
    payload = base64.b64encode(f"a key: {secret}!".encode()).decode()
    letter = json.dumps({"payload_base64": payload}).encode()
    return await durable(bus, f"dead.{new_id('x')}", letter, msg_id=new_id("m"))


async def _in_a_snapshot_of_a_log(bus: Bus, secret: str) -> object:
    state = base64.b64encode(zlib.compress(f'{{"history": ["{secret}"]}}'.encode())).decode()
    commit = json.dumps({"snapshot": {"form": "f", "state": state}}, separators=(",", ":")).encode()
    return await durable(bus, subjects.conversation(new_id("t"), new_id("c")), commit, msg_id=new_id("m"))


async def _in_an_output(bus: Bus, secret: str) -> object:
    """The secret spans two chunks of the object."""
    return await Objects(bus, OUTPUTS).put(new_id("o"), b"x" * (512 * 1024 - 5) + secret.encode())


async def _in_a_copy_of_a_workspace(bus: Bus, secret: str) -> object:
    packed = ZstdCompressor().compress(f"notes.txt {secret}".encode())
    return await Objects(bus, WORKSPACES).put(new_id("o"), packed)


@pytest.mark.parametrize(
    "plant",
    [
        _in_a_bucket,
        _in_a_header,
        _in_a_queue,
        _in_a_dead_letter,
        _in_a_snapshot_of_a_log,
        _in_an_output,
        _in_a_copy_of_a_workspace,
    ],
)
async def test_a_secret_in_a_stream_is_found(
    own_bus: Bus, canaries: Canaries, search: Search, plant: Plant
) -> None:
    """P9, A18: in messages, headers, buckets and objects, plain or compressed."""
    assert [sentence async for sentence in search.streams(own_bus)] == []

    await plant(own_bus, canaries.secrets["OpenAI key"])

    found = [sentence async for sentence in search.streams(own_bus)]
    assert found
    assert all(sentence.startswith("the OpenAI key is in stream ") for sentence in found)


def test_a_secret_in_a_log_or_a_workspace_is_found(
    canaries: Canaries, search: Search, tmp_path: Path
) -> None:
    """P9, A18: with the name of the file; a link that leads out of a workspace is not followed."""
    outside = tmp_path / "outside.nk"
    outside.write_text(canaries.client_key)
    logs, workspace = tmp_path / "logs", tmp_path / "workspaces" / "t" / "c"
    logs.mkdir()
    workspace.mkdir(parents=True)
    (workspace / "link").symlink_to(outside)
    (logs / "agent.log").write_text("all is well\n")
    assert list(search.files(logs, tmp_path / "workspaces")) == []

    password = canaries.secrets["password of a proxy"]
    (logs / "agent.log").write_text(f"cannot connect to someone:{password}@127.0.0.1\n")
    (workspace / "notes.bin").write_bytes(b"\xff\x00" + canaries.client_key.encode())

    assert list(search.files(logs, tmp_path / "workspaces")) == [
        f"the password of a proxy is in {logs / 'agent.log'}",
        f"the client's key is in {workspace / 'notes.bin'}",
    ]


async def test_a_secret_in_a_model_request_is_found(canaries: Canaries, search: Search) -> None:
    """P9, A18."""
    async with ModelServer.running() as model, httpx.AsyncClient(trust_env=False) as http:
        for text in ("hello", f"my key is {canaries.client_key}"):
            body = {"model": "demo", "messages": [{"role": "user", "content": text}]}
            await http.post(f"{model.openai_url}/chat/completions", json=body)
        assert list(search.requests(model)) == ["the client's key is in model request 2"]


def test_nkey_seeds_and_the_signing_key_are_searched_too(canaries: Canaries, tmp_path: Path) -> None:
    """P9: keys in files are as secret as keys in variables."""
    (tmp_path / "agent.nk").write_text("SUAGENTSEED\n")
    search = Search(canaries.with_files(tmp_path))
    assert search.names_in(b"the seed is SUAGENTSEED") == {"content of agent.nk"}


@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="session")
async def test_a_running_system_leaks_no_secret(stage: Stage, marker: str) -> None:
    """P9, A18: for any search of a command; and the check finds a secret planted in a workspace."""
    looks = f"{command(marker)}; env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; true"
    pries = ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": looks}),))
    async with stage.connected() as client:
        _, run_id = await stage.run(client, pries, ScriptedReply(text="done"))
        outcome = await client.finished(run_id)
    assert (outcome["status"], stage.fleet.executions(marker)) == ("completed", 1)
    assert "PATH=" in json.dumps(stage.requests()), "the command saw its environment"
    assert await stage.fleet.leaks(stage.model) == []

    planted = stage.fleet.roots[0] / "planted.txt"
    planted.write_text(stage.fleet.canaries.client_key)
    try:
        assert await stage.fleet.leaks(stage.model) == [f"the client's key is in {planted}"]
    finally:
        planted.unlink()
