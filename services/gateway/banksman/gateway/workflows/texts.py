"""Parses texts that start workflows: commands with the form of their workflow, other text with a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from banksman.contracts.errors import BadInput
from banksman.contracts.ids import is_token
from banksman.contracts.registry import ParsedWorkflow, ParseWorkflow, WorkflowDefinition
from banksman.gateway.operation.caller import Caller
from banksman.gateway.runs.one_request import OneRequest
from banksman.gateway.workflows.workflows import Workflows

MAX_WORKFLOWS = 100
MAX_PROMPT_CHARS = 60_000

INSTRUCTIONS = """\
Choose the workflow that the user wants to start, and fill in its form.
Reply with one JSON object and nothing else: {"workflow": "<name>", "parameters": {...}}
Leave out every parameter that the user did not state. If no workflow fits, reply {"workflow": null}.

Workflows:
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTexts:
    """Parses texts of users. It starts no workflow: the user confirms the filled form."""

    workflows: Workflows
    model: OneRequest

    async def parse(self, caller: Caller, text: str, *, model: str | None = None) -> ParsedWorkflow:
        """Return the form that a text fills, with its missing and invalid fields.

        The text is a command (`/name parameter=value`), or plain language, which takes one request to
        `model` (None: that of the default assistant). Raises `BadInput` if no workflow fits.
        """
        if text.lstrip().startswith("/"):
            return await self.workflows.parse(ParseWorkflow(tenant=caller.tenant, text=text))
        listed = await self.workflows.list(caller.tenant)
        chosen = await self._chosen(caller, text, model, listed[:MAX_WORKFLOWS])
        name, parameters = chosen.get("workflow"), chosen.get("parameters")
        if not isinstance(name, str) or name not in {one.name for one in listed}:
            raise BadInput("text", text[:80], "a text that names what a registered workflow does")
        given = cast(dict[str, Any], parameters) if isinstance(parameters, dict) else {}
        request = ParseWorkflow(tenant=caller.tenant, workflow=name, parameters=given)
        return (await self.workflows.parse(request)).model_copy(update={"source": "language"})

    async def _chosen(
        self, caller: Caller, text: str, model: str | None, listed: tuple[WorkflowDefinition, ...]
    ) -> dict[str, Any]:
        reply = await self.model.reply(caller, text, _prompt(listed), title="Start a workflow", model=model)
        return object_in(reply)


def _prompt(listed: tuple[WorkflowDefinition, ...]) -> str:
    lines = [
        json.dumps(
            {"name": one.name, "description": one.description, "parameters": one.parameters_schema},
            ensure_ascii=False,
        )
        for one in listed
        if is_token(one.name)
    ]
    return (INSTRUCTIONS + "\n".join(lines))[:MAX_PROMPT_CHARS]


def object_in(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text[text.find("{") : text.rfind("}") + 1])
    except ValueError:
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}
