"""Builds the workflows, which users start themselves."""

from __future__ import annotations

from banksman.bus.publish import RunQueue
from banksman.gateway.assistants.policies import GovernedAssistants
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.one_request import OneRequest
from banksman.gateway.workflows.operations import operations
from banksman.gateway.workflows.starts import WorkflowStarts
from banksman.gateway.workflows.texts import WorkflowTexts
from banksman.gateway.workflows.workflows import Workflows


async def build(base: Foundation) -> None:
    """Build the registry's client, the starts, and the parser of texts."""
    services = base.services
    workflows = Workflows(base.bus)
    starts = WorkflowStarts(
        workflows=workflows,
        conversations=services[Conversations],
        assistants=services[GovernedAssistants],
        queue=services[RunQueue],
        backlog=services[Backlog],
        clock=base.clock,
        default_model=base.settings.default_model,
    )
    services.add(workflows, starts, WorkflowTexts(workflows=workflows, model=services[OneRequest]))


FEATURE = Feature(operations, build)
