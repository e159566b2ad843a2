"""Names whose DNS server never answers: other names are looked up at once."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from banksman.contracts.urls import parse_url
from banksman.tool_runner.egress.client import Egress, FetchFailed
from banksman.tool_runner.settings import FetchLimits
from tests.support.hostile_servers import raw_server

HUNG = 200


async def test_look_ups_without_an_answer_in_one_domain_stop_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        if host.endswith(".evil.example"):
            answered.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    page = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\ntext"
    async with raw_server(page) as url:
        port = parse_url(url).port

        egress = Egress(FetchLimits(), ports=frozenset({port}), address_allowed=lambda _: True)

        async def refused(number: int) -> None:
            with pytest.raises(FetchFailed, match="no complete response within"):
                await egress.get(f"http://n{number}.evil.example:{port}/", timeout_s=0.5)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(HUNG):
                    group.create_task(refused(number))
            found = await egress.get(f"http://site.other.example:{port}/", timeout_s=5)
        finally:
            answered.set()
    assert found.body == b"text"
