"""What all HTTP endpoints share."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.gateway.service.auth import Keys, Tickets
from banksman.gateway.service.client_requests import Service
from banksman.gateway.service.enhanced_prompts import EnhancedPrompts
from banksman.gateway.service.feeds import Fanout
from banksman.gateway.service.files import Files
from banksman.gateway.service.runs import Runs
from banksman.gateway.service.usage import UsageReports
from banksman.gateway.settings import GatewaySettings


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
