"""A system whose disk fills says so before and while it is full, and continues when there is space."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.client import Client
from tests.support.commands import run_command
from tests.support.polling import eventually
from tests.support.replies import bash
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.support.volumes import Volume, require_volumes

pytestmark = [pytest.mark.timeout(300), pytest.mark.one_server]
REFUSED_WITHIN_S = 1.0
BUSY_MACHINE_S = 3.0
"""Additional seconds for a busy machine; without the state of the disk, a refusal takes 6 s."""
MEGABYTE = 1024 * 1024
SIZE_MB = 400
SERVICES = ("gateway", "agent-1", "workflows", "tool-runner")


async def test_a_system_continues_by_itself_after_its_disk_was_full_in_the_middle_of_runs(
    place: Path, model: ScriptedModel
) -> None:
    """A37: without a restart of `banksman up`; no accepted run is lost, and no command runs twice."""
    require_volumes()
    held = model.play("held", [ScriptedReply(text="Held.", gate=Gate(name="hold"))])
    command = model.play("command", [bash("sleep 2; echo ran >> ledger"), bash("cat ledger"), _said("Ran.")])
    parked = model.play("parked", [bash("echo later"), _said("Decided.")])
    after = model.play("after", [_said("After.")])
    with Volume.made(place / "disk", place / "volume", megabytes=SIZE_MB) as volume:
        async with _up(volume.path / "state", model) as system, _client(system) as client:
            waiting = await client.chat(await client.create(held), "go")
            running = await client.chat(await client.create(command), "go")
            asked = await client.chat(await client.create(parked), "go")
            later = await client.approval_request(asked)
            await client.approve(running)
            await client.event("tool_call.started", run_id=running)
            await eventually(lambda: model.requests("held"))
            runner, other = system.service_pids("tool-runner"), await client.create(after)
            with volume.filled():
                model.open_gate("hold")
                await _refused(system, other)
                for name in ("gateway", "agent-1", "workflows"):
                    await eventually(lambda name=name: "disk" in _problems(system, name))
                assert await _refused(system, other) < REFUSED_WITHIN_S + BUSY_MACHINE_S
                # It ends with its lease, which it cannot renew; the supervisor then cannot write its state.
                await eventually(lambda: not set(runner) & set(system.service_pids("tool-runner")))
            await client.decide(later["approval_id"])
            assert (await client.finished(waiting))["content"] == "Held."
            assert (await client.finished(asked))["content"] == "Decided."
            await client.approve(running)
            ended = await client.finished(running)
            assert ended["content"] == "Ran."
            # The full disk may have refused the line, or ended the command with its runner.
            assert _outputs(ended)[-1] in ("", "ran\n")
            await eventually(lambda: _all_ready(system))
            assert (await client.run(await client.create(after), "go"))["content"] == "After."
            assert json.loads((system.data_dir / "run.json").read_text())["supervisor"]["pid"] == system.pid


async def test_a_nearly_full_disk_warns_first_and_then_leaves_room_for_open_runs(
    place: Path, model: ScriptedModel
) -> None:
    """A37: new runs are refused before NATS fails, open ones continue, and the metrics show the room."""
    require_volumes()
    parked = model.play("parked", [bash("echo later"), _said("Decided.")])
    with Volume.made(place / "disk", place / "volume", megabytes=SIZE_MB) as volume:
        async with _up(volume.path / "state", model) as system, _client(system) as client:
            run = await client.chat(await client.create(parked), "go")
            later = await client.approval_request(run)
            other = await client.create(parked)
            with volume.filled(leave=25 * MEGABYTE):
                for name, check in (("gateway", "disk"), ("tool-runner", "workspaces")):
                    await eventually(partial(_warns, system, name, check))
            with volume.filled(leave=6 * MEGABYTE):
                await eventually(lambda: _problems(system, "gateway").get("disk"))
                assert "workspaces" in _problems(system, "tool-runner")
                await _refused(system, other, "storage_full")
                levels = _levels(system)
                assert (levels["disk"], levels["workspaces"]) == ("critical", "critical")
                await eventually(lambda: _overview_warns(system))
                await client.decide(later["approval_id"])
                assert (await client.finished(run))["content"] == "Decided."
                assert _metric(system, "gateway", 'banksman_disk_full{volume="nats"}') == 1
                assert _metric(system, "gateway", 'banksman_disk_free_bytes{volume="nats"}') < 8 * MEGABYTE
            await eventually(lambda: _all_ready(system))


async def test_a_full_disk_of_the_workspaces_alone_fails_commands_until_there_is_space(
    place: Path, model: ScriptedModel
) -> None:
    """A37: the runner is not ready and stays, so that commands can still delete files; uploads get 507."""
    require_volumes()
    write = bash("head -c 3000000 /dev/zero > big && echo written")
    name = model.play("write", [write, _said("Tried."), write, _said("Tried again.")])
    with Volume.made(place / "disk", place / "volume", megabytes=48) as volume:
        volume.path.chmod(0o711)
        own = {"BANKSMAN_TOOL_RUNNER__WORKSPACES_DIR": str(volume.path / "workspaces")}
        async with _up(place / "state", model, own) as system, _client(system) as client:
            conversation = await client.create(name)
            runner = system.service_pids("tool-runner")
            with volume.filled():
                await eventually(lambda: "workspaces" in _problems(system, "tool-runner"))
                assert "disk" not in _readyz(system, "gateway")["problems"]
                first = await client.chat(conversation, "go")
                await client.approve(first)
                ended = await client.finished(first)
                assert ended["content"] == "Tried."
                assert "written\n" not in _outputs(ended)
                for size in (1_000, 3_000_000):
                    uploaded = await _uploaded(system, conversation, size)
                    assert uploaded.status_code == 507, uploaded.text
                    assert int(uploaded.headers["retry-after"]) >= 1
            await eventually(lambda: _all_ready(system))
            assert (await _uploaded(system, conversation, 3_000_000)).is_success
            second = await client.chat(conversation, "again")
            await client.approve(second)
            ended = await client.finished(second)
            assert (ended["content"], _outputs(ended)) == ("Tried again.", ["written\n"])
            assert system.service_pids("tool-runner") == runner


async def test_workspaces_that_become_read_only_are_named_until_they_can_be_written(
    place: Path, model: ScriptedModel
) -> None:
    """A37: by readiness, metrics and `doctor`, which reads the directory of the runner's settings."""
    require_volumes()
    name = model.play("write", [bash("echo written > file && cat file"), _said("Tried.")] * 2)
    with Volume.made(place / "disk", place / "volume", megabytes=48) as volume:
        volume.path.chmod(0o711)
        own = {"BANKSMAN_TOOL_RUNNER__WORKSPACES_DIR": str(volume.path / "workspaces")}
        async with _up(place / "state", model, own) as system, _client(system) as client:
            conversation = await client.create(name)
            with volume.failed(synced=True):
                await eventually(
                    lambda: "cannot be written" in _problems(system, "tool-runner")["workspaces"]
                )
                assert (
                    'banksman_disk_full{volume="workspaces"} 1.0'
                    in _get(system, "tool-runner", "/metrics").text
                )
                assert _levels(system)["workspaces"] == "critical"
                first = await client.chat(conversation, "go")
                await client.approve(first)
                assert _outputs(await client.finished(first)) == [""]
            await eventually(lambda: _all_ready(system))
            second = await client.chat(conversation, "again")
            await client.approve(second)
            assert _outputs(await client.finished(second)) == ["written\n"]


