"""Find out which features of a model work, and score how well it follows the tool protocols.

    make try-model ARGS="openai:gpt-5-mini"
    make try-model ARGS="openai:qwen3 --base-url http://127.0.0.1:11434/v1 --protocol json_text"
    make try-model ARGS="gemini:gemini-3-pro-preview --base-url https://generativelanguage.googleapis.com/v1beta/openai"
    make try-model ARGS="anthropic:claude-haiku-4-5 --json"

Prompts, protocols and adapters are those of agents. The key is read from the variable that is named like the
provider, such as OPENAI_API_KEY or GEMINI_API_KEY. Results of tools are scripted, so nothing is executed. The
exit code is 1 if the score is below `--at-least`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import Any, get_args

from tools.feature_table import table
from tools.model_conversations import CONVERSATIONS, Conversation, Made, Transcript, result
from tools.model_features import features
from tools.model_talk import call_of

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import (
    Final,
    Malformed,
    ModelReply,
    ModelRequest,
    RequestedCall,
    RequestedCalls,
)
from banksman.agent.providers.base import DeltaKind, ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import BanksmanError
from banksman.contracts.live_output import ModelPause
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, ToolProtocol, UserMessage
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.tools import ToolCall, ToolResult, failed
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS
from banksman.prompting.enhance import enhance
from banksman.prompting.templates import DEFAULT_PROMPT
from banksman.runs.schema_checks.checker import argument_problem

MAX_REPLIES = 8
MAX_MALFORMED = 3
TOOLS = {tool.name: tool for tool in WORKSPACE_TOOLS}


class NoDeltas:
    """Discards the pieces of a reply."""

    async def write(self, kind: DeltaKind, text: str) -> None:
        """Discard a piece."""

    async def restart(self) -> None:
        """Discard all pieces."""

    async def waiting(self, pause: ModelPause) -> None:
        """Do nothing while a request waits for its next attempt."""


class Player:
    """Runs one scripted conversation with a model."""

    def __init__(self, providers: Providers, model: str, protocol: ToolProtocol, timeout_s: float) -> None:
        self._provider, self._model = providers.choose(model)
        self._name: ToolProtocol = protocol
        self._protocol = protocol_for(protocol)
        self._timeout_s = timeout_s
        self._system = enhance(DEFAULT_PROMPT, WORKSPACE_TOOLS, protocol).text

    async def play(self, conversation: Conversation) -> Transcript:
        """Return the transcript; a failed request ends the conversation."""
        transcript = Transcript()
        history: list[Message] = [UserMessage(message_id="m0", content=conversation.message)]
        try:
            for number in range(1, MAX_REPLIES + 1):
                reply = await self._reply(history)
                if self._read(reply, f"m{number}", history, transcript):
                    return transcript
        except BanksmanError as error:
            transcript.ended = f"the request failed: {error}"
            return transcript
        transcript.ended = f"no end after {MAX_REPLIES} replies"
        return transcript

    async def _reply(self, history: list[Message]) -> ModelReply:
        options = ModelOptions(max_tokens=2_000)
        request = ModelRequest(self._model, self._system, tuple(history), WORKSPACE_TOOLS, options)
        prepared = self._protocol.prepare(request)
        return await self._provider.complete(prepared, deltas=NoDeltas(), deadline_s=self._timeout_s)

    def _read(self, reply: ModelReply, id: str, history: list[Message], transcript: Transcript) -> bool:
        """Add a reply and its results; return whether the conversation has ended."""
        attempt = _malformed_in_row(history) + 1
        match self._protocol.read(reply, attempt=attempt, tools=WORKSPACE_TOOLS):
            case Final(text=text):
                transcript.answer, transcript.ended = text, "answer"
                return True
            case Malformed(error=error, correction=correction):
                transcript.malformed.append(error)
                history.append(self._message(id, reply, reply.text))
                history.append(UserMessage(message_id=f"{id}-correction", content=correction))
                transcript.ended = f"{MAX_MALFORMED} malformed replies in a row"
                return attempt >= MAX_MALFORMED
            case RequestedCalls(text=text, calls=requested):
                calls = [call_of(one, f"{id}-{index}") for index, one in enumerate(requested)]
                history.append(self._message(id, reply, text, tuple(calls)))
                for one, call in zip(requested, calls, strict=True):
                    history.append(ToolMessage(name=call.name, result=_result(one, call, transcript)))
                transcript.ended = "terminate"
                return any(call.terminate for call in calls)

    def _message(
        self, id: str, reply: ModelReply, text: str | None, calls: tuple[ToolCall, ...] = ()
    ) -> AssistantMessage:
        return AssistantMessage(
            message_id=id,
            content=text,
            calls=calls,
            protocol=self._name,
            provider=self._provider.name,
            provider_state=reply.provider_state,
        )


def _malformed_in_row(history: list[Message]) -> int:
    count = 0
    for message in reversed(history):
        match message:
            case UserMessage(message_id=id) if id.endswith("-correction"):
                count += 1
            case AssistantMessage(calls=()):
                continue
            case _:
                break
    return count


def _result(requested: RequestedCall, call: ToolCall, transcript: Transcript) -> ToolResult:
    transcript.calls.append(Made(call.name, call.arguments, call.terminate))
    tool = TOOLS.get(call.name)
    problem = requested.arguments_error
    if tool is not None and problem is None:
        found = argument_problem(tool.input_schema, call.arguments)
        problem = None if found is None else str(found)
    if tool is None or problem is not None:
        kind = "unknown_tool" if tool is None else "invalid_arguments"
        text = problem or f"There is no tool {call.name!r}. Tools: {', '.join(TOOLS)}."
        transcript.failed.append(text)
        return failed(call.id, kind, text)
    content = result(call.name, call.arguments)
    return ToolResult(tool_call_id=call.id, content=content, is_error=content["success"] is False)


def _judged(conversation: Conversation, transcript: Transcript) -> dict[str, Any]:
    checks = {
        **{name: check(transcript) for name, check in conversation.checks.items()},
        "writes every call correctly": not transcript.malformed and not transcript.failed,
    }
    return {
        "conversation": conversation.name,
        "checks": checks,
        "points": sum(checks.values()) / len(checks),
        "ended": transcript.ended,
        "malformed": transcript.malformed,
        "failed": transcript.failed,
    }


async def _tried(options: argparse.Namespace) -> dict[str, Any]:
    providers = Providers(_settings(options))
    found: dict[str, Any] = {"model": options.model, "protocols": {}}
    try:
        if options.only != "features":
            found["protocols"] = await _scores(providers, options)
        if options.only != "score":
            provider, model = providers.choose(options.model)
            found["features"] = await features(provider, model, deadline_s=options.timeout)
    finally:
        await providers.close()
    return found


async def _scores(providers: Providers, options: argparse.Namespace) -> dict[str, Any]:
    protocols = get_args(ToolProtocol) if options.protocol == "both" else (options.protocol,)
    found: dict[str, Any] = {}
    for protocol in protocols:
        player = Player(providers, options.model, protocol, options.timeout)
        judged = [_judged(one, await player.play(one)) for one in CONVERSATIONS]
        score = round(100 * sum(one["points"] for one in judged) / len(judged), 1)
        found[protocol] = {"score": score, "conversations": judged}
    return found


def _settings(options: argparse.Namespace) -> ProviderSettings:
    """Return the settings of the model's provider; one that has no default address needs `--base-url`."""
    name = options.model.partition(":")[0]
    key = os.environ.get(f"{name.upper().replace('-', '_')}_API_KEY") or None
    known = ProviderSettings().entries.get(name)
    entry = {} if known is None else known.model_dump(exclude_none=True)
    given = {"base_url": options.base_url, "api": options.api, "vendor": options.vendor, "api_key": key}
    entry |= {field: value for field, value in given.items() if value}
    return ProviderSettings.model_validate({"providers": {name: entry}} if "base_url" in entry else {})


