"""The steps of a run: the request, result, duration and cost of each step."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from banksman.contracts.wire import Stored
from banksman.gateway.operation.declaration import MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.gateway.steps.details import StepDetail, StepDetails
from banksman.gateway.steps.run_steps import RunStep

Service = Annotated[StepDetails, provided(StepDetails)]
MAX_STEPS = 500

operations = Operations("runs")


class StepPage(Stored):
    """A page of the steps of a run, in the order in which they began."""

    items: tuple[RunStep, ...]
    next: int | None
    """`after` of the next page; null at the end."""
    total: int


@operations.add("step.list", "GET /context/runs/{run_id}/steps", errors=(MISSING,))
async def list_steps(
    run_id: str,
    details: Service,
    caller: CallerDep,
    after: Annotated[int, Query(ge=0, description="Steps to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = MAX_STEPS,
) -> StepPage:
    """List the steps of a run: model requests, tool calls, approval requests and waits."""
    steps = await details.list(caller, run_id)
    page = steps[after : after + limit]
    end = after + len(page)
    return StepPage(items=tuple(page), next=end if end < len(steps) else None, total=len(steps))


@operations.add("step.read", "GET /context/runs/{run_id}/steps/{step_id}", errors=(MISSING,))
async def read_step(run_id: str, step_id: str, details: Service, caller: CallerDep) -> StepDetail:
    """Read a step with its request and its result.

    The messages of a model request are those of the log. Its system prompt and tools are rebuilt from the
    settings of the run, so they differ if a stored prompt or a registered tool has changed since.
    """
    return await details.get(caller, run_id, step_id)
