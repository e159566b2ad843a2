"""Assistants and tickets."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from banksman.contracts.assistants import Assistant
from banksman.contracts.ids import check_token, new_id
from banksman.gateway.auth import TICKET_S, Caller
from banksman.gateway.gateway import Gateway
from banksman.gateway.http.answers import json_response
from banksman.gateway.http.bodies import AssistantBody, NewAssistant
from banksman.gateway.http.requests import body, context_caller, takes
from banksman.gateway.run_settings import model_name


def assistants_router(gateway: Gateway) -> APIRouter:
    """The routes under `/context/assistants`, and `/v1/ws-ticket`."""
    router = APIRouter(tags=["assistants"])
    who: Any = Depends(context_caller(gateway.keys))
    assistants, prompts = gateway.service.assistants, gateway.service.prompts

    async def checked(caller: Caller, assistant_id: str, given: AssistantBody) -> Assistant:
        if given.system_prompt_id is not None:
            await prompts.get(caller.tenant, given.system_prompt_id)
        for name in (given.model, *given.fallback_models):
            if name is not None:
                model_name(name)
        fields = {name: getattr(given, name) for name in AssistantBody.model_fields}
        return Assistant(id=assistant_id, **fields)

    @router.get("/context/assistants")
    async def list_assistants(caller: Caller = who) -> Response:
        found = await assistants.list(caller.tenant)
        return json_response({"items": [one.model_dump(mode="json") for one in found], "next": None})

    @router.post("/context/assistants", status_code=201, openapi_extra=takes(NewAssistant))
    async def create_assistant(request: Request, caller: Caller = who) -> Response:
        given = await body(request, NewAssistant)
        assistant = await checked(caller, given.id or new_id("as"), given)
        return json_response((await assistants.create(caller.tenant, assistant)).model_dump(mode="json"), 201)

    @router.get("/context/assistants/{assistant_id}")
    async def read_assistant(assistant_id: str, caller: Caller = who) -> Response:
        found = await assistants.get(caller.tenant, check_token(assistant_id, "assistant_id"))
        return json_response(found.model_dump(mode="json"))

    @router.put("/context/assistants/{assistant_id}", openapi_extra=takes(AssistantBody))
    async def update_assistant(assistant_id: str, request: Request, caller: Caller = who) -> Response:
        given = await body(request, AssistantBody)
        assistant = await checked(caller, check_token(assistant_id, "assistant_id"), given)
        return json_response((await assistants.replace(caller.tenant, assistant)).model_dump(mode="json"))

    @router.delete("/context/assistants/{assistant_id}", status_code=204)
    async def delete_assistant(assistant_id: str, caller: Caller = who) -> Response:
        await assistants.delete(caller.tenant, check_token(assistant_id, "assistant_id"))
        return Response(status_code=204)

    @router.post("/v1/ws-ticket", status_code=201)
    async def issue_ticket(caller: Caller = who) -> Response:
        """A ticket that opens one websocket: `GET /ws?ticket=…`, within 30 s."""
        return json_response({"ticket": await gateway.tickets.issue(caller), "expires_in_s": TICKET_S}, 201)

    return router
