"""Workflows."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from banksman.contracts.frames import WorkflowStart
from banksman.contracts.ids import check_token
from banksman.gateway.http.answers import json_response
from banksman.gateway.http.bodies import NewWorkflowRun
from banksman.gateway.http.requests import body, context_caller, request_id, takes
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.gateway import Gateway


def workflows_router(gateway: Gateway) -> APIRouter:
    """The routes under `/workflows`."""
    router = APIRouter(tags=["workflows"])
    who: Any = Depends(context_caller(gateway.keys))
    workflows = gateway.service.workflows

    @router.get("/workflows")
    async def list_workflows(caller: Caller = who) -> Response:
        found = await workflows.list()
        return json_response({"items": [one.model_dump(mode="json") for one in found], "next": None})

    @router.get("/workflows/categories")
    async def list_workflow_categories(caller: Caller = who) -> Response:
        found = await workflows.categories()
        return json_response({"items": [one.model_dump(mode="json") for one in found], "next": None})

    @router.get("/workflows/{name}")
    async def read_workflow(name: str, caller: Caller = who) -> Response:
        return json_response((await workflows.get(check_token(name, "name"))).model_dump(mode="json"))

    @router.post("/workflows/{name}/runs", status_code=202, openapi_extra=takes(NewWorkflowRun))
    async def start_workflow(
        name: str,
        request: Request,
        wait_s: Annotated[float, Query(ge=0, le=60)] = 0,
        caller: Caller = who,
    ) -> Response:
        given = await body(request, NewWorkflowRun)
        frame = WorkflowStart(
            type="workflow.start",
            id=request_id(request),
            workflow=check_token(name, "name"),
            parameters=given.parameters,
            conversation_id=given.conversation_id,
        )
        ack = await gateway.service.answer(caller, frame)
        headers = {"location": f"/context/runs/{ack.run_id}"}
        if not wait_s:
            ids = ack.model_dump(exclude={"type", "reply_to"}, exclude_none=True)
            return json_response({**ids, "status": "queued"}, 202, headers)
        run = await gateway.runs.wait(caller.tenant, ack.run_id or "", wait_s)
        return json_response(run.shown(), 200 if run.outcome else 202, headers)

    return router
