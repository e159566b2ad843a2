"""Full streams and full disks: requests are refused in time with a reason, and work continues with space."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call, last_message
from banksman.bus.names import RUNS, api
from banksman.contracts import subjects
from tests.gateway.conftest import Agent, Served, Socket, gateway_on
from tests.support.fixtures import connect, provision_all
from tests.support.nats import NatsServer, plain_config
from tests.support.polling import scripted_delay
from tests.support.volumes import Volume, require_volumes

pytestmark = [pytest.mark.timeout(180), pytest.mark.one_server]
WAIT_TIMEOUT_S = 60.0
REPLY_STREAM_FULL_S, REPLY_DISK_FULL_S = 1.0, 6.0
"""The promised time, with additional time for a busy machine."""
BUSY_MACHINE_S = 10.0


async def test_a_full_stream_returns_busy_on_every_interface_until_there_is_space(
    own_nats: NatsServer, tenant: str
) -> None:
    """A37, R92: no accepted message is lost, and no refused one was stored."""
    async with (
        await connect(own_nats) as bus,
        gateway_on(own_nats, bus, tenant) as served,
        served.socket() as socket,
    ):
        kept = await _accepted(socket)
        conversation = await socket.create()
        await _limit(bus, RUNS, full=True)
        began = time.monotonic()
        refused = await socket.request("chat.send", conversation_id=conversation, content="too much")
        took_s = time.monotonic() - began
        assert (refused["type"], refused["code"], refused["retryable"]) == ("error", "busy", True)
        assert took_s < REPLY_STREAM_FULL_S + BUSY_MACHINE_S
        async with served.http as http:
            response = await http.post(f"/context/conversations/{conversation}/runs", json={"content": "x"})
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert await last_message(bus, RUNS, subjects.run_work(tenant, conversation)) is None
        await _limit(bus, RUNS, full=False)
        again = await socket.request("chat.send", conversation_id=conversation, content="now")
        assert again["type"] == "ack"
        await _is_stored(bus, tenant, kept, conversation)


async def test_a_full_disk_is_reported_in_time_and_work_continues_with_space(
    tmp_path: Path, tenant: str
) -> None:
    """A37: the server may be restarted after space was freed; no accepted message is lost."""
    require_volumes()
    async with _on_a_volume(tmp_path, tenant) as (server, volume, bus, served), served.socket() as socket:
        kept = await _accepted(socket)
        conversation = await socket.create()
        with volume.filled():
            began = time.monotonic()
            refused = await _send_until_response(socket, conversation)
            took_s = time.monotonic() - began
            assert (refused["type"], refused["retryable"]) == ("error", True)
            assert refused["code"] in ("busy", "unavailable")
            assert took_s < REPLY_DISK_FULL_S + BUSY_MACHINE_S
        await asyncio.to_thread(server.restart)
        await bus.ready(WAIT_TIMEOUT_S)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while (reply := await _send_until_response(socket, conversation))["type"] != "ack":
                # The gateway refuses without a wait until it has seen the room; a client returns when told.
                await scripted_delay(reply["retry_after_s"])
        await _is_stored(bus, tenant, kept, conversation)


@asynccontextmanager
async def _on_a_volume(
    directory: Path, tenant: str
) -> AsyncGenerator[tuple[NatsServer, Volume, Bus, Served]]:
    with ExitStack() as stack:
        volume = stack.enter_context(Volume.made(directory / "disk", directory / "volume", megabytes=48))
        config = plain_config(sync_always=True).replace("{store_dir}", str(volume.path / "store"))
        server = stack.enter_context(NatsServer(config, directory=directory))
        await asyncio.to_thread(provision_all, server)
        async with await connect(server) as bus, gateway_on(server, bus, tenant) as served:
            yield server, volume, bus, served


async def _accepted(socket: Socket) -> str:
    """A conversation with an accepted run."""
    conversation = await socket.create()
    ack = await socket.request("chat.send", conversation_id=conversation, content="first")
    assert ack["type"] == "ack"
    return conversation


async def _send_until_response(socket: Socket, conversation: str) -> dict[str, Any]:
    """Send a message and wait for its response, for as long as the gateway may take."""
    sent = await socket.send("chat.send", conversation_id=conversation, content="again " + "x" * 20_000)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            try:
                return await socket.until(lambda frame: frame.get("reply_to") == sent)
            except TimeoutError:
                continue


async def _limit(bus: Bus, stream: str, *, full: bool) -> None:
    """Limit a stream to its current size, or restore its limit."""
    info = await call(bus, api("STREAM.INFO", stream))
    room = info["state"]["bytes"] if full else 512 * 1024 * 1024
    await call(bus, api("STREAM.UPDATE", stream), {**info["config"], "max_bytes": room})


async def _is_stored(bus: Bus, tenant: str, *conversations: str) -> None:
    agent = Agent(bus, tenant)
    for conversation in conversations:
        assert (await agent.started(conversation)).conversation_id == conversation
