"""The service that every interface works through."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.gateway.a2a_tasks import TaskNotifications
from banksman.gateway.approvals.pending import PendingApprovals
from banksman.gateway.approvals.set_aside import Asides
from banksman.gateway.assistants.model_catalog import ModelCatalog
from banksman.gateway.assistants.prompts import Prompts
from banksman.gateway.audit.trail import Trail
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.imports import Imports
from banksman.gateway.conversations.titles import Titles
from banksman.gateway.conversations.views import Views
from banksman.gateway.identity.auth import Keys
from banksman.gateway.identity.tickets import Tickets
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.live.followed_runs import FollowedRuns
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import Services
from banksman.gateway.runs.runs import Runs
from banksman.gateway.settings import GatewaySettings
from banksman.gateway.usage.passthrough import PassthroughUsage
from banksman.gateway.workflows.texts import WorkflowTexts
from banksman.gateway.workflows.workflows import Workflows


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts of the service, one for each area of the API."""

    settings: GatewaySettings
    keys: Keys
    task_notifications: TaskNotifications | None
    """None without webhooks."""
    tickets: Tickets
    dispatcher: Dispatcher
    followed: FollowedRuns
    conversations: Conversations
    views: Views
    models: ModelCatalog
    runs: Runs
    feeds: Feeds
    approvals: PendingApprovals
    approval_slots: ApprovalSlots
    asides: Asides
    prompts: Prompts
    workflows: Workflows
    workflow_texts: WorkflowTexts
    titles: Titles
    imports: Imports
    trail: Trail
    passthrough: PassthroughUsage

    @classmethod
    def of(cls, settings: GatewaySettings, keys: Keys, services: Services) -> Gateway:
        """Return the locator of services."""
        return cls(
            settings=settings,
            keys=keys,
            task_notifications=services.find(TaskNotifications),
            tickets=services[Tickets],
            dispatcher=services[Dispatcher],
            followed=services[FollowedRuns],
            conversations=services[Conversations],
            views=services[Views],
            models=services[ModelCatalog],
            runs=services[Runs],
            feeds=services[Feeds],
            approvals=services[PendingApprovals],
            approval_slots=services[ApprovalSlots],
            asides=services[Asides],
            prompts=services[Prompts],
            workflows=services[Workflows],
            workflow_texts=services[WorkflowTexts],
            titles=services[Titles],
            imports=services[Imports],
            trail=services[Trail],
            passthrough=services[PassthroughUsage],
        )
