"""Assistants and system prompts, as a tenant keeps them."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket, Entry
from banksman.bus.names import ASSISTANTS, PROMPTS
from banksman.contracts.assistants import Assistant, ToolSettings
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.registry import SystemPrompt
from banksman.prompting.builtin import DEFAULT_PROMPT

DEFAULT_ID = "default"


class Assistants:
    """KV `assistants`, keys `{tenant}.{id}`."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, ASSISTANTS, Assistant)

    async def get(self, tenant: str, assistant_id: str) -> Assistant:
        """An assistant; `default` is made when it is first asked for.

        Raises:
            NotFound: there is none of that id.
        """
        entry = await self._bucket.get(f"{tenant}.{assistant_id}")
        if entry is not None:
            return _revised(entry)
        if assistant_id != DEFAULT_ID:
            raise NotFound("assistant", assistant_id)
        await self._bucket.create(f"{tenant}.{DEFAULT_ID}", default_assistant())
        return await self.get(tenant, DEFAULT_ID)

    async def list(self, tenant: str) -> list[Assistant]:
        """All of a tenant, by id."""
        await self.get(tenant, DEFAULT_ID)
        found = [_revised(entry) async for entry in self._bucket.entries(tenant)]
        return sorted(found, key=lambda assistant: assistant.id)

    async def create(self, tenant: str, assistant: Assistant) -> Assistant:
        """Store a new one.

        Raises:
            Conflict: the id is taken.
        """
        revision = await self._bucket.create(f"{tenant}.{assistant.id}", assistant)
        if revision is None:
            raise Conflict(f"an assistant with id {assistant.id!r} exists")
        return assistant.model_copy(update={"revision": revision})

    async def replace(self, tenant: str, assistant: Assistant, revision: int | None = None) -> Assistant:
        """Store another in the place of one that exists; one that is the same keeps its revision.

        Args:
            tenant: Whose.
            assistant: The other one.
            revision: Of the one that is to be replaced; None for whichever it is.

        Raises:
            NotFound: there is none of that id.
            Conflict: it is of another revision.
        """
        while True:
            stored = await self.get(tenant, assistant.id)
            if same(stored, assistant):
                return stored
            if revision is not None and stored.revision != revision:
                found = f"assistant {assistant.id!r} is at revision {stored.revision}, not {revision}"
                raise Conflict(f"{found}: read it again")
            written = await self._bucket.update(f"{tenant}.{assistant.id}", assistant, stored.revision)
            if written is not None:
                return assistant.model_copy(update={"revision": written})

    async def delete(self, tenant: str, assistant_id: str) -> None:
        """Remove one; a removed `default` is made anew when it is next used.

        Raises:
            NotFound: there is none of that id.
        """
        if await self._bucket.get(f"{tenant}.{assistant_id}") is None:
            raise NotFound("assistant", assistant_id)
        await self._bucket.delete(f"{tenant}.{assistant_id}")


def same(one: Assistant, other: Assistant) -> bool:
    """Whether two are alike, whatever their revisions."""
    return one.model_copy(update={"revision": other.revision}) == other


def default_assistant() -> Assistant:
    """What each tenant begins with: tools on, the built-in prompt."""
    return Assistant(
        id=DEFAULT_ID, name="Default", system_prompt=DEFAULT_PROMPT, tools=ToolSettings(enabled=True)
    )


def _revised(entry: Entry[Assistant]) -> Assistant:
    return entry.value.model_copy(update={"revision": entry.revision})


def default_prompt() -> SystemPrompt:
    """The built-in prompt, as a tenant may read and change it."""
    return SystemPrompt(id=DEFAULT_ID, name="Default", content=DEFAULT_PROMPT)


class Prompts:
    """KV `prompts`, keys `{tenant}.{id}`."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, PROMPTS, SystemPrompt)

    async def get(self, tenant: str, prompt_id: str) -> SystemPrompt:
        """A prompt; `default`, the built-in one, is stored when it is first asked for.

        Raises:
            NotFound: there is none of that id.
        """
        entry = await self._bucket.get(f"{tenant}.{prompt_id}")
        if entry is None and prompt_id == DEFAULT_ID:
            await self._bucket.create(f"{tenant}.{DEFAULT_ID}", default_prompt())
            return await self.get(tenant, DEFAULT_ID)
        if entry is None:
            raise NotFound("system prompt", prompt_id)
        return entry.value.model_copy(update={"revision": entry.revision})

    async def list(self, tenant: str) -> list[SystemPrompt]:
        """All of a tenant, by id."""
        await self.get(tenant, DEFAULT_ID)
        found = [
            entry.value.model_copy(update={"revision": entry.revision})
            async for entry in self._bucket.entries(tenant)
        ]
        return sorted(found, key=lambda prompt: prompt.id)

    async def create(self, tenant: str, prompt: SystemPrompt) -> SystemPrompt:
        """Store a new one.

        Raises:
            Conflict: the id is taken.
        """
        revision = await self._bucket.create(f"{tenant}.{prompt.id}", prompt)
        if revision is None:
            raise Conflict(f"a system prompt with id {prompt.id!r} exists")
        return prompt.model_copy(update={"revision": revision})

    async def replace(self, tenant: str, prompt: SystemPrompt) -> SystemPrompt:
        """Store another in the place of one that exists.

        Raises:
            NotFound: there is none of that id.
        """
        await self.get(tenant, prompt.id)
        revision = await self._bucket.put(f"{tenant}.{prompt.id}", prompt)
        return prompt.model_copy(update={"revision": revision})

    async def delete(self, tenant: str, prompt_id: str) -> None:
        """Remove one.

        Raises:
            NotFound: there is none of that id.
        """
        await self.get(tenant, prompt_id)
        await self._bucket.delete(f"{tenant}.{prompt_id}")
