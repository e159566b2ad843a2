"""The Python SDK: start and follow runs, decide approval requests, serve tools and workflows.

    async with connect("http://127.0.0.1:8080", token=key) as client:
        conversation_id = await client.create_conversation(title="Nightly report")
        run = await client.send(conversation_id, "Summarise yesterday's builds")
        print((await client.outcome(run)).content)

`tool` turns typed functions into tools, and a `ToolServer` offers them to models (`banksman.sdk.tools`).
`workflow` turns them into workflows, which users start by name and a `WorkflowServer` serves
(`banksman.sdk.workflows`).

A client uses a gateway's websocket and HTTP API. `connect("nats://…", "acme", nkey_seed_file=seed)` uses the
gateways' NATS API and the subjects that a tenant's account may subscribe to; it has no access to JetStream.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from banksman.bus.errors import RemoteError
from banksman.contracts.errors import BanksmanError
from banksman.sdk.client import Client, StartedRun, connect
from banksman.sdk.events import EventFrame, LiveFrame, LogRestored
from banksman.sdk.parameters import ToolContext
from banksman.sdk.tools import Tool, Toolbox, ToolFailed, tool
from banksman.sdk.workflows import Workflow, WorkflowContext, WorkflowFailed, hint, workflow

if TYPE_CHECKING:
    from banksman.sdk.servers.tools import ToolServer
    from banksman.sdk.servers.workflows import WorkflowServer

__all__ = [
    "BanksmanError",
    "Client",
    "EventFrame",
    "LiveFrame",
    "LogRestored",
    "RemoteError",
    "StartedRun",
    "Tool",
    "ToolContext",
    "ToolFailed",
    "ToolServer",
    "Toolbox",
    "Workflow",
    "WorkflowContext",
    "WorkflowFailed",
    "WorkflowServer",
    "connect",
    "hint",
    "tool",
    "workflow",
]


_SERVERS = {
    "ToolServer": "banksman.sdk.servers.tools",
    "WorkflowServer": "banksman.sdk.servers.workflows",
}


def __getattr__(name: str) -> object:
    """Import a server when it is first used: clients need none, and its libraries cost 0.3 s of CPU."""
    if name in _SERVERS:
        return getattr(import_module(_SERVERS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
