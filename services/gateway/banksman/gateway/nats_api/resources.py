"""What services without HTTP read and change over NATS beside runs: assistants, and what was consumed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import BaseModel

from banksman.bus.control import ControlPlane
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.assistant_requests import (
    AssistantDeleted,
    AssistantList,
    AssistantUpdate,
    NewAssistant,
    parse_assistant,
)
from banksman.contracts.assistants import Assistant
from banksman.contracts.frames import ErrorFrame
from banksman.contracts.ids import new_id
from banksman.contracts.nats_api import REQUEST_ID
from banksman.contracts.subjects import ANY
from banksman.contracts.usage import UsageReport
from banksman.gateway.nats_api.requests import CONCURRENCY, QUEUE, caller_of, check_version
from banksman.gateway.service.assistant_desk import AssistantDesk
from banksman.gateway.service.usage import UsageReports

Answer = Callable[[Message], Awaitable[BaseModel]]


@dataclass(frozen=True, slots=True)
class Resources:
    """Serves `api.{t}.assistant.…` and `api.{t}.usage`; each request by one of the gateways."""

    assistants: AssistantDesk
    usage: UsageReports

    def serve_on(self, control: ControlPlane) -> None:
        """Serve every action."""
        for words, answer, request, reply in (
            (("assistant", "list"), self._list, None, AssistantList),
            (("assistant", "create"), self._create, NewAssistant, Assistant),
            (("assistant", "read", ANY), self._read, None, Assistant),
            (("assistant", "update", ANY), self._update, AssistantUpdate, Assistant),
            (("assistant", "delete", ANY), self._delete, None, AssistantDeleted),
            (("usage",), self._usage, None, UsageReport),
        ):
            control.serve(
                subjects.api(ANY, *words),
                _responder(answer),
                queue=QUEUE,
                concurrency=CONCURRENCY,
                request=request,
                reply=reply | ErrorFrame,
                title=" ".join(word for word in words if word != ANY),
                description=(answer.__doc__ or "").partition("\n")[0],
            )

    async def _list(self, message: Message) -> AssistantList:
        """All assistants of the tenant."""
        return AssistantList(items=await self.assistants.list(caller_of(message)))

    async def _create(self, message: Message) -> Assistant:
        """A new assistant; repeated under the same request id, the one of before."""
        given = parse_assistant(NewAssistant, message.data or b"{}")
        request_id = message.headers.get(REQUEST_ID) or new_id("nats-")
        return await self.assistants.create(caller_of(message), given, request_id)

    async def _read(self, message: Message) -> Assistant:
        """The assistant that the subject names."""
        return await self.assistants.get(caller_of(message), _named(message))

    async def _update(self, message: Message) -> Assistant:
        """Another in the place of the assistant that the subject names."""
        given = parse_assistant(AssistantUpdate, message.data or b"{}")
        return await self.assistants.update(caller_of(message), _named(message), given)

    async def _delete(self, message: Message) -> AssistantDeleted:
        """The end of the assistant that the subject names."""
        await self.assistants.delete(caller_of(message), _named(message))
        return AssistantDeleted(id=_named(message))

    async def _usage(self, message: Message) -> UsageReport:
        """What the tenant's runs consumed today and this month, and what the operator allows."""
        return await self.usage.of(caller_of(message).tenant)


def _responder(answer: Answer) -> Callable[[Message], Awaitable[bytes | None]]:
    async def respond(message: Message) -> bytes | None:
        check_version(message)
        return (await answer(message)).model_dump_json().encode()

    return respond


def _named(message: Message) -> str:
    return message.subject.rpartition(".")[2]
