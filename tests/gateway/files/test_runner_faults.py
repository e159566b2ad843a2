"""Uploads whose client goes away, and runners that refuse, fail or end."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.conftest import GatewayFactory, Served
from tests.gateway.file_runner import lease_of, serve_files
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.names import RUNNERS
from banksman.bus.storage.kv import Bucket
from banksman.contracts import subjects
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import ErrorCode
from banksman.contracts.ids import new_id
from banksman.contracts.runner_requests import FileReply
from banksman.runs.runners.placement import FILES_TIMEOUT_S

PUT = b"PUT /context/conversations/%b/files/a HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9000000\r\n\r\n"
SENT = bytes(1024 * 1024)


async def conversation(gateway: Served) -> str:
    async with gateway.socket() as socket:
        return await socket.create()


async def upload_to(gateway: Served, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin an upload."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PUT % (await conversation(gateway)).encode() + SENT)
    return reader, writer


async def test_an_upload_ends_with_its_connection(gateway: Served) -> None:
    files: dict[str, bytes] = {}
    uploads = await serve_files(gateway.bus, files)
    _, writer = await upload_to(gateway, gateway.running.port)
    await eventually(lambda: uploads)
    writer.transport.abort()
    await eventually(lambda: not uploads)
    assert files == {}


@pytest.mark.parametrize("bytes_per_s", [0, 2_000])
async def test_an_upload_that_stalls_is_ended(start_gateway: GatewayFactory, bytes_per_s: int) -> None:
    async with start_gateway(body_timeout_s=1.0) as gateway:
        uploads = await serve_files(gateway.bus, {})
        reader, writer = await upload_to(gateway, gateway.running.port)
        await eventually(lambda: uploads)
        async with asyncio.timeout(WAIT_TIMEOUT_S), asyncio.TaskGroup() as group:
            response = group.create_task(reader.read(1000))
            while not (await asyncio.wait([response], timeout=0.1))[0]:
                writer.write(bytes(bytes_per_s // 10))
        assert b" 408 " in response.result()
        await eventually(lambda: not uploads)
        writer.transport.abort()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.BUSY, 503),
        (ErrorCode.UNAVAILABLE, 503),
        (ErrorCode.STORAGE_FULL, 507),
        (ErrorCode.TOO_LARGE, 413),
        (None, 400),
    ],
)
async def test_only_a_fault_of_the_client_is_a_bad_request(
    gateway: Served, code: str | None, status: int
) -> None:
    runner, bus = new_id("r"), gateway.bus
    await lease_of(bus, runner)

    async def refuse(message: Message) -> None:
        await bus.publish(message.reply, FileReply(error="no", code=code).model_dump_json().encode())

    await bus.subscribe(subjects.files(runner, subjects.ANY, subjects.ANY), refuse)
    async with gateway.http as http:
        path = f"/context/conversations/{await conversation(gateway)}/files/a"
        found = [await http.put(path, content=b"x"), await http.get(path), await http.delete(path)]
    assert [response.status_code for response in found] == [status] * 3
    assert [bool(response.headers.get("retry-after")) for response in found] == [status >= 500] * 3


@pytest.mark.parametrize("epoch", [None, 2])
async def test_a_request_waits_no_longer_than_its_runner_lives(
    gateway: Served, bus: Bus, epoch: int | None
) -> None:
    """The runner ends, or it is replaced by its restart."""
    runner, asked = new_id("r"), asyncio.Event()
    await lease_of(bus, runner)

    async def ignore(_: Message) -> None:
        asked.set()

    await bus.subscribe(subjects.files(runner, subjects.ANY, subjects.ANY), ignore)
    leases = Bucket(bus, RUNNERS, RunnerLease)
    loop = asyncio.get_running_loop()
    async with gateway.http as http:
        path = f"/context/conversations/{await conversation(gateway)}/files/a"
        began = loop.time()
        waiting = asyncio.create_task(http.get(path))
        await asked.wait()
        if epoch is None:
            await leases.delete(runner)
        else:
            await leases.put(runner, RunnerLease(runner=runner, runner_epoch=epoch, workspaces=True))
        response = await waiting
    assert loop.time() - began < FILES_TIMEOUT_S / 2
    assert response.status_code == 503
    assert "the tool-runner of this workspace ended" in response.json()["error"]["message"]