async def test_a_store_that_becomes_read_only_serves_reads_until_it_can_be_written(
    place: Path, model: ScriptedModel
) -> None:
    """A37: a restart of nats-server on it would end reads too, and the reason that readiness names."""
    require_volumes()
    name = model.play("say", [_said("Said.")] * 2)
    state = place / "state"
    with Volume.made(place / "disk", state / "nats", megabytes=SIZE_MB) as volume:
        async with _up(state, model) as system, _client(system) as client:
            conversation = await client.create(name)
            await client.run(conversation, "go")
            server = system.service_pids("nats-server")
            with volume.failed():
                await _refused(system, conversation)
                await eventually(lambda: "waits until its disk can be written" in system.log())
                assert "read-only file system" in _problems(system, "gateway")["disk"]
                assert system.service_pids("nats-server") == server
                assert _last_event(system, conversation) == "run.finished"
            await eventually(lambda: _all_ready(system))
            assert (await client.run(conversation, "again"))["content"] == "Said."


async def test_a_full_disk_of_the_logs_and_keys_alone_is_a_warning(place: Path, model: ScriptedModel) -> None:
    """A37: on the page, in readiness and in the metrics of the gateway; everything is served."""
    require_volumes()
    name = model.play("say", [_said("Said.")])
    store = place / "store"
    with Volume.made(place / "disk", place / "volume", megabytes=48) as volume:
        state = volume.path / "state"
        (state / "nats").mkdir(parents=True)
        store.mkdir()
        (state / "nats" / "streams").symlink_to(store)
        own = {"BANKSMAN_TOOL_RUNNER__WORKSPACES_DIR": str(place / "workspaces")}
        async with _up(state, model, own) as system:
            with volume.filled():
                await eventually(lambda: _warns(system, "gateway", "disk", f"the disk of {state} is full"))
                assert _metric(system, "gateway", 'banksman_disk_full{volume="state"}') == 1
                async with _client(system) as client:
                    welcome = next(frame for frame in client.frames if frame["type"] == "welcome")
                    assert any(str(state) in text for text in welcome["notices"])
                    assert (await client.run(await client.create(name), "go"))["content"] == "Said."
                assert _all_ready(system)
            await eventually(lambda: not _warns(system, "gateway", "disk", str(state)))


