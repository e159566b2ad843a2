"""System prompts: stored per tenant in KV `prompts`."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket, Entry
from banksman.bus.names import PROMPTS
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.registry import SystemPrompt
from banksman.prompting.builtin import DEFAULT_PROMPT

DEFAULT_ID = "default"


class SystemPrompts:
    """KV `prompts`, keys `{tenant}.{id}`."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, PROMPTS, SystemPrompt)

    async def get(self, tenant: str, prompt_id: str) -> SystemPrompt:
        """Return a prompt. The first request for `default` stores the built-in one.

        Raises:
            NotFound: No such prompt.
        """
        entry = await self._bucket.get(f"{tenant}.{prompt_id}")
        if entry is not None:
            return _with_revision(entry)
        if prompt_id != DEFAULT_ID:
            raise NotFound("system prompt", prompt_id)
        await self._bucket.create(f"{tenant}.{DEFAULT_ID}", default_prompt())
        return await self.get(tenant, DEFAULT_ID)

    async def list(self, tenant: str) -> list[SystemPrompt]:
        """Return all prompts of a tenant, sorted by id."""
        await self.get(tenant, DEFAULT_ID)
        found = [_with_revision(entry) async for entry in self._bucket.entries(tenant)]
        return sorted(found, key=lambda prompt: prompt.id)

    async def create(self, tenant: str, prompt: SystemPrompt) -> SystemPrompt:
        """Store a new prompt and return it with its revision.

        Raises:
            Conflict: The id is taken.
        """
        revision = await self._bucket.create(f"{tenant}.{prompt.id}", prompt)
        if revision is None:
            raise Conflict(f"a system prompt with id {prompt.id!r} exists")
        return prompt.model_copy(update={"revision": revision})

    async def replace(self, tenant: str, prompt: SystemPrompt) -> SystemPrompt:
        """Replace a prompt and return it with its new revision.

        Raises:
            NotFound: No such prompt.
        """
        await self.get(tenant, prompt.id)
        revision = await self._bucket.put(f"{tenant}.{prompt.id}", prompt)
        return prompt.model_copy(update={"revision": revision})

    async def delete(self, tenant: str, prompt_id: str) -> None:
        """Delete a prompt. A deleted `default` is stored again when it is next used.

        Raises:
            NotFound: No such prompt.
        """
        await self.get(tenant, prompt_id)
        await self._bucket.delete(f"{tenant}.{prompt_id}")


def default_prompt() -> SystemPrompt:
    """Return the built-in prompt, as a tenant may read and change it."""
    return SystemPrompt(id=DEFAULT_ID, name="Default", content=DEFAULT_PROMPT)


def _with_revision(entry: Entry[SystemPrompt]) -> SystemPrompt:
    return entry.value.model_copy(update={"revision": entry.revision})
