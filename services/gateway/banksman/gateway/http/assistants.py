"""Assistants, usage and tickets."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from banksman.contracts.assistant_requests import (
    AssistantList,
    AssistantUpdate,
    NewAssistant,
    parse_assistant,
)
from banksman.gateway.http.answers import json_response
from banksman.gateway.http.requests import context_caller, request_id, takes
from banksman.gateway.service.auth import TICKET_S, Caller
from banksman.gateway.service.gateway import Gateway


def assistants_router(gateway: Gateway) -> APIRouter:
    """The routes under `/context/assistants`, `/context/usage`, and `/v1/ws-ticket`."""
    router = APIRouter(tags=["assistants"])
    who: Any = Depends(context_caller(gateway.keys))
    assistants, usage = gateway.service.assistant_desk, gateway.usage

    @router.get("/context/assistants")
    async def list_assistants(caller: Caller = who) -> Response:
        found = AssistantList(items=await assistants.list(caller))
        return json_response(found.model_dump(mode="json"))

    @router.post("/context/assistants", status_code=201, openapi_extra=takes(NewAssistant))
    async def create_assistant(request: Request, caller: Caller = who) -> Response:
        given = parse_assistant(NewAssistant, await request.body() or b"{}")
        created = await assistants.create(caller, given, request_id(request))
        return json_response(created.model_dump(mode="json"), 201)

    @router.get("/context/assistants/{assistant_id}")
    async def read_assistant(assistant_id: str, caller: Caller = who) -> Response:
        return json_response((await assistants.get(caller, assistant_id)).model_dump(mode="json"))

    @router.put("/context/assistants/{assistant_id}", openapi_extra=takes(AssistantUpdate))
    async def update_assistant(assistant_id: str, request: Request, caller: Caller = who) -> Response:
        given = parse_assistant(AssistantUpdate, await request.body() or b"{}")
        return json_response((await assistants.update(caller, assistant_id, given)).model_dump(mode="json"))

    @router.delete("/context/assistants/{assistant_id}", status_code=204)
    async def delete_assistant(assistant_id: str, caller: Caller = who) -> Response:
        await assistants.delete(caller, assistant_id)
        return Response(status_code=204)

    @router.get("/context/usage")
    async def read_usage(caller: Caller = who) -> Response:
        """What this tenant's runs consumed today and this month, and what the operator allows."""
        return json_response((await usage.of(caller.tenant)).model_dump(mode="json"))

    @router.post("/v1/ws-ticket", status_code=201)
    async def issue_ticket(caller: Caller = who) -> Response:
        """A ticket that opens one websocket: `GET /ws?ticket=…`, within 30 s."""
        return json_response({"ticket": await gateway.tickets.issue(caller), "expires_in_s": TICKET_S}, 201)

    return router
