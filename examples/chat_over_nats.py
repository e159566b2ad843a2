"""Chats over NATS, as a service without HTTP does, and approves what is asked about its own run.

The gateway must know your tenant's account (`docs/`, section NATS). Then:

    NATS_URL=nats://127.0.0.1:4222 NATS_SEED_FILE=tenant-acme.nk \\
        python examples/chat_over_nats.py acme "run `ls`"
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import aclosing
from pathlib import Path

from banksman.sdk import Client, connect

URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
SEED_FILE = os.environ.get("NATS_SEED_FILE")


async def main(tenant: str, text: str) -> int:
    async with connect(URL, tenant, nkey_seed_file=Path(SEED_FILE) if SEED_FILE else None) as client:
        return await chat(client, text)


async def chat(client: Client, text: str) -> int:
    conversation_id = await client.create_conversation(title=text[:60])
    run = await client.send(conversation_id, text)
    async with aclosing(client.follow(conversation_id)) as events:
        async for event in events:
            match event.type:
                case "tool_call.requested":
                    print(f"… {event.data['name']} {event.data['arguments']}")
                case "approval.requested":
                    reply = await client.reply(str(event.data["approval_id"]), all="approve")
                    print(f"… {reply.outcome}")
                case "run.finished" if event.run_id == run.run_id:
                    print(event.data["content"])
                    return 0 if event.data["status"] == "completed" else 1
    return 1


if __name__ == "__main__":
    tenant, *words = sys.argv[1:] or ["local"]
    sys.exit(asyncio.run(main(tenant, " ".join(words) or "Hello! What can you do?")))
