"""Request handlers of the workflows service: list, read and check workflows."""

from __future__ import annotations

from faststream.nats import NatsRouter

from banksman.bus.control import CONCURRENCY
from banksman.contracts import subjects
from banksman.contracts.registry import (
    CheckWorkflow,
    WorkflowCategories,
    WorkflowChecked,
    WorkflowDefinition,
    WorkflowList,
    WorkflowName,
)
from banksman.workflows.forms import filled
from banksman.workflows.registry import Registry, by_category

QUEUE = "workflows"
"""Each request is served by one of the processes."""


def workflow_router(registry: Registry) -> NatsRouter:
    """Return the handlers of the workflows' registry."""
    router = NatsRouter()

    @router.subscriber(
        subjects.workflow_api("list"), queue=QUEUE, max_workers=CONCURRENCY, title="list workflows"
    )
    async def list_workflows() -> WorkflowList:
        """Return every workflow."""
        return WorkflowList(workflows=await registry.all())

    @router.subscriber(
        subjects.workflow_api("categories"),
        queue=QUEUE,
        max_workers=CONCURRENCY,
        title="list workflows by category",
    )
    async def list_categories() -> WorkflowCategories:
        """Return every workflow under its category."""
        return WorkflowCategories(categories=by_category(await registry.all()))

    @router.subscriber(
        subjects.workflow_api("get"), queue=QUEUE, max_workers=CONCURRENCY, title="get a workflow"
    )
    async def get(request: WorkflowName) -> WorkflowDefinition:
        """Return one workflow."""
        return await registry.get(request.name)

    @router.subscriber(
        subjects.workflow_api("start"), queue=QUEUE, max_workers=CONCURRENCY, title="check a workflow's start"
    )
    async def check(request: CheckWorkflow) -> WorkflowChecked:
        """Fill in defaults and name the first parameter that is invalid; start nothing."""
        definition = await registry.get(request.workflow)
        parameters = filled(definition.parameters_schema, request.parameters)
        return WorkflowChecked(workflow=definition, parameters=parameters)

    return router
