"""Google's own API for Gemini 3."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator

from aiohttp import web
from google.genai import types
from pydantic import ConfigDict, ValidationError, create_model
from pydantic.alias_generators import to_camel

from tests.support.vendors.base import (
    CHARS_PER_TOKEN,
    Json,
    Prompt,
    Refusal,
    StandIn,
    Turn,
    event,
    pieces,
    signature,
    tokens,
)
from tests.support.vendors.gemini_openai import UNKNOWN_SIGNATURES
from tests.support.vendors.schemas import gemini_problem

GenerateContentRequest = create_model(
    "GenerateContentRequest",
    __config__=ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True),
    contents=list[types.Content],
    system_instruction=(types.Content | None, None),
    tools=(list[types.Tool] | None, None),
    tool_config=(types.ToolConfig | None, None),
    safety_settings=(list[types.SafetySetting] | None, None),
    generation_config=(types.GenerationConfig | None, None),
    cached_content=(str | None, None),
)
"""The body of a request, of the types of the package `google-genai`."""


class Gemini(StandIn):
    """See https://ai.google.dev/api/generate-content."""

    name = "Gemini"
    vendor = "gemini"
    api = "google"
    prefix = ""
    model = "gemini-3-pro-preview"

    def refusal(self, message: str, *, status: int = 400) -> Refusal:
        return Refusal(status, {"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}})

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1beta/models/{call}", self.serve)

    def check(self, body: Json) -> None:
        try:
            GenerateContentRequest.model_validate(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            name = str(first["loc"][-1])
            raise self.refusal(
                f"Invalid JSON payload received. Unknown name \"{name}\" at '{place}': Cannot find field."
            ) from error
        for index, declaration in enumerate(_declarations(body)):
            schema = declaration.get("parameters")
            place = f"tools[0].function_declarations[{index}].parameters"
            if schema is not None and (found := gemini_problem(schema, place)) is not None:
                raise self.refusal(found)
        self._check_contents(body["contents"])
        count = len(json.dumps(body["contents"])) // CHARS_PER_TOKEN
        if count > self.context_tokens:
            raise self.refusal(
                f"The input token count ({count}) exceeds the maximum number of tokens allowed "
                f"({self.context_tokens})."
            )

    def _check_contents(self, contents: list[Json]) -> None:
        turn = max((i for i, one in enumerate(contents) if one["role"] == "user" and _text(one)), default=0)
        for index, content in enumerate(contents):
            if not content.get("parts"):
                raise self.refusal(
                    f"* GenerateContentRequest.contents[{index}].parts: contents.parts must not be empty."
                )
            calls = [part for part in content["parts"] if "functionCall" in part]
            if not calls:
                continue
            following = contents[index + 1]["parts"] if index + 1 < len(contents) else []
            if len([part for part in following if "functionResponse" in part]) != len(calls):
                raise self.refusal(
                    "Please ensure that the number of function response parts is equal to the number of "
                    "function call "
                    "parts of the function call turn."
                )
            self._check_signature(calls[0], needed=index > turn, position=index)

    def _check_signature(self, part: Json, *, needed: bool, position: int) -> None:
        found, call = part.get("thoughtSignature"), part["functionCall"]
        if found is None and needed:
            raise self.refusal(
                "Function call is missing a thought_signature in functionCall parts. This is required for "
                "tools to work "
                "correctly, and missing thought_signature may lead to degraded model performance. "
                "Additional data, "
                f"function call `default_api:{call['name']}` , position {position}."
            )
        if found is not None and _standard(found).rstrip("=") not in _STANDINS | _accepted(call):
            raise self.refusal("Corrupted thought signature.")

    def read(self, body: Json) -> Prompt:
        contents = body["contents"]
        last = max((i for i, one in enumerate(contents) if one["role"] == "user" and _text(one)), default=0)
        config = body.get("generationConfig") or {}
        return Prompt(
            system=_text(body.get("systemInstruction") or {}),
            user=_text(contents[last]),
            results=tuple(
                json.dumps(part["functionResponse"]["response"])
                for one in contents[last + 1 :]
                for part in one["parts"]
                if "functionResponse" in part
            ),
            images=tuple(
                _standard(part["inlineData"]["data"]) if "inlineData" in part else part["fileData"]["fileUri"]
                for one in contents
                for part in one["parts"]
                if "inlineData" in part or "fileData" in part
            ),
            tools={
                one["name"]: one.get("parametersJsonSchema") or one.get("parameters") or {}
                for one in _declarations(body)
            },
            schema=config.get("responseJsonSchema") or config.get("responseSchema"),
            effort=json.dumps(config["thinkingConfig"]) if config.get("thinkingConfig") else None,
            parallel=True,
            text=json.dumps(body, ensure_ascii=False),
        )

    async def stream(self, body: Json, turn: Turn) -> AsyncIterator[bytes]:
        counts = self._usage(body, turn)
        thinking = (body.get("generationConfig") or {}).get("thinkingConfig") or {}
        # JSON of protocol buffers accepts both spellings, and the SDK sends the second.
        thoughts = thinking.get("includeThoughts") or thinking.get("include_thoughts")
        parts: list[Json] = []
        if thoughts:
            parts += [{"text": piece, "thought": True} for piece in pieces(turn.reasoning)]
        parts += [{"text": piece} for piece in pieces(turn.text)]
        for index, call in enumerate(turn.calls):
            sent: Json = {"functionCall": {"name": call.name, "args": call.arguments}}
            if index == 0:
                sent["thoughtSignature"] = signature(call.name, call.arguments)
            parts.append(sent)
        for part in parts:
            yield event(
                {
                    "candidates": [{"content": {"parts": [part], "role": "model"}, "index": 0}],
                    "usageMetadata": counts,
                }
            )
        if turn.breaks_with:
            yield event({"error": {"code": 503, "message": turn.breaks_with, "status": "UNAVAILABLE"}})
            return
        reason = {"length": "MAX_TOKENS", "filter": "SAFETY"}.get(turn.finish, "STOP")
        end = {"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": reason, "index": 0}
        yield event({"candidates": [end], "usageMetadata": counts, "modelVersion": self.model})

    def _usage(self, body: Json, turn: Turn) -> Json:
        text = json.dumps([body.get("tools"), body.get("systemInstruction"), body["contents"]])
        counts = {
            "promptTokenCount": tokens(text),
            "candidatesTokenCount": tokens(turn.text + str(turn.calls)),
            "cachedContentTokenCount": self.cached_tokens(text),
        }
        if turn.reasoning:
            counts["thoughtsTokenCount"] = tokens(turn.reasoning)
        return {**counts, "totalTokenCount": sum(counts.values()) - counts["cachedContentTokenCount"]}


def _standard(data: str) -> str:
    """Return Base64 in the standard alphabet; the SDK sends the one for URLs."""
    return data.replace("-", "+").replace("_", "/")


_STANDINS = {_standard(one) for one in UNKNOWN_SIGNATURES} | {
    base64.b64encode(one.encode()).decode().rstrip("=") for one in UNKNOWN_SIGNATURES
}


def _accepted(call: Json) -> set[str]:
    return {signature(call["name"], call.get("args") or {}).rstrip("=")}


def _declarations(body: Json) -> list[Json]:
    return [one for tool in body.get("tools") or () for one in tool.get("functionDeclarations") or ()]


def _text(content: Json) -> str:
    return "\n".join(
        part["text"] for part in content.get("parts") or () if part.get("text") and not part.get("thought")
    )
