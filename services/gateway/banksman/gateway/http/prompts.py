"""System prompts, plain and enhanced."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import TypeAdapter

from banksman.contracts.ids import check_token, new_id
from banksman.contracts.messages import ToolProtocol
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.wire import JsonObject, parse_as
from banksman.gateway.http.answers import json_response
from banksman.gateway.http.bodies import NewPrompt, PromptBody
from banksman.gateway.http.requests import body, context_caller, takes
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.enhanced_prompts import Occasion
from banksman.gateway.service.gateway import Gateway
from banksman.prompting.templates import render, variables_of

VARIABLES: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)


def prompts_router(gateway: Gateway) -> APIRouter:
    """The routes under `/v1/system-prompts`."""
    router = APIRouter(tags=["system prompts"])
    who: Any = Depends(context_caller(gateway.keys))
    prompts = gateway.service.prompts

    @router.get("/v1/system-prompts")
    async def list_prompts(caller: Caller = who) -> Response:
        found = await prompts.list(caller.tenant)
        return json_response({"items": [one.model_dump(mode="json") for one in found], "next": None})

    @router.post("/v1/system-prompts", status_code=201, openapi_extra=takes(NewPrompt))
    async def create_prompt(request: Request, caller: Caller = who) -> Response:
        given = await body(request, NewPrompt)
        variables_of(given.content)
        prompt = SystemPrompt(id=given.id or new_id("p"), name=given.name, content=given.content)
        return json_response((await prompts.create(caller.tenant, prompt)).model_dump(mode="json"), 201)

    @router.get("/v1/system-prompts/{prompt_id}")
    async def read_prompt(prompt_id: str, caller: Caller = who) -> Response:
        found = await prompts.get(caller.tenant, check_token(prompt_id, "prompt_id"))
        return json_response(found.model_dump(mode="json"))

    @router.put("/v1/system-prompts/{prompt_id}", openapi_extra=takes(PromptBody))
    async def update_prompt(prompt_id: str, request: Request, caller: Caller = who) -> Response:
        given = await body(request, PromptBody)
        variables_of(given.content)
        prompt = SystemPrompt(id=check_token(prompt_id, "prompt_id"), name=given.name, content=given.content)
        return json_response((await prompts.replace(caller.tenant, prompt)).model_dump(mode="json"))

    @router.delete("/v1/system-prompts/{prompt_id}", status_code=204)
    async def delete_prompt(prompt_id: str, caller: Caller = who) -> Response:
        await prompts.delete(caller.tenant, check_token(prompt_id, "prompt_id"))
        return Response(status_code=204)

    @router.get("/v1/system-prompts/{prompt_id}/enhanced")
    async def read_enhanced_prompt(
        prompt_id: str,
        protocol: ToolProtocol = "json_text",
        budget_tokens: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
        variables: str | None = None,
        assistant: str | None = None,
        conversation_id: str | None = None,
        user_message: Annotated[str, Query(max_length=20_000)] = "",
        caller: Caller = who,
    ) -> Response:
        """Base, tools by category, how to call them, how to draw (R25).

        `variables` is a JSON object for the prompt's placeholders; without it they stay as they are. Of more
        tools than fit, those are told that matter to `assistant`, to `conversation_id` as it stands, and to
        what the user would write next, `user_message` (R26, R33).
        """
        occasion = Occasion(
            assistant and check_token(assistant, "assistant"),
            conversation_id and check_token(conversation_id, "conversation_id"),
            user_message,
        )
        prompt = await prompts.get(caller.tenant, check_token(prompt_id, "prompt_id"))
        base = prompt.content
        if variables is not None:
            base = render(base, parse_as(VARIABLES, variables, what="variables"))
        enhanced = await gateway.enhanced.enhanced(caller, base, protocol, budget_tokens, occasion)
        return json_response(
            {
                "id": prompt.id,
                "name": prompt.name,
                "content": enhanced.text,
                "base": base,
                "tools": [tool.name for tool in enhanced.tools],
                "dropped_tools": enhanced.dropped,
                "shortened": enhanced.shortened,
                "estimated_tokens": enhanced.estimated_tokens,
                "protocol": protocol,
                "revision": prompt.revision,
            }
        )

    return router
