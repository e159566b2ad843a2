"""What all HTTP endpoints share."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.gateway.auth import Keys, Tickets
from banksman.gateway.enhanced import EnhancedPrompts
from banksman.gateway.fanout import Fanout
from banksman.gateway.files import Files
from banksman.gateway.runs import Runs
from banksman.gateway.service import Service
from banksman.gateway.settings import GatewaySettings
from banksman.gateway.usage import UsageReports


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts of a gateway."""

    settings: GatewaySettings
    keys: Keys
    tickets: Tickets
    service: Service
    runs: Runs
    fanout: Fanout
    files: Files
    usage: UsageReports
    enhanced: EnhancedPrompts
