"""Assistants, as clients read and change them."""

from __future__ import annotations

from banksman.contracts.assistant_requests import (
    AssistantBody,
    AssistantChanges,
    AssistantRevisions,
    AssistantUpdate,
    NewAssistant,
)
from banksman.contracts.assistants import Assistant
from banksman.contracts.errors import Conflict
from banksman.contracts.ids import check_token, digest, new_id
from banksman.contracts.registry import SystemPrompt
from banksman.gateway.assistants.model_catalog import model_name
from banksman.gateway.assistants.revisions import AssistantHistories, changes, found, listed
from banksman.gateway.assistants.tenant_store import TenantStore
from banksman.gateway.operation.caller import Caller
from banksman.gateway.runs.idempotency import StoredRequests


class Assistants:
    """The assistants of all tenants, as clients read and change them."""

    def __init__(
        self,
        store: TenantStore[Assistant],
        prompts: TenantStore[SystemPrompt],
        requests: StoredRequests,
        histories: AssistantHistories,
    ) -> None:
        self._store = store
        self._prompts = prompts
        self._requests = requests
        self._histories = histories

    async def list(self, caller: Caller) -> tuple[Assistant, ...]:
        """Return all assistants of a tenant, sorted by id, without the contents of their files."""
        return tuple(_without_file_contents(one) for one in await self._store.list(caller.tenant))

    async def get(self, caller: Caller, assistant_id: str) -> Assistant:
        """Return an assistant.

        Raises:
            NotFound: No such assistant.
        """
        return await self._store.get(caller.tenant, check_token(assistant_id, "assistant_id"))

    async def create(self, caller: Caller, given: NewAssistant, request_id: str) -> Assistant:
        """Store a new assistant. A repeated request returns the assistant that the first one created.

        Raises:
            BadInput, NotFound: A model or a system prompt that it names does not exist.
            Conflict: The id is taken, or the request id was used with another body.
        """
        await self._check_names(caller, given)
        key = digest(f"{caller.user}\nassistant\n{request_id}".encode())
        mine = {"id": given.id or new_id("as"), "request": new_id("q")}
        ids = await self._requests.once(caller.tenant, key, given, mine)
        try:
            created = await self._store.create(caller.tenant, given.assistant(ids["id"]))
        except Conflict:
            # Another request has taken the id, or an earlier attempt of this request has stored the
            # assistant.
            if ids["request"] == mine["request"]:
                raise
            return await self._store.get(caller.tenant, ids["id"])
        await self._histories.add(caller.tenant, None, created, caller.user)
        return created

    async def update(self, caller: Caller, assistant_id: str, given: AssistantUpdate) -> Assistant:
        """Replace an assistant. A repeated request changes nothing.

        Raises:
            BadInput, NotFound: The assistant, or a model or system prompt that it names, does not exist.
            Conflict: The stored assistant has another revision than the one named.
        """
        await self._check_names(caller, given)
        assistant = given.assistant(check_token(assistant_id, "assistant_id"))
        return await self._replace(caller, assistant, given.revision)

    async def delete(self, caller: Caller, assistant_id: str) -> None:
        """Delete an assistant.

        Raises:
            NotFound: No such assistant.
        """
        await self._store.delete(caller.tenant, check_token(assistant_id, "assistant_id"))
        await self._histories.delete(caller.tenant, assistant_id)

    async def revisions(self, caller: Caller, assistant_id: str) -> AssistantRevisions:
        """Return the stored revisions of an assistant, newest first: at most 50.

        Raises:
            NotFound: No such assistant.
        """
        current = await self.get(caller, assistant_id)
        return listed(await self._histories.of(caller.tenant, current), current)

    async def revision(self, caller: Caller, assistant_id: str, revision: int) -> Assistant:
        """Return a revision of an assistant.

        Raises:
            NotFound: No such assistant or revision.
        """
        current = await self.get(caller, assistant_id)
        return found(await self._histories.of(caller.tenant, current), revision)

    async def changes(
        self, caller: Caller, assistant_id: str, revision: int, since: int | None
    ) -> AssistantChanges:
        """Return how a revision differs from another one; None stands for the one before it.

        Raises:
            NotFound: No such assistant or revision.
        """
        history = await self._histories.of(caller.tenant, await self.get(caller, assistant_id))
        after = found(history, revision)
        return changes(found(history, history.before(revision) if since is None else since), after)

    async def restore(self, caller: Caller, assistant_id: str, revision: int) -> Assistant:
        """Store the content of a revision again, as a new one. A repeated request changes nothing.

        Raises:
            BadInput, NotFound: No such assistant or revision, or a model or prompt that it names is missing.
        """
        wanted = await self.revision(caller, assistant_id, revision)
        await self._check_names(caller, wanted)
        return await self._replace(caller, wanted, None)

    async def _replace(self, caller: Caller, assistant: Assistant, revision: int | None) -> Assistant:
        before = await self._store.get(caller.tenant, assistant.id)
        stored = await self._store.replace(caller.tenant, assistant, revision)
        await self._histories.add(caller.tenant, before, stored, caller.user)
        return stored

    async def _check_names(self, caller: Caller, given: AssistantBody | Assistant) -> None:
        if given.system_prompt_id is not None:
            await self._prompts.get(caller.tenant, given.system_prompt_id)
        for name in (given.model, *given.fallback_models):
            if name is not None:
                model_name(name)


def _without_file_contents(assistant: Assistant) -> Assistant:
    # A list with the contents of all files would exceed the size of a message over NATS.
    files = tuple(file.model_copy(update={"content": None}) for file in assistant.files)
    return assistant.model_copy(update={"files": files})
