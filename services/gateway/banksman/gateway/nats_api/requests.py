"""The door for services without HTTP: the websocket's frames as requests over NATS."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, cast

from pydantic import TypeAdapter

from banksman.bus.connection import Bus
from banksman.bus.control import ControlPlane
from banksman.bus.dead import DOOR, bury
from banksman.bus.envelope import error_envelope
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput, BanksmanError
from banksman.contracts.frames import (
    Ack,
    ApprovalDecision,
    ChatSend,
    ConversationCreate,
    ErrorFrame,
    RunCancel,
    WorkflowStart,
)
from banksman.contracts.ids import conversation_of, new_id
from banksman.contracts.nats_api import REQUEST_ID, SCHEMA_VERSION, Replay
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import WIRE_VERSION, JsonObject, parse, parse_as
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.client_requests import Request, Service
from banksman.gateway.service.event_frames import encoded_event

logger = logging.getLogger(__name__)

QUEUE = "gateways"
USER = "nats"
"""Who clients of this door are in the log."""
CONCURRENCY = 64
REPLAY_PACE = 500
"""Events of a replay between two round trips, so that neither side is flooded."""

OBJECT: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of request."""

    words: tuple[str, ...]
    """Tokens of the subject behind the tenant."""
    frame: type[Request]
    names: str | None
    """The field that the subject's last token gives; None when there is no such token."""

    @property
    def subject(self) -> str:
        """What gateways subscribe."""
        return subjects.api(ANY, *self.words, *((ANY,) if self.names else ()))


ACTIONS = (
    Action(("conversation", "create"), ConversationCreate, None),
    Action(("chat", "send"), ChatSend, "conversation_id"),
    Action(("run", "cancel"), RunCancel, "conversation_id"),
    Action(("approval", "reply"), ApprovalDecision, "approval_id"),
    Action(("workflow", "start"), WorkflowStart, "workflow"),
)


class Api:
    """Serves `api.{t}.>`, each request by one of the gateways."""

    def __init__(self, bus: Bus, service: Service) -> None:
        self._bus = bus
        self._service = service

    def serve_on(self, control: ControlPlane) -> None:
        """Serve every action."""
        for action in ACTIONS:
            self._serve(control, action)
        control.serve(
            subjects.api(ANY, "replay", ANY),
            self._replay,
            queue=QUEUE,
            concurrency=CONCURRENCY,
            request=Replay,
            title="replay",
            description="Stored events, each as a message to the reply subject; an empty one ends them.",
        )

    def _serve(self, control: ControlPlane, action: Action) -> None:
        async def respond(message: Message) -> bytes | None:
            return await self._respond(action, message)

        control.serve(
            action.subject,
            respond,
            queue=QUEUE,
            concurrency=CONCURRENCY,
            request=action.frame,
            reply=Ack | ErrorFrame,
            title=" ".join(action.words),
            description=(action.frame.__doc__ or "").partition("\n")[0],
        )

    async def _respond(self, action: Action, message: Message) -> bytes | None:
        try:
            caller = caller_of(message)
            ack = await self._service.answer(caller, request_of(action, message))
            return ack.model_dump_json(exclude_none=True).encode()
        except BanksmanError as error:
            if message.reply:
                return error_envelope(error)
            await self._complain(message, error)
            return None

    async def _complain(self, message: Message, error: BanksmanError) -> None:
        """Tell of a request that nobody waits for."""
        await self._bus.publish(subjects.api(_tenant(message), "error"), error_envelope(error))
        await bury(
            self._bus,
            subject=message.subject,
            stream=DOOR,
            stream_seq=time.time_ns(),
            reason=str(error),
            payload=message.data,
            headers=message.headers,
        )

    async def _replay(self, message: Message) -> bytes | None:
        if not message.reply:
            return None
        tenant, conversation_id = _tenant(message), message.subject.rpartition(".")[2]
        after_seq = parse(Replay, message.data or b"{}").after_seq
        await self._service.conversations.get(tenant, conversation_id)
        page = await self._service.views.events(tenant, conversation_id, after_seq=after_seq)
        last = after_seq
        for sent, event in enumerate(page.events, 1):
            frame = encoded_event(event, conversation_id, page.log_epoch, last)
            await self._bus.publish(message.reply, frame.encode())
            last = event.seq
            if sent % REPLAY_PACE == 0:
                await self._bus.ready()
        await self._bus.publish(message.reply, b"")
        return None


def caller_of(message: Message) -> Caller:
    """Who asks. The broker tells us their tenant, by the subject, and no more."""
    return Caller(_tenant(message), USER)


def request_of(action: Action, message: Message) -> Request:
    """The frame that a request stands for: its body, with what subject and headers say.

    Raises:
        BadInput: a field is wrong, or body and subject disagree.
    """
    check_version(message)
    body = cast(dict[str, Any], parse_as(OBJECT, message.data or b"{}"))
    kind = ".".join(action.words)
    _agree(body, "type", kind)
    body["id"] = message.headers.get(REQUEST_ID) or body.get("id") or new_id("nats-")
    if action.names is not None:
        token = message.subject.rpartition(".")[2]
        _agree(body, action.names, token)
    if action.frame is RunCancel:
        in_subject = body.pop("conversation_id")
        run_id = body.get("run_id")
        if isinstance(run_id, str) and conversation_of(run_id) != in_subject:
            raise BadInput("run_id", run_id, f"a run of conversation {in_subject}, which the subject names")
    return parse(action.frame, body)


def _agree(body: dict[str, Any], field: str, value: str) -> None:
    if body.setdefault(field, value) != value:
        raise BadInput(field, body[field], f"{value!r}, as in the subject, or nothing")


def check_version(message: Message) -> None:
    """Refuse another version of the frames than ours.

    Raises:
        BadInput: it is another one.
    """
    version = message.headers.get(SCHEMA_VERSION, str(WIRE_VERSION))
    if version != str(WIRE_VERSION):
        raise BadInput(SCHEMA_VERSION, version, f"version {WIRE_VERSION}")


def _tenant(message: Message) -> str:
    return message.subject.split(".")[1]