def _said(text: str) -> ScriptedReply:
    return ScriptedReply(text=text)


@asynccontextmanager
async def _up(
    data_dir: Path, model: ScriptedModel, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[System]:
    await asyncio.to_thread(data_dir.mkdir, mode=0o711, exist_ok=True)
    await asyncio.to_thread(data_dir.chmod, 0o711)
    system = System(data_dir, model, environment)
    try:
        system.start()
        yield system
    finally:
        system.close()


def _client(system: System) -> Any:
    return Client.connected(system.url, timeout_s=2 * WAIT_TIMEOUT_S)


def _overview_warns(system: System) -> bool:
    overview = httpx.get(f"{system.url}/operator/overview", timeout=WAIT_TIMEOUT_S).json()
    return any(runner["warning"] for runner in overview["runners"])


def _levels(system: System) -> dict[str, str]:
    """Return the level of each finding of `banksman doctor`."""
    own = {"BANKSMAN_DATA_DIR": str(system.data_dir)}
    found = run_command("doctor", "--json", environment=system.variables | own)
    return {each["name"]: each["level"] for each in map(json.loads, found.stdout.splitlines())}


def _outputs(ended: Mapping[str, Any]) -> list[str]:
    """Return what the commands of an ended run printed."""
    return [call["result"].get("stdout", "") for call in ended["tool_calls"]]


async def _refused(system: System, conversation: str, reason: str = "") -> float:
    """Start a run, which is refused with a time to retry; return the seconds that it took."""
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=system.url, timeout=WAIT_TIMEOUT_S) as http:
        response = await http.post(f"/context/conversations/{conversation}/runs", json={"content": "x"})
    assert response.status_code == 503, response.text
    assert int(response.headers["retry-after"]) >= 1
    assert reason in response.text
    return time.monotonic() - began


async def _uploaded(system: System, conversation: str, size: int) -> httpx.Response:
    async with httpx.AsyncClient(base_url=system.url, timeout=WAIT_TIMEOUT_S) as http:
        return await http.put(f"/context/conversations/{conversation}/files/upload", content=bytes(size))


def _get(system: System, process: str, path: str) -> httpx.Response:
    url = json.loads((system.data_dir / "run.json").read_text())["health"][process]
    return httpx.get(url.replace("/readyz", path), timeout=WAIT_TIMEOUT_S)


def _metric(system: System, process: str, name: str) -> float:
    return float(_get(system, process, "/metrics").text.partition(f"{name} ")[2].split()[0])


def _last_event(system: System, conversation: str) -> str:
    url = f"{system.url}/context/conversations/{conversation}/events"
    return str(httpx.get(url, timeout=WAIT_TIMEOUT_S).json()["items"][-1]["type"])


def _readyz(system: System, process: str) -> dict[str, dict[str, str]]:
    return dict(_get(system, process, "/readyz").json())


def _problems(system: System, process: str) -> dict[str, str]:
    return _readyz(system, process)["problems"]


def _warns(system: System, process: str, check: str, text: str = "nearly full") -> bool:
    return text in _readyz(system, process)["warnings"].get(check, "")


def _all_ready(system: System) -> bool:
    try:
        return all(
            _readyz(system, name)["ready"] for name in ("gateway", "agent-1", "workflows", "tool-runner")
        )
    except httpx.TransportError:
        return False
