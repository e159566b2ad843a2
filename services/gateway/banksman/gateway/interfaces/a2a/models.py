"""The requests of A2A's JSON-RPC binding. Unknown fields are ignored, as in its Protocol Buffers.

Some clients send an absent id as an empty string. https://a2a-protocol.org/latest/specification/
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from banksman.contracts.wire import JsonObject, JsonValue, Stored

Id = Annotated[str, Field(max_length=200)]
HeaderValue = Annotated[str, StringConstraints(max_length=2_000, pattern=r"^[\x20-\x7e]*$")]


class RpcRequest(Stored):
    """A request of JSON-RPC 2.0."""

    jsonrpc: Literal["2.0"]
    id: str | int | None = None
    method: Annotated[str, Field(max_length=100)]
    params: JsonObject = Field(default_factory=dict)


class SentPart(Stored):
    """A part of a message: text, data, or a file as bytes or by its address."""

    text: str | None = None
    data: JsonValue = None
    raw: str | None = None
    """Bytes of a file in base64."""
    url: str | None = None
    media_type: str = Field(default="", alias="mediaType")


class SentMessage(Stored):
    """A message of a client."""

    message_id: Annotated[str, Field(min_length=1, max_length=200)] = Field(alias="messageId")
    """Identifies the message for 24 hours: a repeated message has no further effect."""
    context_id: Id = Field(default="", alias="contextId")
    """The conversation to continue; without it, a new one begins."""
    task_id: Id = Field(default="", alias="taskId")
    """The open run that the message is for; without it, a new run starts."""
    role: Literal["ROLE_USER"] = "ROLE_USER"
    parts: tuple[SentPart, ...] = Field(min_length=1, max_length=1000)
    metadata: JsonObject = Field(default_factory=dict)


class Authentication(Stored):
    """The credentials that the receiver expects in `Authorization`."""

    scheme: HeaderValue
    credentials: HeaderValue = Field(default="", repr=False)


class PushTarget(Stored):
    """The receiver of notifications about the task of a message."""

    id: Id = ""
    url: str = Field(max_length=2000)
    token: HeaderValue = Field(default="", repr=False)
    authentication: Authentication | None = None


class Configuration(Stored):
    """The client's options for the response."""

    history_length: int | None = Field(default=None, ge=0, alias="historyLength")
    return_immediately: bool = Field(default=False, alias="returnImmediately")
    push: PushTarget | None = Field(default=None, alias="taskPushNotificationConfig")


class SendMessage(Stored):
    """The parameters of `SendMessage` and `SendStreamingMessage`."""

    message: SentMessage
    configuration: Configuration = Configuration()


class NamedTask(Stored):
    """The parameters of the methods for one task."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    history_length: int | None = Field(default=None, ge=0, alias="historyLength")


class ListTasks(Stored):
    """The parameters of `ListTasks`."""

    context_id: Id = Field(default="", alias="contextId")
    status: str = ""
    page_size: int = Field(default=50, ge=0, le=100, alias="pageSize")
    page_token: str = Field(default="", alias="pageToken", pattern=r"^\d*$", max_length=12)


class PushConfig(PushTarget):
    """The parameters of `CreateTaskPushNotificationConfig`."""

    task_id: Id = Field(min_length=1, alias="taskId")


class NamedConfig(Stored):
    """The parameters of the methods for one configuration."""

    task_id: Id = Field(min_length=1, alias="taskId")
    id: Id = Field(min_length=1)


class ListConfigs(Stored):
    """The parameters of `ListTaskPushNotificationConfigs`; a task has so few that they are one page."""

    task_id: Id = Field(min_length=1, alias="taskId")
