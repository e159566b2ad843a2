"""Workflows, as the service that runs them tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from banksman.bus.connection import Bus
from banksman.bus.envelope import RemoteError, answer
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput, Unavailable
from banksman.contracts.frames import WorkflowStart
from banksman.contracts.registry import (
    CheckWorkflow,
    StartWorkflow,
    WorkflowCategories,
    WorkflowCategory,
    WorkflowChecked,
    WorkflowDefinition,
    WorkflowList,
    WorkflowName,
)
from banksman.gateway.service.auth import Caller

TIMEOUT_S = 5.0

M = TypeVar("M", bound=BaseModel)


class Workflows:
    """The registered workflows. Every method raises `Unavailable` when their service does not answer."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def list(self) -> tuple[WorkflowDefinition, ...]:
        """All of them, by name."""
        return (await self._ask("list", None, WorkflowList)).workflows

    async def categories(self) -> tuple[WorkflowCategory, ...]:
        """All of them, grouped for a selector."""
        return (await self._ask("categories", None, WorkflowCategories)).categories

    async def get(self, name: str) -> WorkflowDefinition:
        """One of them.

        Raises:
            RemoteError: `not_found`: none has that name.
        """
        return await self._ask("get", WorkflowName(name=name), WorkflowDefinition)

    async def check(self, request: WorkflowStart) -> WorkflowChecked:
        """Whether a start fits the workflow's form.

        Raises:
            BadInput: naming the parameter that does not fit.
            RemoteError: `not_found`: none has that name.
        """
        asked = CheckWorkflow(workflow=request.workflow, parameters=request.parameters)
        try:
            return await self._ask("start", asked, WorkflowChecked)
        except RemoteError as error:
            details = error.frame.details or {}
            if "field" in details:
                field = f"parameters.{details['field']}"
                raise BadInput(field, None, str(details.get("expected"))) from error
            raise

    async def _ask(self, action: str, request: BaseModel | None, reply: type[M]) -> M:
        payload = request.model_dump_json().encode() if request else b"{}"
        data = answer(await self._bus.request(subjects.workflow_api(action), payload, TIMEOUT_S))
        try:
            return reply.model_validate_json(data)
        except ValidationError as error:
            raise Unavailable(f"the workflows service gave no readable answer to {action!r}") from error


def start_of(
    checked: WorkflowChecked, request: WorkflowStart, caller: Caller, ids: Mapping[str, str]
) -> StartWorkflow:
    """The message that starts a run under the ids of its request."""
    return StartWorkflow(
        tenant=caller.tenant,
        workflow=checked.workflow.name,
        conversation_id=ids["conversation_id"],
        run_id=ids["run_id"],
        message_id=ids["message_id"],
        parameters=checked.parameters,
        user=caller.user,
        in_conversation=request.conversation_id,
    )
