"""The own instructions of a user: what the user wants of every reply, in all conversations."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from banksman.bus.connection import Bus
from banksman.bus.names import INSTRUCTIONS
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.watch import BucketView
from banksman.contracts.ids import digest
from banksman.contracts.wire import Stored
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import CHAT, Caller
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, RequestBody, StrictBody, provided

operations = Operations("assistants", right=CHAT)


class InstructionsBody(RequestBody):
    """The instructions of the caller; an empty text removes them."""

    text: str = Field(max_length=4_000)


class UserInstructions(Stored):
    """KV `instructions`, key `{tenant}.{digest of the user}`."""

    user: str
    text: str = ""


class Instructions:
    """The instructions of all users, in memory: a start of a run reads them without a request."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, INSTRUCTIONS, UserInstructions)
        self.view = BucketView(self._bucket)

    @operations.add("instructions.read", "GET /context/instructions")
    async def read_instructions(self: Service, caller: CallerDep) -> UserInstructions:
        """Read the own instructions of the caller, which follow the system prompt of each run."""
        entry = await self._bucket.get(_key(caller))
        return UserInstructions(user=caller.user) if entry is None else entry.value

    @operations.add("instructions.set", "PUT /context/instructions")
    async def set_instructions(
        self: Service, body: StrictBody[InstructionsBody], caller: CallerDep
    ) -> UserInstructions:
        """Set the own instructions of the caller. They apply to runs that start from now on."""
        stored = UserInstructions(user=caller.user, text=body.text.strip())
        if stored.text:
            await self._bucket.put(_key(caller), stored)
        else:
            await self._bucket.delete(_key(caller))
        return stored

    def of(self, caller: Caller) -> str:
        """Return the instructions of a caller, a moment behind the bucket; empty without any."""
        entry = self.view.get(_key(caller))
        return "" if entry is None else entry.value.text


def _key(caller: Caller) -> str:
    return f"{caller.tenant}.{digest(caller.user.encode())[:32]}"


Service = Annotated[Instructions, provided(Instructions)]


async def build(base: Foundation) -> None:
    instructions = Instructions(base.bus)
    await base.stack.enter_async_context(instructions.view)
    base.services.add(instructions)


FEATURE = Feature(operations, build)
