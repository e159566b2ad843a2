"""Chat over NATS with nats-py alone, without Banksman's SDK, and approve all calls of the run.

Run it in the directory of `banksman up`:

    pip install 'nats-py[nkeys]'
    python examples/chat_over_plain_nats.py local 'run `ls`'

Elsewhere set NATS_URL and NATS_SEED_FILE to the server and the seed of your tenant's user. BANKSMAN_MODEL
selects a model (`provider:model`). docs/clients.md describes the requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error, NoServersError, TimeoutError

FOLLOW_S = 60
SILENCE_S = 5
PAUSE_S = 1
TIMEOUT_S = 10


class Refused(Exception):
    """The gateway replied with an error."""


async def main(tenant: str, content: str) -> int:
    client = await nats.connect(**connection(), allow_reconnect=True, max_reconnect_attempts=-1)
    try:
        return await Chat(client, tenant).run(content)
    finally:
        await client.close()


class Chat:
    """Requests of one tenant."""

    def __init__(self, client: Client, tenant: str) -> None:
        self._client = client
        self._api = f"api.{tenant}"

    async def run(self, content: str) -> int:
        """Send a message in a new conversation, and follow its run until it ends."""
        options = {"title": content[:60], "model": os.environ.get("BANKSMAN_MODEL")}
        conversation = (await self._request("conversation.create", options))["conversation_id"]
        run = (await self._request(f"chat.send.{conversation}", {"content": content}))["run_id"]
        async with aclosing(self._events(conversation)) as events:
            async for event in events:
                match event["type"], event["data"]:
                    case "tool_call.requested", call:
                        print(f"… {call['name']} {json.dumps(call['arguments'])}")
                    case "approval.requested", request:
                        action = f"approval.reply.{request['approval_id']}"
                        reply = await self._request(action, {"all": "approve"})
                        print(f"… {reply['outcome']}")
                    case "run.finished", outcome if event["run_id"] == run:
                        print(outcome["content"])
                        return 0 if outcome["status"] == "completed" else 1
        return 1

    async def _request(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request."""
        head = {"Banksman-Request-Id": str(uuid.uuid4())}
        data = json.dumps(body).encode()
        reply = await self._client.request(f"{self._api}.{action}", data, timeout=TIMEOUT_S, headers=head)
        return checked(json.loads(reply.data))

    async def _events(self, conversation: str) -> AsyncGenerator[dict[str, Any]]:
        """Yield each event of a conversation once, stored events first, without end."""
        last = 0
        while True:
            async with aclosing(self._replay(conversation, last)) as frames:
                async for frame in frames:
                    # Deltas have no number: the event `message.completed` replaces them.
                    if frame.get("seq", 0) > last:
                        last = frame["seq"]
                        yield frame

    async def _replay(self, conversation: str, after: int) -> AsyncGenerator[dict[str, Any]]:
        """Yield the frames of one request, which end with an empty message, or with silence."""
        inbox = self._client.new_inbox()
        frames = await self._client.subscribe(inbox)
        try:
            body = {"after_seq": after, "follow_s": FOLLOW_S, "detail": "steps"}
            data = json.dumps(body).encode()
            await self._client.publish(f"{self._api}.replay.{conversation}", data, reply=inbox)
            while (message := await next_message(frames)) is not None:
                yield checked(json.loads(message))
        finally:
            await frames.unsubscribe()


async def next_message(frames: Any) -> bytes | None:
    """Return the next message; None at the end of the frames, or if no gateway serves the request."""
    try:
        message = await frames.next_msg(timeout=FOLLOW_S + SILENCE_S)
    except TimeoutError:
        return None
    if (message.headers or {}).get("Status") == "503":
        await asyncio.sleep(PAUSE_S)
    return message.data or None


def checked(frame: dict[str, Any]) -> dict[str, Any]:
    """Return a frame unless it is an error."""
    if frame["type"] == "error":
        raise Refused(f"{frame['code']}: {frame['message']}")
    return frame


def connection() -> dict[str, Any]:
    """Return the address and the key file in the environment, or else those of `banksman up`."""
    if url := os.environ.get("NATS_URL"):
        seed = os.environ.get("NATS_SEED_FILE")
        return {"servers": url, **({"nkeys_seed": seed} if seed else {})}
    file = Path(os.environ.get("BANKSMAN_DATA_DIR", ".banksman"), "nats-context.json")
    if not file.exists():
        raise Refused(f"{file} is missing: start `banksman up` in this directory, or set NATS_URL")
    context = json.loads(file.read_text(encoding="utf-8"))
    return {"servers": context["url"], "nkeys_seed": context["nkey"]}


if __name__ == "__main__":
    tenant, *words = sys.argv[1:] or ["local"]
    try:
        sys.exit(asyncio.run(main(tenant, " ".join(words) or "Hello! What can you do?")))
    except (Refused, NoServersError, Error) as error:
        sys.exit(str(error))
