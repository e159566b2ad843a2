"""The parts of uvicorn and websockets that are overridden or read. A release that changes one fails here."""

from __future__ import annotations

import inspect

import pytest
import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from banksman.library_internals.uvicorn_server import QuietServer
from banksman.library_internals.uvicorn_websockets import SocketProtocol, UnfinishedMessages, socket_protocol

OVERRIDDEN = {
    "data_received": ["self", "data"],
    "handle_cont": ["self", "event"],
    "send_receive_event_to_app": ["self"],
    "connection_lost": ["self", "exc"],
    "keepalive_timeout": ["self"],
    "send": ["self", "message"],
}


async def no_app(scope: object, receive: object, send: object) -> None: ...


@pytest.mark.parametrize("method", OVERRIDDEN)
def test_overridden_method_has_the_parameters_of_uvicorn(method: str) -> None:
    for cls in (WebSocketsSansIOProtocol, SocketProtocol):
        assert list(inspect.signature(getattr(cls, method)).parameters) == OVERRIDDEN[method]


async def test_protocol_has_the_attributes_that_are_read() -> None:
    unfinished = UnfinishedMessages(1, 1024, timed_out_code=4408, crowded_code=4429)
    config = uvicorn.Config(no_app, log_config=None)
    protocol = socket_protocol(unfinished)(config, ServerState(), {})

    assert (protocol.frames, protocol.close_sent, protocol.writable.is_set()) == ([], False, True)
    assert len(protocol.conn.reader.buffer) == 0
    assert callable(protocol.conn.fail) and callable(protocol.conn.data_to_send)
    assert hasattr(protocol, "transport") and hasattr(protocol, "loop")


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
