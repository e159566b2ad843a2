"""One adapter per tool protocol: it formats the history for a model and reads calls from replies."""

from __future__ import annotations

from typing import assert_never

from banksman.agent.protocols.base import Protocol
from banksman.agent.protocols.json_text import JsonText
from banksman.agent.protocols.native import Native
from banksman.contracts.messages import ToolProtocol


def protocol_for(name: ToolProtocol) -> Protocol:
    match name:
        case "native":
            return Native()
        case "json_text":
            return JsonText()
        case _:
            assert_never(name)
