"""A websocket client for tests: sends frames, stores what it receives, and waits for expected frames."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from websockets.asyncio.client import ClientConnection, connect

from tests.support.polling import scripted_delay
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

Frame = dict[str, Any]
"""A frame as JSON, as a client without the SDK receives it."""
_RETRY_AFTER_S = 0.5
"""Seconds until a client repeats a request whose refusal names no time."""


class Client:
    """One connection. Events are stored by conversation, in the order of arrival."""

    def __init__(self, connection: ClientConnection, *, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        self.connection = connection
        self.timeout_s = timeout_s
        self.frames: list[Frame] = []
        """Every received frame."""
        self._ids = (f"{uuid4().hex}-{number}" for number in itertools.count(1))
        self._arrived = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, url: str, *, timeout_s: float = WAIT_TIMEOUT_S, hello: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Client]:
        """Connect and send the `hello` frame.

        Args:
            url: The gateway's address: `http://host:port`.
            timeout_s: Seconds until a wait fails.
            hello: Fields of the first frame besides its type.
        """
        address = url.replace("http", "ws", 1) + "/ws"
        async with connect(address, subprotocols=["banksman.v1"], max_size=None, compression=None) as socket:  # type: ignore[list-item]  # a plain str is what the wire has
            client = cls(socket, timeout_s=timeout_s)
            try:
                await client.send({"type": "hello", **(hello or {})})
                await client.wait_for(lambda frame: frame["type"] == "welcome")
                yield client
            finally:
                await client.close()

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    async def send(self, frame: Frame) -> None:
        """Send a frame unchanged."""
        await self.connection.send(json.dumps(frame))

    async def request(self, type: str, **fields: Any) -> Frame:
        """Send a frame and return its reply: `ack`, `error`, or another frame with the same id."""
        id = str(fields.pop("id", None) or next(self._ids))
        await self.send({"type": type, "id": id, **fields})
        return await self.wait_for(lambda frame: frame.get("reply_to") == id)

    async def create(self, model: str | None = None, *, detail: str = "full", **fields: Any) -> str:
        """Create a conversation, subscribe to it, and return its id."""
        if model is not None:
            fields["model"] = model
        ack = await self.request("conversation.create", detail=detail, **fields)
        assert ack["type"] == "ack", ack
        return str(ack["conversation_id"])

    async def chat(self, conversation_id: str, content: str, **fields: Any) -> str:
        """Send a message; returns the run's id."""
        ack = await self.request("chat.send", conversation_id=conversation_id, content=content, **fields)
        assert ack["type"] == "ack", ack
        return str(ack["run_id"])

    async def run(self, conversation_id: str, content: str, **fields: Any) -> Frame:
        """Send a message and wait for the end of its run; returns the `data` of `run.finished`."""
        return await self.finished(await self.chat(conversation_id, content, **fields))

    async def finished(self, run_id: str) -> Frame:
        """Wait for the end of a run; returns the `data` of `run.finished`."""
        frame = await self.event("run.finished", run_id=run_id)
        return dict(frame["data"])

    async def approve(self, run_id: str, verdict: str = "approve", **fields: Any) -> Frame:
        """Decide the open approval request of a run, or its next one; return the reply."""
        asked = await self.approval_request(run_id)
        return await self.request("approval.reply", approval_id=asked["approval_id"], all=verdict, **fields)

    async def decide(self, approval_id: str, verdict: str = "approve") -> Frame:
        """Decide an approval request as clients do; return the `ack` or a final error.

        A request whose refusal is retryable is repeated with its id, so that a decision counts once.
        """
        request = {"approval_id": approval_id, "all": verdict, "id": next(self._ids)}
        async with deadline(f"every decision on {approval_id} was refused as retryable", self.timeout_s):
            while True:
                earlier = len(self.frames)
                await self.send({"type": "approval.reply", **request})
                reply = await self.wait_for(
                    lambda frame: frame.get("reply_to") == request["id"], after=earlier
                )
                if reply["type"] != "error" or not reply["retryable"]:
                    return reply
                await scripted_delay(reply.get("retry_after_s") or _RETRY_AFTER_S)

    async def approval_request(self, run_id: str) -> Frame:
        """Wait for an open approval request of a run; return the `data` of `approval.requested`."""

        def is_open(frame: Frame) -> bool:
            if frame["type"] != "approval.requested" or frame["run_id"] != run_id:
                return False
            return not any(
                other["type"] == "approval.resolved"
                and other["data"]["approval_id"] == frame["data"]["approval_id"]
                for other in self.frames
            )

        return dict((await self.wait_for(is_open))["data"])

    async def resolved(self, approval_id: str) -> Frame:
        """Wait until an approval request is resolved; return the `data` of `approval.resolved`."""
        frame = await self.wait_for(
            lambda frame: frame["type"] == "approval.resolved" and frame["data"]["approval_id"] == approval_id
        )
        return dict(frame["data"])

    async def event(self, type: str, **fields: Any) -> Frame:
        """Wait for an event of this type with these field values."""
        return await self.wait_for(
            lambda frame: (
                frame["type"] == type
                and "reply_to" not in frame
                and all(frame.get(name) == value for name, value in fields.items())
            )
        )

    def events(self, conversation_id: str, *types: str) -> list[Frame]:
        """Return the durable events of a conversation so far, once each, in order; of `types` if given."""
        found = {
            f["seq"]: f
            for f in self.frames
            if f.get("conversation_id") == conversation_id and "seq" in f and "prev_seq" in f
        }
        return [found[seq] for seq in sorted(found) if not types or found[seq]["type"] in types]

    async def wait_for(self, wanted: Callable[[Frame], bool], *, after: int = 0) -> Frame:
        """Wait for a frame; frames that were received before count too, except the first `after`.

        Raises:
            AssertionError: No such frame arrived in time; the message lists the received frames.
        """
        try:
            async with asyncio.timeout(self.timeout_s), self._arrived:
                while True:
                    for frame in self.frames[after:]:
                        if wanted(frame):
                            return frame
                    await self._arrived.wait()
        except TimeoutError:
            last = [json.dumps(frame)[:300] for frame in self.frames[-12:]]
            raise AssertionError(
                f"not within {self.timeout_s:g} s; the last frames:\n" + "\n".join(last)
            ) from None

    async def _read(self) -> None:
        async for data in self.connection:
            async with self._arrived:
                self.frames.append(json.loads(data))
                self._arrived.notify_all()
