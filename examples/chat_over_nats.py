"""Chat over NATS without HTTP, and approve all calls of the run.

Run it in the directory of `banksman up`:

    .venv/bin/python examples/chat_over_nats.py local 'run `ls`'

Elsewhere set NATS_URL and NATS_SEED_FILE to the server and the seed of your tenant's user.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

from banksman.sdk import BanksmanError, Client, connect
from banksman.sdk.local import nats_settings


async def main(tenant: str, text: str) -> int:
    nats = nats_settings()
    async with connect(nats.url, tenant, nkey_seed_file=nats.nkey_seed_file) as client:
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
    try:
        sys.exit(asyncio.run(main(tenant, " ".join(words) or "Hello! What can you do?")))
    except BanksmanError as error:
        sys.exit(str(error))
