"""Assistants: stored per tenant in KV `assistants`, checked when they are written."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket, Entry
from banksman.bus.names import ASSISTANTS
from banksman.contracts.assistant_requests import AssistantBody, AssistantUpdate, NewAssistant
from banksman.contracts.assistants import Assistant, ToolSettings
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.ids import check_token, digest, new_id
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.idempotency import RequestStore, once
from banksman.gateway.service.run_settings import model_name
from banksman.gateway.service.system_prompts import SystemPrompts
from banksman.prompting.builtin import DEFAULT_PROMPT

DEFAULT_ID = "default"


class AssistantStore:
    """KV `assistants`, keys `{tenant}.{id}`."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, ASSISTANTS, Assistant)

    async def get(self, tenant: str, assistant_id: str) -> Assistant:
        """Return an assistant. The first request for `default` creates it.

        Raises:
            NotFound: No such assistant.
        """
        entry = await self._bucket.get(f"{tenant}.{assistant_id}")
        if entry is not None:
            return _with_revision(entry)
        if assistant_id != DEFAULT_ID:
            raise NotFound("assistant", assistant_id)
        await self._bucket.create(f"{tenant}.{DEFAULT_ID}", default_assistant())
        return await self.get(tenant, DEFAULT_ID)

    async def list(self, tenant: str) -> list[Assistant]:
        """Return all assistants of a tenant, sorted by id."""
        await self.get(tenant, DEFAULT_ID)
        found = [_with_revision(entry) async for entry in self._bucket.entries(tenant)]
        return sorted(found, key=lambda assistant: assistant.id)

    async def create(self, tenant: str, assistant: Assistant) -> Assistant:
        """Store a new assistant and return it with its revision.

        Raises:
            Conflict: The id is taken.
        """
        revision = await self._bucket.create(f"{tenant}.{assistant.id}", assistant)
        if revision is None:
            raise Conflict(f"an assistant with id {assistant.id!r} exists")
        return assistant.model_copy(update={"revision": revision})

    async def replace(self, tenant: str, assistant: Assistant, revision: int | None = None) -> Assistant:
        """Replace an assistant and return it with its new revision; an equal one keeps its revision.

        Args:
            tenant: The owner.
            assistant: The new content.
            revision: The revision to replace; None replaces any.

        Raises:
            NotFound: No such assistant.
            Conflict: The stored assistant has another revision.
        """
        while True:
            stored = await self.get(tenant, assistant.id)
            if equal_content(stored, assistant):
                return stored
            if revision is not None and stored.revision != revision:
                found = f"assistant {assistant.id!r} is at revision {stored.revision}, not {revision}"
                raise Conflict(f"{found}: read it again")
            # Compare-and-set: a concurrent write makes this one start over with what is stored then.
            written = await self._bucket.update(f"{tenant}.{assistant.id}", assistant, stored.revision)
            if written is not None:
                return assistant.model_copy(update={"revision": written})

    async def delete(self, tenant: str, assistant_id: str) -> None:
        """Delete an assistant. A deleted `default` is created again when it is next used.

        Raises:
            NotFound: No such assistant.
        """
        if await self._bucket.get(f"{tenant}.{assistant_id}") is None:
            raise NotFound("assistant", assistant_id)
        await self._bucket.delete(f"{tenant}.{assistant_id}")


class Assistants:
    """The assistants of all tenants, as clients read and change them.

    Every method raises `Forbidden` if the caller's key does not open the context endpoints.
    """

    def __init__(self, store: AssistantStore, prompts: SystemPrompts, requests: RequestStore) -> None:
        self._store = store
        self._prompts = prompts
        self._requests = requests

    async def list(self, caller: Caller) -> tuple[Assistant, ...]:
        """Return all assistants of a tenant, sorted by id, without the contents of their files."""
        caller.check("context")
        return tuple(_without_file_contents(one) for one in await self._store.list(caller.tenant))

    async def get(self, caller: Caller, assistant_id: str) -> Assistant:
        """Return an assistant.

        Raises:
            NotFound: No such assistant.
        """
        caller.check("context")
        return await self._store.get(caller.tenant, check_token(assistant_id, "assistant_id"))

    async def create(self, caller: Caller, given: NewAssistant, request_id: str) -> Assistant:
        """Store a new assistant. A repeated request returns the assistant that the first one created.

        Raises:
            BadInput, NotFound: A model or a system prompt that it names does not exist.
            Conflict: The id is taken, or the request id was used with another body.
        """
        await self._check(caller, given)
        key = digest(f"{caller.user}\nassistant\n{request_id}".encode())
        body, meaning = given.model_dump_json(), given.model_dump_json(exclude_defaults=True)
        mine = {"id": given.id or new_id("as"), "request": new_id("q")}
        ids = await once(self._requests, caller.tenant, key, body.encode(), mine, meaning=meaning.encode())
        try:
            return await self._store.create(caller.tenant, given.assistant(ids["id"]))
        except Conflict:
            # The id is taken: by another request, or by an earlier attempt of this one, which succeeded.
            if ids["request"] == mine["request"]:
                raise
            return await self._store.get(caller.tenant, ids["id"])

    async def update(self, caller: Caller, assistant_id: str, given: AssistantUpdate) -> Assistant:
        """Replace an assistant. A repeated request changes nothing.

        Raises:
            BadInput, NotFound: The assistant, or a model or system prompt that it names, does not exist.
            Conflict: The stored assistant has another revision than the one named.
        """
        await self._check(caller, given)
        assistant = given.assistant(check_token(assistant_id, "assistant_id"))
        return await self._store.replace(caller.tenant, assistant, given.revision)

    async def delete(self, caller: Caller, assistant_id: str) -> None:
        """Delete an assistant.

        Raises:
            NotFound: No such assistant.
        """
        caller.check("context")
        await self._store.delete(caller.tenant, check_token(assistant_id, "assistant_id"))

    async def _check(self, caller: Caller, given: AssistantBody) -> None:
        caller.check("context")
        if given.system_prompt_id is not None:
            await self._prompts.get(caller.tenant, given.system_prompt_id)
        for name in (given.model, *given.fallback_models):
            if name is not None:
                model_name(name)


def equal_content(one: Assistant, other: Assistant) -> bool:
    """Return whether two assistants are equal apart from their revisions."""
    return one.model_copy(update={"revision": other.revision}) == other


def default_assistant() -> Assistant:
    """Return the assistant that each tenant begins with: tools on, the built-in prompt."""
    return Assistant(
        id=DEFAULT_ID, name="Default", system_prompt=DEFAULT_PROMPT, tools=ToolSettings(enabled=True)
    )


def _with_revision(entry: Entry[Assistant]) -> Assistant:
    return entry.value.model_copy(update={"revision": entry.revision})


def _without_file_contents(assistant: Assistant) -> Assistant:
    # A list with the contents of all files would exceed the size of a message over NATS.
    files = tuple(file.model_copy(update={"content": None}) for file in assistant.files)
    return assistant.model_copy(update={"files": files})