def _report(found: dict[str, Any]) -> None:
    for protocol, tried in found["protocols"].items():
        print(f"{found['model']}, {protocol}: {tried['score']} of 100")
        for one in tried["conversations"]:
            print(f"  {'✓' if one['points'] == 1 else '✗'} {one['conversation']}")
            for check in (name for name, passed in one["checks"].items() if not passed):
                print(f"      not: {check}")
            for problem in (*one["malformed"], *one["failed"]):
                print(f"      {problem[:160]}")
            if one["points"] < 1:
                print(f"      ended: {one['ended'][:160]}")
    if "features" in found:
        print(table({found["model"]: found["features"]}, first="model"))
        for feature, finding in found["features"].items():
            if finding.startswith("no:"):
                print(f"{feature}: {finding[:300]}")


def main() -> int:
    """Try a model; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Try the features of a model, and score how well it follows the tool protocols.",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "model", help="provider:model; a provider besides openai and anthropic needs --base-url"
    )
    parser.add_argument("--base-url", help="base URL of a compatible server; default: the vendor's")
    parser.add_argument("--api", help="the API of the provider, see docs/models.md; default: chat")
    parser.add_argument("--vendor", help="the vendor in the profiles; default: found by the address")
    parser.add_argument("--only", choices=("score", "features"), help="default: both")
    parser.add_argument("--protocol", choices=("both", *get_args(ToolProtocol)), default="both")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one reply")
    parser.add_argument("--at-least", type=float, default=0.0, help="score below which the exit code is 1")
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")
    options = parser.parse_args()
    try:
        found = asyncio.run(_tried(options))
    except BanksmanError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _report(found)
    return int(any(tried["score"] < options.at_least for tried in found["protocols"].values()))


if __name__ == "__main__":
    sys.exit(main())
