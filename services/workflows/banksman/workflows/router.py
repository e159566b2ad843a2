"""Request handlers of the workflows service: register, list, read, check and parse workflows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from faststream.nats import NatsRouter

from banksman.bus.control_plane.control import CONCURRENCY, Received
from banksman.contracts import registry as contracts
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput
from banksman.contracts.subjects import ANY
from banksman.contracts.workflows import ProgressReported, ReportProgress
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.workflows.forms import Forms, naming_form, split_command
from banksman.workflows.registry import CallableTools, WorkflowRegistry
from banksman.workflows.turns import ProgressReports
from banksman.workflows.without_code import check_built, value_forms

QUEUE = "workflows"
"""Each request is served by one of the processes."""


def workflow_router(
    registry: WorkflowRegistry, forms: Forms, reports: ProgressReports, tools: CallableTools
) -> NatsRouter:
    router = NatsRouter()
    subscriber = partial(router.subscriber, queue=QUEUE, max_workers=CONCURRENCY)
    _add_registrations(router, registry)
    _add_progress(router, reports)
    _add_built(router, registry, forms.schemas, tools)

    @subscriber(subjects.workflow_api("list"))
    async def list_workflows(request: contracts.ListWorkflows) -> contracts.WorkflowList:
        """Return every workflow that the tenant's users may start."""
        return contracts.WorkflowList(workflows=await registry.all(request.tenant))

    @subscriber(subjects.workflow_api("categories"))
    async def list_categories(request: contracts.ListWorkflows) -> contracts.WorkflowCategories:
        """Return every workflow that the tenant's users may start, under its category."""
        return contracts.WorkflowCategories(categories=by_category(await registry.all(request.tenant)))

    @subscriber(subjects.workflow_api("get"))
    async def get(request: contracts.WorkflowName) -> contracts.WorkflowDefinition:
        """Return one workflow."""
        return await registry.get(request.name, request.tenant)

    @subscriber(subjects.workflow_api("start"))
    async def check(request: contracts.CheckWorkflow) -> contracts.WorkflowChecked:
        """Fill in defaults and name the first parameter that is invalid; start nothing."""
        definition = await registry.get(request.workflow, request.tenant)
        parameters = await forms.filled(definition, request.tenant, request.parameters)
        return contracts.WorkflowChecked(workflow=definition, parameters=parameters)

    @subscriber(subjects.workflow_api("parse"))
    async def parse(request: contracts.ParseWorkflow) -> contracts.ParsedWorkflow:
        """Return the form that a command fills, with invalid and missing values; start nothing."""
        name, words = (request.workflow, []) if request.workflow else split_command(request.text)
        definition = await registry.get(name, request.tenant)
        return await forms.parsed(definition, request.tenant, request.parameters, words)

    return router


def _add_built(
    router: NatsRouter, registry: WorkflowRegistry, schemas: SchemaChecker, tools: CallableTools
) -> None:
    subscriber = partial(router.subscriber, queue=QUEUE, max_workers=CONCURRENCY)

    @subscriber(subjects.workflow_api("store"))
    async def store(request: contracts.StoreWorkflow) -> contracts.WorkflowDefinition:
        """Create or replace a workflow without code."""
        check_built(request.definition, partial(tools.find, request.tenant))
        if (forms := value_forms(request.definition)) is not None:
            with naming_form("built.steps.form"):
                await schemas.check_schema(request.tenant, forms)
        return await registry.store(request)

    @subscriber(subjects.workflow_api("delete"))
    async def delete(request: contracts.DeleteWorkflow) -> contracts.WorkflowDefinition:
        """Delete a workflow without code; its open runs continue."""
        return (await registry.withdraw(request.tenant, request.name, contracts.STORED_SERVER)).definition


def _add_progress(router: NatsRouter, reports: ProgressReports) -> None:
    subscriber = partial(router.subscriber, queue=QUEUE, max_workers=CONCURRENCY)

    @subscriber(subjects.registry("workflow", "progress"))
    @subscriber(subjects.tenant_registry("workflow", "progress", ANY))
    async def report(request: ReportProgress, message: Received) -> ProgressReported:
        """Store the progress of a run during its turn."""
        tenant = subjects.registering_tenant(message.subject)
        if tenant not in (None, request.tenant):
            raise BadInput("tenant", request.tenant, "the tenant of the account")
        return ProgressReported(stored=await reports.store(request))


def _add_registrations(router: NatsRouter, registry: WorkflowRegistry) -> None:
    subscriber = partial(router.subscriber, queue=QUEUE, max_workers=CONCURRENCY)

    @subscriber(subjects.registry("workflow", "register"))
    @subscriber(subjects.tenant_registry("workflow", "register", ANY))
    async def register(
        request: contracts.RegisterWorkflow, message: Received
    ) -> contracts.WorkflowRegistration:
        """Register a workflow and return the registration; a repeated one changes nothing."""
        return await registry.register(request.definition, subjects.registering_tenant(message.subject))

    @subscriber(subjects.registry("workflow", "withdraw"))
    @subscriber(subjects.tenant_registry("workflow", "withdraw", ANY))
    async def withdraw(
        request: contracts.WithdrawWorkflow, message: Received
    ) -> contracts.WorkflowRegistration:
        """Withdraw a workflow and return its registration."""
        tenant = subjects.registering_tenant(message.subject)
        return await registry.withdraw(tenant, request.name, request.server)


def by_category(
    definitions: Iterable[contracts.WorkflowDefinition],
) -> tuple[contracts.WorkflowCategory, ...]:
    """Return the categories that have workflows, in their order, with the workflows sorted by name (R27)."""
    groups: dict[str, list[contracts.WorkflowDefinition]] = {}
    for definition in sorted(definitions, key=lambda definition: definition.name):
        groups.setdefault(definition.category, []).append(definition)
    return tuple(
        contracts.WorkflowCategory(**dict(category), workflows=tuple(groups[category.name]))
        for category in contracts.categories_of(groups)
    )
