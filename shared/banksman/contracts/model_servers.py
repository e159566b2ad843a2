"""The servers of models that administrators of tenants set, beside those of the operator's settings."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from banksman.contracts.urls import HttpUrl
from banksman.contracts.wire import Stored, Timestamp

ModelApi = Literal[
    "chat",
    "responses",
    "anthropic",
    "backboard",
    "google",
    "bedrock",
    "mistral",
    "cohere",
    "huggingface",
]
"""
chat       OpenAI's Chat Completions API, which most vendors and local servers offer
responses  OpenAI's Responses API; `chat` changes to it for models that need it
anthropic  Anthropic's Messages API
backboard  Backboard's assistants and threads

The others are the vendors' own APIs: Gemini, Bedrock's Converse, Mistral, Cohere and Hugging Face. Agents
need the extra `library` for them.
"""

ProviderName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]

MAX_LISTED_MODELS: Final = 200
"""Maximum models of one server whose names are stored."""
ListedModel = Annotated[str, StringConstraints(min_length=1, max_length=120)]


class ModelServer(Stored):
    """A server of models, without its key."""

    name: ProviderName
    """The part of a model's name before the colon."""
    api: ModelApi
    base_url: HttpUrl
    models: tuple[ListedModel, ...] = Field(default=(), max_length=MAX_LISTED_MODELS)
    """What the server listed when it was last tested; empty before."""
    updated_at: Timestamp
    updated_by: str


class StoredModelServer(ModelServer):
    """KV `model-servers`, key `{tenant}.{name}`."""

    sealed_key: str | None = Field(default=None, repr=False)
    """The encrypted key in base64, bound to tenant, name and address; None sends no key."""
