"""The requests that one process of a tool server serves."""

from __future__ import annotations

from faststream.nats import NatsRouter

from banksman.bus.control_plane.broker import NoReply
from banksman.bus.control_plane.control import Received
from banksman.contracts import subjects
from banksman.contracts.calls import CallReply, CallRequest, CancelCall
from banksman.contracts.subjects import ANY
from banksman.sdk.calls import Calls


def tool_router(server: str, calls: Calls) -> NatsRouter:
    """Return the handlers of one process."""
    router = NatsRouter()

    # One worker, because both handlers return at once, and more workers cost a task and a queue per message.
    @router.subscriber(subjects.tool_call(server, ANY, ANY), title="tool.call")
    async def call(request: CallRequest, message: Received) -> CallReply:
        """Run a call once. The reply states whether it is accepted; its result is published as an event."""
        return _unless_none(calls.on_call(request, message))

    @router.subscriber(subjects.tool_cancel(server, ANY, ANY), title="tool.cancel")
    async def cancel(request: CancelCall, message: Received) -> CallReply:
        """End a call and store its result."""
        return _unless_none(calls.on_cancel(request, message.subject))

    return router


def _unless_none(reply: CallReply | None) -> CallReply:
    if reply is None:
        raise NoReply
    return reply
