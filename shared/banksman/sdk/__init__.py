"""A client for services that use NATS themselves: start runs, follow them, answer approvals.

    async with connect("nats://127.0.0.1:4222", "acme", nkey_seed_file=seed) as client:
        conversation_id = await client.create_conversation(title="Nightly report")
        run = await client.send(conversation_id, "Summarise yesterday's builds")
        print((await client.outcome(run)).content)

All that a client does goes through the gateways' door on NATS and the subjects that a tenant's account may
hear; it has no right in JetStream.
"""

from banksman.bus.envelope import RemoteError
from banksman.sdk.client import Client, StartedRun, connect
from banksman.sdk.events import EventFrame, LogRestored

__all__ = ["Client", "EventFrame", "LogRestored", "RemoteError", "StartedRun", "connect"]
