"""The bodies of HTTP requests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from banksman.contracts.assistant_requests import AssistantUpdate, NewAssistant
from banksman.contracts.assistants import ConversationSettings, RunOverrides
from banksman.contracts.events import ItemDecision, Remember
from banksman.contracts.messages import Content
from banksman.contracts.wire import JsonObject, Token, Wire


class NewConversation(Wire):
    """A conversation to create."""

    title: str = Field(default="", max_length=200)
    assistant: Token = "default"
    system_prompt_id: Token | None = None
    model: str | None = Field(default=None, max_length=200)
    settings: ConversationSettings = ConversationSettings()


class Rename(Wire):
    """A conversation's new title."""

    title: str = Field(max_length=200)


class NewRun(Wire):
    """A message that wants an answer."""

    content: Content
    mode: Literal["queue", "steer"] = "queue"
    overrides: RunOverrides = RunOverrides()
    variables: JsonObject = Field(default_factory=dict)
    attachments: tuple[Annotated[str, Field(max_length=4096)], ...] = Field(default=(), max_length=50)


class NewChat(NewConversation):
    """A message that begins a conversation."""

    content: Content
    overrides: RunOverrides = RunOverrides()
    variables: JsonObject = Field(default_factory=dict)


class CancelBody(Wire):
    """Why a run is to end."""

    reason: str | None = Field(default=None, max_length=2000)


class DecisionBody(Wire):
    """A decision of an approval: one for every item, or one for all."""

    decisions: tuple[ItemDecision, ...] = Field(default=(), max_length=1000)
    all: Literal["approve", "reject"] | None = None
    remember: Remember | None = None


class PromptBody(Wire):
    """A system prompt as clients write it."""

    name: str = Field(default="", max_length=200)
    content: str = Field(max_length=256 * 1024)


class NewPrompt(PromptBody):
    """A system prompt to create."""

    id: Token | None = None
    """None for one that we make."""


class NewWorkflowRun(Wire):
    """A workflow to run."""

    parameters: JsonObject = Field(default_factory=dict)
    conversation_id: Token | None = None


BODIES: tuple[type[BaseModel], ...] = (
    NewConversation,
    Rename,
    NewRun,
    NewChat,
    CancelBody,
    DecisionBody,
    AssistantUpdate,
    NewAssistant,
    PromptBody,
    NewPrompt,
    NewWorkflowRun,
)
"""All of them, for the API document."""
