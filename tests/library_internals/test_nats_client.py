"""The parts of nats-py that `SafeClient` overrides or uses. A release that changes one fails here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from urllib.parse import urlparse

import pytest
from nats.aio.client import Client, Srv

from banksman.bus.connection import Bus
from banksman.library_internals.nats_client import SafeClient, parse_headers
from tests.support.polling import eventually

OVERRIDDEN = {
    "_process_msg": ["self", "sid", "subject", "reply", "data", "headers"],
    "_process_headers": ["self", "headers"],
    "_connect_to_server": ["self", "s"],
    "_close": ["self", "status", "do_cbs"],
    "_remove_sub": ["self", "sid", "max_msgs"],
}
NOT_UTF_8 = b"NATS/1.0 \xff\xff\xff\r\n\r\n"


@pytest.mark.parametrize("method", OVERRIDDEN)
def test_overridden_method_has_the_parameters_of_nats_py(method: str) -> None:
    assert list(inspect.signature(getattr(Client, method)).parameters) == OVERRIDDEN[method]
    assert list(inspect.signature(getattr(SafeClient, method)).parameters) == OVERRIDDEN[method]


def test_client_has_the_attributes_that_are_used() -> None:
    client = Client()

    assert (client._sid, client._transport, client._status) == (0, None, Client.DISCONNECTED)
    assert callable(client._error_cb)
    assert {"in_msgs", "in_bytes"} <= client.stats.keys()


async def test_nats_py_raises_on_a_status_that_is_not_utf_8() -> None:
    """The reason for `_process_headers`. If nats-py accepts it, the override may go."""
    with pytest.raises(UnicodeDecodeError):
        await Client()._process_headers(NOT_UTF_8)
    assert await SafeClient()._process_headers(NOT_UTF_8) is None


async def test_headers_are_those_that_nats_py_returns() -> None:
    for block in (
        b"NATS/1.0\r\nA: b\r\nC:d\r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0 404 No Messages\r\n\r\n",
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n",
    ):
        assert parse_headers(block) == await Client()._process_headers(block)


class Transport:
    """A transport whose server does not respond."""

    closed = False

    async def connect(self, *_arguments: object, **_options: object) -> None:
        raise ConnectionRefusedError

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("client", "closes"), [(Client, False), (SafeClient, True)])
async def test_a_further_attempt_to_connect_closes_the_socket_of_the_last_one(
    client: type[Client], closes: bool
) -> None:
    """nats-py uses the transport of the last attempt again and does not close it."""
    nc, transport = client(), Transport()
    nc.options["connect_timeout"] = 1
    nc._transport = transport  # pyright: ignore[reportAttributeAccessIssue] - the part that is used
    with pytest.raises(ConnectionRefusedError):
        await nc._connect_to_server(Srv(urlparse("nats://127.0.0.1:1")))
    assert transport.closed is closes


async def test_messages_of_a_subscription_are_received_in_the_order_of_their_arrival(
    bus: Bus, tenant: str
) -> None:
    """`listen` needs the number of the next subscription, and a reader that calls `_process_msg`."""
    received: list[tuple[str, bytes, str, dict[str, str]]] = []

    def receive(subject: str, data: bytes, reply: str, headers: Mapping[str, str]) -> None:
        received.append((subject, data, reply, dict(headers)))

    first = await bus.nc.listen(f"{tenant}.a", receive)
    await bus.nc.listen(f"{tenant}.b", receive)
    await bus.nc.publish(f"{tenant}.b", b"1", reply="answer", headers={"A": "b"})
    await bus.nc.publish(f"{tenant}.a", b"2")
    await eventually(lambda: len(received) == 2)
    assert received == [(f"{tenant}.b", b"1", "answer", {"A": "b"}), (f"{tenant}.a", b"2", "", {})]

    await first.unsubscribe()
    await bus.nc.publish(f"{tenant}.a", b"3")
    await bus.ready()
    assert len(received) == 2
