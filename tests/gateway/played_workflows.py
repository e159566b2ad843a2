"""Replies in place of the workflows service."""

from __future__ import annotations

from typing import Any

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.contracts.registry import (
    WorkflowCategories,
    WorkflowCategory,
    WorkflowChecked,
    WorkflowDefinition,
    WorkflowList,
)


async def play_workflows(bus: Bus) -> WorkflowDefinition:
    """Serve one workflow in one category, of which each run can start."""
    definition = WorkflowDefinition(name=new_id("w"), title="Create project", category="projects")
    category = WorkflowCategory(name="projects", title="Projects", workflows=(definition,))
    responses: dict[str, Any] = {
        "list": WorkflowList(workflows=(definition,)),
        "categories": WorkflowCategories(categories=(category,)),
        "get": definition,
        "start": WorkflowChecked(workflow=definition, parameters={"name": "x", "kind": "default"}),
    }

    for action, response in responses.items():

        async def received(message: Message, response: Any = response) -> None:
            await bus.publish(message.reply, response.model_dump_json().encode())

        await bus.subscribe(subjects.workflow_api(action), received)
    await bus.ready()
    return definition
