"""One tenant floods the NATS API."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

from tests.gateway.conftest import GatewayFactory, Served
from tests.support.nats import Broker
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.ids import new_id

FLOOD = 100_000
"""Requests. They are sent as fast as the server takes them."""
USUAL = 20
"""Requests of another tenant before the flood, which show how fast this machine is, and least during it."""


def _flood(server: Broker, subject: str) -> threading.Thread:
    """Send requests over a connection of its own, in a thread: a slow client would be no flood."""

    def send() -> None:
        url = urlsplit(server.url)
        request = f"PUB {subject} flood.reply 2\r\n{{}}\r\n".encode()
        with socket.create_connection((url.hostname or "", url.port or 0), WAIT_TIMEOUT_S) as connection:
            connection.sendall(b'CONNECT {"verbose":false}\r\n' + request * FLOOD + b"PING\r\n")
            while b"PONG" not in (received := connection.recv(4096)):
                if not received:
                    raise ConnectionError("the server closed the connection of the flood")

    thread = threading.Thread(target=send)
    thread.start()
    return thread


async def _usage(bus: Bus, tenant: str) -> dict[str, Any]:
    return json.loads(await bus.request(subjects.api(tenant, "usage"), b"{}", WAIT_TIMEOUT_S))


async def test_a_flood_of_one_tenant_does_not_delay_another_tenant(
    gateway: Served, nats_server: Broker, bus: Bus, tenant: str
) -> None:
    """The gateway reads requests in the order of arrival; other tenants wait only for the reading."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(USUAL):
        await _usage(bus, tenant)
    flood_s = FLOOD * (loop.time() - began) / USUAL
    thread = _flood(nats_server, subjects.api(new_id("t"), "usage"))
    slowest_s, requests = 0.0, 0
    while thread.is_alive() or requests < USUAL:
        began = loop.time()
        assert "code" not in await _usage(bus, tenant)
        slowest_s, requests = max(slowest_s, loop.time() - began), requests + 1
    thread.join()
    assert slowest_s < flood_s / 10, "handling the flood first takes all of this time"
    assert not await gateway.health.problems()


async def test_a_tenant_above_its_rate_is_refused_and_others_are_not(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    async with start_gateway(requests_per_s=1):
        replies = [await _usage(bus, tenant) for _ in range(5)]
        other = await _usage(bus, new_id("t"))
    assert [reply.get("code") for reply in replies] == [None] * 4 + ["rate_limited"]
    assert 0 < replies[-1]["retry_after_s"] <= 1
    assert "code" not in other


async def test_refusals_are_bounded_too(start_gateway: GatewayFactory, bus: Bus, tenant: str) -> None:
    """A flood gets as many refusals as replies; the rest of it is dropped."""
    replies: list[Message] = []

    async def received(message: Message) -> None:
        replies.append(message)

    async with start_gateway(requests_per_s=10) as gateway:
        inbox = new_id("inbox")
        await bus.subscribe(inbox, received)
        for _ in range(300):
            await bus.nc.publish(subjects.api(tenant, "usage"), b"{}", reply=inbox)
        # The other subject is read after the flood, and its reply arrives after the refusals.
        await _usage(bus, new_id("t"))
        assert not await gateway.health.problems()
    assert 80 <= len(replies) < 150
