"""Builds what reads and writes the files of workspaces."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.deployment.users import GATEWAY_FILES, inbox_prefix
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.files.files import ConversationFiles
from banksman.gateway.files.operations import operations
from banksman.gateway.files.slice_operations import operations as slice_operations
from banksman.gateway.runs.runs import Runs
from banksman.runs.runners.placement import Placements


async def build(base: Foundation) -> None:
    """Build the files, which runners hold."""
    services, outputs = base.services, await _outputs(base)
    services.add(ConversationFiles(services[Placements], outputs, services[Conversations], services[Runs]))


async def _outputs(base: Foundation) -> Bus:
    """Return the connection to the account of the runners, where outputs are stored."""
    settings = base.settings.gateway.outputs
    if settings is None:
        return base.bus
    connection = await Bus.connect(settings, name=GATEWAY_FILES, inbox_prefix=inbox_prefix(GATEWAY_FILES))
    return await base.stack.enter_async_context(connection)


FEATURE = Feature((*operations, *slice_operations), build)
