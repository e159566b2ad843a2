"""What clients may do with assistants, by whichever door they come."""

from __future__ import annotations

from banksman.contracts.assistant_requests import AssistantBody, AssistantUpdate, NewAssistant
from banksman.contracts.assistants import Assistant
from banksman.contracts.errors import Conflict
from banksman.contracts.ids import check_token, digest, new_id
from banksman.gateway.service.assistants import Assistants, Prompts
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.door import once
from banksman.gateway.service.run_settings import model_name
from banksman.gateway.service.stores import Requests


class AssistantDesk:
    """Creates, reads, updates and deletes assistants; every method raises what is wrong with the request."""

    def __init__(self, assistants: Assistants, prompts: Prompts, requests: Requests) -> None:
        self._assistants = assistants
        self._prompts = prompts
        self._requests = requests

    async def list(self, caller: Caller) -> tuple[Assistant, ...]:
        """All of a tenant, by id, without the contents of their files."""
        caller.check("context")
        return tuple(_brief(one) for one in await self._assistants.list(caller.tenant))

    async def get(self, caller: Caller, assistant_id: str) -> Assistant:
        """One of them.

        Raises:
            NotFound: there is none of that id.
        """
        caller.check("context")
        return await self._assistants.get(caller.tenant, check_token(assistant_id, "assistant_id"))

    async def create(self, caller: Caller, given: NewAssistant, request_id: str) -> Assistant:
        """Store a new one. Repeated under the same request id it is the one of before.

        Raises:
            BadInput, NotFound: a model or a prompt that it names does not exist.
            Conflict: the id is taken, or the request id was used for another.
        """
        await self._check(caller, given)
        key = digest(f"{caller.user}\nassistant\n{request_id}".encode())
        body, meaning = given.model_dump_json(), given.model_dump_json(exclude_defaults=True)
        mine = {"id": given.id or new_id("as"), "request": new_id("q")}
        ids = await once(self._requests, caller.tenant, key, body.encode(), mine, meaning=meaning.encode())
        try:
            return await self._assistants.create(caller.tenant, given.assistant(ids["id"]))
        except Conflict:
            if ids["request"] == mine["request"]:
                raise
            return await self._assistants.get(caller.tenant, ids["id"])

    async def update(self, caller: Caller, assistant_id: str, given: AssistantUpdate) -> Assistant:
        """Store another in its place; the same once more changes nothing.

        Raises:
            BadInput, NotFound: it, or a model or a prompt that it names, does not exist.
            Conflict: it is of another revision than the one named.
        """
        await self._check(caller, given)
        assistant = given.assistant(check_token(assistant_id, "assistant_id"))
        return await self._assistants.replace(caller.tenant, assistant, given.revision)

    async def delete(self, caller: Caller, assistant_id: str) -> None:
        """Remove one.

        Raises:
            NotFound: there is none of that id.
        """
        caller.check("context")
        await self._assistants.delete(caller.tenant, check_token(assistant_id, "assistant_id"))

    async def _check(self, caller: Caller, given: AssistantBody) -> None:
        caller.check("context")
        if given.system_prompt_id is not None:
            await self._prompts.get(caller.tenant, given.system_prompt_id)
        for name in (given.model, *given.fallback_models):
            if name is not None:
                model_name(name)


def _brief(assistant: Assistant) -> Assistant:
    """As in a list, which would be too large with the contents of all files."""
    files = tuple(file.model_copy(update={"content": None}) for file in assistant.files)
    return assistant.model_copy(update={"files": files})
