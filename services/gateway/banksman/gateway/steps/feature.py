"""Builds the steps of runs, for the view "Steps and cost"."""

from __future__ import annotations

from banksman.gateway.assistants.enhanced_prompts import EnhancedPrompts
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.runs.runs import Runs
from banksman.gateway.steps.details import StepDetails
from banksman.gateway.steps.operations import operations


async def build(base: Foundation) -> None:
    """Build what reads the steps from the logs."""
    services = base.services
    services.add(StepDetails(services[Runs], services[Views], services[EnhancedPrompts]))


FEATURE = Feature(operations, build)
