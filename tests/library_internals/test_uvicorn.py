"""The parts of uvicorn and websockets that are overridden or read. A release that changes one fails here."""

from __future__ import annotations

import inspect

import h11
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from banksman.library_internals.uvicorn_connections import (
    HttpProtocol,
    ListenerLimits,
    OpenConnections,
    http_protocol,
)
from banksman.library_internals.uvicorn_server import QuietServer
from banksman.library_internals.uvicorn_websockets import SocketProtocol, UnfinishedMessages, socket_protocol

OVERRIDDEN = {
    "connection_made": ["self", "transport"],
    "data_received": ["self", "data"],
    "handle_cont": ["self", "event"],
    "send_receive_event_to_app": ["self"],
    "connection_lost": ["self", "exc"],
    "keepalive_timeout": ["self"],
    "send": ["self", "message"],
}
OVERRIDDEN_OF_HTTP = {
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "resume_writing": ["self"],
    "handle_websocket_upgrade": ["self", "event"],
}
CONNECTIONS = OpenConnections(ListenerLimits(8, 4, 4, header_s=1, body_s=1))


async def no_app(scope: object, receive: object, send: object) -> None: ...


@pytest.mark.parametrize("method", OVERRIDDEN)
def test_overridden_method_has_the_parameters_of_uvicorn(method: str) -> None:
    for cls in (WebSocketsSansIOProtocol, SocketProtocol):
        assert list(inspect.signature(getattr(cls, method)).parameters) == OVERRIDDEN[method]


async def test_protocol_has_the_attributes_that_are_read() -> None:
    unfinished = UnfinishedMessages(1, 1024, timed_out_code=4408, crowded_code=4429)
    config = uvicorn.Config(no_app, log_config=None)
    protocol = socket_protocol(unfinished, CONNECTIONS)(config, ServerState(), {})

    assert (protocol.frames, protocol.close_sent, protocol.writable.is_set()) == ([], False, True)
    assert len(protocol.conn.reader.buffer) == 0
    assert callable(protocol.conn.fail) and callable(protocol.conn.data_to_send)
    assert hasattr(protocol, "transport") and hasattr(protocol, "loop") and hasattr(protocol, "client")
    assert protocol.handshake_complete is False
    assert "self.app_state.copy()" in inspect.getsource(WebSocketsSansIOProtocol)


@pytest.mark.parametrize("method", OVERRIDDEN_OF_HTTP)
def test_overridden_method_of_http_has_the_parameters_of_uvicorn(method: str) -> None:
    for cls in (H11Protocol, HttpProtocol):
        assert list(inspect.signature(getattr(cls, method)).parameters) == OVERRIDDEN_OF_HTTP[method]


async def test_http_protocol_has_the_attributes_that_are_read() -> None:
    config = uvicorn.Config(no_app, log_config=None)
    protocol = http_protocol(CONNECTIONS)(config, ServerState(), {})

    assert (protocol.cycle, protocol.client, protocol.conn.their_state) == (None, None, h11.IDLE)
    assert protocol.conn.trailing_data == (b"", False)
    assert protocol.conn.they_are_waiting_for_100_continue is False
    assert "self.app_state.copy()" in inspect.getsource(H11Protocol)
    for cls, names in (
        (RequestResponseCycle, ("response_started", "response_complete")),
        (FlowControl, ("read_paused", "write_paused")),
    ):
        assert all(f"self.{name} = False" in inspect.getsource(cls) for name in names)


def test_server_has_the_methods_that_are_overridden_and_called() -> None:
    for cls in (uvicorn.Server, QuietServer):
        assert list(inspect.signature(cls.main_loop).parameters) == ["self"]
        assert list(inspect.signature(cls.capture_signals).parameters) == ["self"]
    assert list(inspect.signature(uvicorn.Server.on_tick).parameters) == ["self", "counter"]
    assert "capture_signals" in inspect.getsource(uvicorn.Server.serve)


async def test_on_tick_ends_the_loop_when_the_server_should_exit() -> None:
    server = QuietServer(uvicorn.Config(no_app, log_config=None))

    assert not await server.on_tick(0)
    server.stop()
    assert await server.on_tick(0)
