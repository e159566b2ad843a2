from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from banksman.model_server.chat import RequestRefused, ValidatedRequest, model_not_found
from banksman.model_server.demo import demo_reply
from banksman.model_server.script import RawReply, Script, ScriptedReply

DEMO_MODEL = "demo"
_SCRIPTED_PREFIX = "scripted/"


def scripted_model(name: str) -> str:
    return _SCRIPTED_PREFIX + name


def script_name(model: str) -> str | None:
    """Return the script of a model name, or None if the model is not scripted."""
    return model.removeprefix(_SCRIPTED_PREFIX) if model.startswith(_SCRIPTED_PREFIX) else None


@dataclass(frozen=True, slots=True)
class ChosenReply:
    reply: ScriptedReply | RawReply
    derived_ids_of: str | None = None
    """Script from which call ids are derived; None: random ids."""


class Models:
    """The models of a server: the demo and the loaded scripts."""

    def __init__(self, demo_chunk_delay_s: float) -> None:
        self._demo_chunk_delay_s = demo_chunk_delay_s
        self._scripts: dict[str, Script] = {}
        self._played: Counter[str] = Counter()
        self._faulted: Counter[tuple[str, str, int]] = Counter()

    def load(self, name: str, script: Script) -> str:
        """Add or replace a script, reset its counters and return its model name."""
        self.unload(name)
        self._scripts[name] = script
        return scripted_model(name)

    def unload(self, name: str) -> None:
        self._scripts.pop(name, None)
        self._played.pop(name, None)
        for key in [key for key in self._faulted if key[0] == name]:
            del self._faulted[key]

    def names(self) -> list[str]:
        """Return the model names, the demo first."""
        return [DEMO_MODEL, *map(scripted_model, self._scripts)]

    def reply(self, chat: ValidatedRequest) -> ChosenReply:
        """Choose the reply to a request.

        Raises:
            RequestRefused: the model does not exist, or its script has no further replies.
        """
        if chat.model == DEMO_MODEL:
            return ChosenReply(demo_reply(chat, chunk_delay_s=self._demo_chunk_delay_s))
        name = script_name(chat.model)
        script = self._scripts.get(name) if name is not None else None
        if name is None or script is None:
            raise model_not_found(chat.model)
        return self._scripted(name, script, chat)

    def _scripted(self, name: str, script: Script, chat: ValidatedRequest) -> ChosenReply:
        index = chat.position if script.by == "position" else self._played[name]
        self._played[name] += 1
        reply = _reply_at(name, script, index)
        if isinstance(reply, ScriptedReply) and reply.fault is not None and reply.fault.times is not None:
            key = (name, chat.conversation, index if script.by == "position" else 0)
            self._faulted[key] += 1
            if self._faulted[key] > reply.fault.times:
                reply = reply.model_copy(update={"fault": None})
        return ChosenReply(reply, name if script.call_ids == "derived" else None)


def _reply_at(name: str, script: Script, index: int) -> ScriptedReply | RawReply:
    if index < len(script.replies):
        return script.replies[index]
    match script.at_end:
        case "repeat":
            return script.replies[-1]
        case "loop":
            return script.replies[index % len(script.replies)]
        case "refuse":
            raise RequestRefused(
                f"The script `{name}` has {len(script.replies)} replies; number {index + 1} was requested.",
                param="messages",
                code="script_exhausted",
            )
