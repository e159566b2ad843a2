"""Chat over the gateway's websocket, and decide approval requests on the terminal.

Run it against `banksman up`:

    .venv/bin/python examples/chat_over_websocket.py 'run `ls`'

Set `BANKSMAN_GATEWAY_URL` to use a gateway other than http://127.0.0.1:8080, and `BANKSMAN_TOKEN` to your
token.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import termios
from typing import Any
from uuid import uuid4

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

URL = os.environ.get("BANKSMAN_GATEWAY_URL", "http://127.0.0.1:8080")
TOKEN = os.environ.get("BANKSMAN_TOKEN")


async def main(text: str) -> int:
    address = f"ws{URL.rstrip('/').removeprefix('http')}/ws"
    async with connect(address, subprotocols=[Subprotocol("banksman.v1")], proxy=None) as socket:
        await request(socket, "hello", **({"token": TOKEN} if TOKEN else {}))
        conversation = await request(socket, "conversation.create", title=text[:60], detail="steps")
        await send(socket, "chat.send", conversation_id=conversation["conversation_id"], content=text)
        async for message in socket:
            match json.loads(message):
                case {"type": "tool_call.requested", "data": call}:
                    print(f"… {call['name']} {json.dumps(call['arguments'])}")
                case {"type": "approval.requested", "data": approval}:
                    verdict = await asyncio.to_thread(decide)
                    await send(
                        socket,
                        "approval.reply",
                        approval_id=approval["approval_id"],
                        all=verdict,
                        # The gateway refuses the decision if the request contains other calls.
                        digests=[item["digest"] for item in approval["items"]],
                    )
                case {"type": "run.finished", "data": outcome}:
                    print(outcome["content"])
                    return 0 if outcome["status"] == "completed" else 1
                case {"type": "error", "message": problem}:
                    sys.exit(problem)
    return 1


def decide() -> str:
    if sys.stdin.isatty():
        # Discards keys pressed before the prompt was shown, so that they decide nothing.
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    try:
        return "approve" if input("approve? [y/N] ").strip().lower() == "y" else "reject"
    except EOFError:  # Standard input has ended, so no decision can follow.
        print("rejected: no input")
        return "reject"


async def send(socket: ClientConnection, kind: str, **fields: Any) -> str:
    # The gateway takes a request with the id of an earlier one for its repeat, for 24 hours.
    request_id = str(uuid4())
    await socket.send(json.dumps({"type": kind, "id": request_id, **fields}))
    return request_id


async def request(socket: ClientConnection, kind: str, **fields: Any) -> dict[str, Any]:
    request_id = await send(socket, kind, **fields)
    while (frame := json.loads(await socket.recv())).get("reply_to") != request_id:
        continue
    return frame if frame["type"] != "error" else sys.exit(frame["message"])


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(" ".join(sys.argv[1:]) or "Hello! What can you do?")))
    except OSError as error:
        sys.exit(f"no gateway at {URL} ({error}); set BANKSMAN_GATEWAY_URL to its address")
