"""How a model writes calls, and how its replies are read: one adapter for each tool protocol."""

from __future__ import annotations

from typing import assert_never

from banksman.agent.protocols.base import Protocol
from banksman.agent.protocols.json_text import JsonText
from banksman.agent.protocols.native import Native
from banksman.contracts.messages import ToolProtocol


def protocol_for(name: ToolProtocol) -> Protocol:
    """The adapter of a tool protocol."""
    match name:
        case "native":
            return Native()
        case "json_text":
            return JsonText()
        case _:
            assert_never(name)
