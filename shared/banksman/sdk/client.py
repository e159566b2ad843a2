"""The client: conversations, runs, decisions and events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from banksman.bus.connection import Bus, NatsSettings
from banksman.contracts import frames
from banksman.contracts.approvals import ItemDecision, Remember
from banksman.contracts.assistants import ConversationSettings, OnReject, RunOverrides
from banksman.contracts.errors import BadInput, Unavailable
from banksman.contracts.events import RunFinished
from banksman.contracts.ids import check_token, conversation_of, new_id
from banksman.contracts.messages import PERSON, Content, Provenance
from banksman.contracts.validation_errors import bad_input
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.contracts.work import ApprovalRequest
from banksman.sdk.events import EventFrame, LiveFrame
from banksman.sdk.resources import Resources
from banksman.sdk.transports.nats import NatsTransport

P = ParamSpec("P")
F = TypeVar("F", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class StartedRun:
    """An accepted run. It is stored and will end with an outcome."""

    run_id: str
    message_id: str | None = None
    """Id of the user's message; None for a workflow."""

    @property
    def conversation_id(self) -> str:
        """The conversation whose log contains the run."""
        return conversation_of(self.run_id)


class _Accepted(BaseModel):
    run_id: str
    message_id: str


class Client(Resources):
    """Requests of a tenant to the platform, over NATS or over the websocket and HTTP.

    Requests take a `request_id`. A request that is repeated with the same id within 24 hours has no further
    effect and gets the same reply. All raise `BadInput` if a field is invalid, `RemoteError` with the error
    of the gateway, and `Unavailable` if no gateway responds within 30 seconds; `asyncio.timeout` sets a
    shorter time.
    """

    @property
    def tenant(self) -> str:
        """The tenant of the requests."""
        return self._transport.tenant

    async def ready(self, timeout_s: float = 2.0) -> None:
        """Make a round trip, so that the server has received all earlier messages; raise `Unavailable`."""
        await self._transport.ready(timeout_s)

    async def create_conversation(
        self,
        *,
        title: str = "",
        assistant: str = "default",
        model: str | None = None,
        system_prompt_id: str | None = None,
        settings: ConversationSettings | None = None,
        request_id: str | None = None,
    ) -> str:
        """Create a conversation and return its id."""
        frame = _checked(
            frames.ConversationCreate,
            type="conversation.create",
            id=request_id or new_id("q"),
            title=title,
            assistant=assistant,
            model=model,
            system_prompt_id=system_prompt_id,
            settings=settings or ConversationSettings(),
        )
        ack = await self._transport.send(frame)
        return _required(ack.conversation_id, "conversation_id")

    async def send(
        self,
        conversation_id: str,
        content: Content,
        *,
        request_id: str | None = None,
        mode: Literal["queue", "steer"] = "queue",
        overrides: RunOverrides | None = None,
        variables: Mapping[str, JsonValue] | None = None,
        attachments: Sequence[str] = (),
        provenance: Provenance = PERSON,
    ) -> StartedRun:
        """Send a user's message, which starts a run after an open one or, with `steer`, joins the open run.

        `overrides` replace settings of the assistant, and `variables` those of its prompt, for this run
        alone. `attachments` are paths of workspace files. `provenance` states what a person typed, if not all
        of it: other text names no hosts that are read without approval. `request_id` is the idempotency key;
        None generates one.
        """
        frame = _checked(
            frames.ChatSend,
            type="chat.send",
            id=request_id or new_id("q"),
            conversation_id=conversation_id,
            content=content,
            mode=mode,
            overrides=overrides or RunOverrides(),
            variables=dict(variables or {}),
            attachments=tuple(attachments),
            provenance=provenance,
        )
        ack = await self._transport.send(frame, conversation_id)
        return StartedRun(_required(ack.run_id, "run_id"), ack.message_id)

    async def compact(self, conversation_id: str, *, request_id: str | None = None) -> StartedRun:
        """Replace the older messages of a conversation by a summary for the model, in a run of its own.

        Its outcome states the size before and after, or that there is nothing to compact.
        """
        ack = await self._transport.call(
            "conversation.compact", _Accepted, conversation_id, request_id=request_id or new_id("q")
        )
        return StartedRun(ack.run_id, ack.message_id)

    async def cancel(
        self, run: StartedRun | str, *, reason: str | None = None, request_id: str | None = None
    ) -> None:
        """Cancel a run, given as an object or by id. `outcome` waits for its end."""
        run_id = run if isinstance(run, str) else run.run_id
        frame = _checked(
            frames.RunCancel, type="run.cancel", id=request_id or new_id("q"), run_id=run_id, reason=reason
        )
        await self._transport.send(frame, conversation_of(run_id))

    async def reply(
        self,
        approval_id: str,
        *,
        all: Literal["approve", "reject"] | None = None,
        decisions: Sequence[ItemDecision] = (),
        remember: Remember | None = None,
        on_reject: OnReject | None = None,
        digests: Sequence[str] = (),
        request_id: str | None = None,
    ) -> frames.Ack:
        """Decide an approval request: `all` is one decision for all calls, `decisions` has one per call.

        `on_reject` states whether the run continues after a rejection (`feedback`) or ends (`abort`). With
        the `digests` of the items that the approver saw, a decision on other calls is refused. If
        `already_resolved` is True, an earlier decision applies, and the ack has its `outcome` and
        `resolved_by`.
        """
        frame = _checked(
            frames.ApprovalDecision,
            type="approval.reply",
            id=request_id or new_id("q"),
            approval_id=approval_id,
            all=all,
            decisions=tuple(decisions),
            remember=remember,
            on_reject=on_reject,
            digests=tuple(digests),
        )
        return await self._transport.send(frame, approval_id)

    async def provide(
        self, input_id: str, value: JsonValue = None, *, decline: bool = False, request_id: str | None = None
    ) -> frames.Ack:
        """Provide the value of an `input.requested`, or decline to; with `already_resolved`, too late."""
        frame = _checked(
            frames.InputReply,
            type="input.reply",
            id=request_id or new_id("q"),
            request_id=input_id,
            value=value,
            decline=decline,
        )
        return await self._transport.send(frame, input_id)

    async def start_workflow(
        self,
        name: str,
        parameters: JsonObject | None = None,
        *,
        conversation_id: str | None = None,
        request_id: str | None = None,
    ) -> StartedRun:
        """Start a workflow; with `conversation_id`, in that conversation's workspace."""
        frame = _checked(
            frames.WorkflowStart,
            type="workflow.start",
            id=request_id or new_id("q"),
            workflow=name,
            parameters=parameters or {},
            conversation_id=conversation_id,
        )
        ack = await self._transport.send(frame, name)
        return StartedRun(_required(ack.run_id, "run_id"), ack.message_id)

    async def follow(
        self, conversation_id: str, after_seq: int = 0, *, detail: frames.Detail = "steps"
    ) -> AsyncGenerator[EventFrame]:
        """Yield each stored and future event after `after_seq` (0 for all) once, in order and without gaps.

        The generator never ends. Close it (`contextlib.aclosing`) if the loop over it ends early. The detail
        `final` omits iterations, calls and results.

        Raises:
            LogRestored: The log was restored from a backup. RemoteError: The conversation does not exist.
            Unavailable: The stored events could not be read for 30 seconds.
        """
        followed = self._transport.follow(conversation_id, after_seq, detail, live=False)
        async with aclosing(followed) as events:
            async for event in events:
                if isinstance(event, EventFrame):
                    yield event

    def watch(
        self, conversation_id: str, after_seq: int = 0, *, detail: frames.Detail = "full"
    ) -> AsyncGenerator[EventFrame | LiveFrame]:
        """Yield the events of `follow`, and in between the text that the model is writing.

        Live frames may be lost; a stored event has their complete text. The websocket also sends the output
        of running calls.
        """
        return self._transport.follow(conversation_id, after_seq, detail, live=True)

    async def outcome(self, run: StartedRun, *, after_seq: int = 0) -> RunFinished:
        """Return the outcome of a run once it ends; raise as `follow`. The caller sets the deadline."""
        async with aclosing(self.follow(run.conversation_id, after_seq, detail="final")) as events:
            async for event in events:
                if event.run_id == run.run_id and event.type == "run.finished":
                    return RunFinished.model_validate(event.data)
        raise Unavailable(f"{run.run_id}: its log ended")

    def approvals(self) -> AbstractAsyncContextManager[AsyncIterator[ApprovalRequest]]:
        """Receive the tenant's new approval requests, as other clients do too; the first decision applies."""
        return self._transport.approvals()


