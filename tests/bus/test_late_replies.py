"""Replies that the server refuses: it permits one only on the connection that received the request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from pathlib import Path

import pytest

from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.deployment.users import AGENT, GATEWAY
from tests.support.fixtures import SecuredNats, secured_server
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S


@pytest.fixture
def own_nats(tmp_path: Path) -> Generator[SecuredNats]:
    """A server that this test may restart."""
    with secured_server(tmp_path / "keys") as secured:
        yield secured


@pytest.mark.one_server
async def test_reply_after_a_reconnection_is_no_error_and_a_forbidden_publish_is_one(
    own_nats: SecuredNats, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    received: asyncio.Queue[Message] = asyncio.Queue()
    reconnected = asyncio.Event()
    subject = subjects.service_state()
    async with await own_nats.connect(AGENT) as agent, await own_nats.connect(GATEWAY) as gateway:
        agent.on_reconnect(reconnected.set)
        await agent.subscribe(subject, received.put)
        await agent.ready()
        requesting = asyncio.create_task(gateway.request(subject, b"{}", WAIT_TIMEOUT_S))
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            request = await received.get()
            own_nats.server.restart()
            await reconnected.wait()
        requesting.cancel()

        await agent.publish(request.reply, b"{}")
        await eventually(lambda: "a reply came too late" in caplog.text)
        assert agent.stats.forbidden == 0
        await agent.publish("nobody.may.publish.here", b"{}")
        await eventually(lambda: agent.stats.forbidden == 1)

    errors = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1 and "nobody.may.publish.here" in errors[0]
