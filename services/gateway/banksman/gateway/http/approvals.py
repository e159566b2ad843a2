"""Open approval requests and requests for a value, and the replies to them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from fastapi.responses import JSONResponse

from banksman.contracts.errors import ErrorCode
from banksman.contracts.frames import ApprovalDecision, InputReply
from banksman.gateway.approvals.decisions import AWAITING_SECOND
from banksman.gateway.http.models import (
    DecisionBody,
    FirstOfTwo,
    InputBody,
    LateDecision,
    LateValue,
    ProvidedValue,
    Resolution,
)
from banksman.gateway.operation.errors import ErrorBody, ErrorDetail
from banksman.gateway.operation.parameters import MAX_POSITION
from banksman.gateway.service import resources
from banksman.gateway.service.bodies import ApprovalPage, InputPage
from banksman.gateway.service.dependencies import ApproverDep, CallerDep, RequestId, ServiceDep
from banksman.gateway.service.routing import StrictBody, router

Limit = Annotated[int, Query(ge=1, le=resources.MAX_PENDING)]
After = Annotated[int, Query(ge=0, le=MAX_POSITION)]

routes = router("approvals")


@routes.get("/context/approvals")
async def list_approvals(
    gateway: ServiceDep,
    caller: CallerDep,
    limit: Limit = resources.MAX_PENDING,
    after: After = 0,
) -> ApprovalPage:
    """List the tenant's open approval requests, oldest first; `next` is `after` of the next page."""
    return await resources.list_approvals(gateway, caller, limit=limit, after=after)


@routes.post(
    "/context/approvals/{approval_id}",
    response_model=Resolution,
    responses={
        202: {"model": FirstOfTwo, "description": "Approved by the first of two users; the calls wait"},
        409: {
            "model": LateDecision | ErrorBody,
            "description": "An earlier decision took effect, or the request has expired",
        },
    },
)
async def decide_approval(
    approval_id: str,
    body: StrictBody[DecisionBody],
    gateway: ServiceDep,
    caller: ApproverDep,
    request_id: RequestId,
) -> Resolution | Response:
    """Decide an approval request. The first decision takes effect; a later one gets 409 with the first."""
    frame = ApprovalDecision(type="approval.reply", id=request_id, approval_id=approval_id, **dict(body))
    ack = await gateway.requests.handle(caller, frame)
    if ack.outcome == AWAITING_SECOND:
        return JSONResponse(FirstOfTwo.of(ack).model_dump(mode="json"), 202)
    if not ack.already_resolved:
        return Resolution.of(ack)
    message = f"the approval was {ack.outcome} by {ack.resolved_by} before"
    late = LateDecision.of(ack, error=ErrorDetail(message=message, code=ErrorCode.CONFLICT))
    return JSONResponse(late.model_dump(mode="json", exclude_none=True), 409)


@routes.post("/context/approvals/{approval_id}/aside", status_code=204)
async def set_approval_aside(approval_id: str, gateway: ServiceDep, caller: ApproverDep) -> None:
    """Remove an approval request from the caller's inbox. The request stays open, and may be escalated."""
    await gateway.asides.set_aside(caller, approval_id)


@routes.get("/context/inputs")
async def list_inputs(
    gateway: ServiceDep,
    caller: CallerDep,
    limit: Limit = resources.MAX_PENDING,
    after: After = 0,
) -> InputPage:
    """List the values that workflows wait for, oldest first; `next` is `after` of the next page."""
    return await resources.list_inputs(gateway, caller.tenant, limit=limit, after=after)


@routes.post(
    "/context/inputs/{request_id}",
    response_model=ProvidedValue,
    responses={
        409: {
            "model": LateValue | ErrorBody,
            "description": "An earlier value took effect, or the request is closed",
        },
    },
)
async def provide_input(
    request_id: str,
    body: StrictBody[InputBody],
    gateway: ServiceDep,
    caller: ApproverDep,
    idempotency_key: RequestId,
) -> ProvidedValue | Response:
    """Provide the value that a workflow requested. The first value takes effect; later ones get 409."""
    frame = InputReply(type="input.reply", id=idempotency_key, request_id=request_id, value=body.value)
    ack = await gateway.requests.handle(caller, frame)
    if not ack.already_resolved:
        return ProvidedValue.of(ack)
    message = f"the value was {ack.outcome} by {ack.resolved_by} before"
    late = LateValue.of(ack, error=ErrorDetail(message=message, code=ErrorCode.CONFLICT))
    return JSONResponse(late.model_dump(mode="json", exclude_none=True), 409)