def _checked(frame: Callable[P, F], *args: P.args, **fields: P.kwargs) -> F:
    """Return a frame; raise `BadInput` for an invalid field, such as a text with half of a character."""
    try:
        built = frame(*args, **fields)
        built.model_dump_json()  # pydantic checks the texts inside of JSON values only here
    except ValidationError as error:
        raise bad_input(error) from error
    except PydanticSerializationError as error:
        raise BadInput("request", None, "texts without lone surrogates") from error
    return built


def _required(value: str | None, field: str) -> str:
    if value is None:
        raise Unavailable(f"the gateway's ack has no {field}")
    return value


@asynccontextmanager
async def connect(
    url: str | tuple[str, ...],
    tenant: str | None = None,
    *,
    token: str | None = None,
    nkey_seed_file: Path | None = None,
    tls_ca_file: Path | None = None,
    name: str = "banksman-client",
    connect_timeout_s: float = 30.0,
    reconnect_s: tuple[float, float] = (0.5, 30.0),
) -> AsyncGenerator[Client]:
    """Connect a client for the duration of the context.

    Args:
        url: The address of a gateway, `http(s)://…`, or of a NATS server, or the addresses of a cluster.
        tenant: The tenant, only for NATS. A gateway knows the tenant of the token.
        token: The API key for a gateway; None for a gateway without keys.
        nkey_seed_file: File with the user's seed, for NATS; None connects without a user.
        tls_ca_file: CA certificates to verify a NATS server; None uses the system's.
        name: Name of the connection in logs.
        connect_timeout_s: Timeout of the first connection in seconds.
        reconnect_s: Minimum and maximum seconds between two connections to a gateway.

    Raises:
        ConnectionEnded: The gateway refused the token.
        Unavailable: No gateway, or no server, accepted the client in time.
    """
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        # Services use the SDK over NATS alone.
        from banksman.sdk.transports.web import WebTransport

        async with WebTransport.connected(url, token, name, reconnect_s, connect_timeout_s) as transport:
            yield Client(transport)
        return
    if tenant is None:
        raise BadInput("tenant", None, "the name of a tenant, which NATS needs")
    check_token(tenant, "tenant")
    settings = NatsSettings(
        url=url, nkey_seed_file=nkey_seed_file, tls_ca_file=tls_ca_file, connect_timeout_s=connect_timeout_s
    )
    async with await Bus(settings, name=name).open() as bus:
        yield Client(NatsTransport(bus, tenant))
