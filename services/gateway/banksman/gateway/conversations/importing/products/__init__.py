"""The conversations of other products, each as a `Tree`."""

from __future__ import annotations

from collections.abc import Mapping

from banksman.gateway.conversations.importing.products.chatgpt import ChatGpt
from banksman.gateway.conversations.importing.products.claude import Claude
from banksman.gateway.conversations.importing.products.open_webui import OpenWebUi

PRODUCTS: Mapping[str, type[ChatGpt | Claude | OpenWebUi]] = {
    "mapping": ChatGpt,
    "chat_messages": Claude,
    "chat": OpenWebUi,
}
"""By the field that only its conversations have."""
