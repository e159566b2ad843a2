"""The model behind the stand-ins: it understands the messages of the conversations here."""

from __future__ import annotations

import base64
import json
import re

from tools.model_features import inventory, red_square

from tests.support.vendors.base import Call, Prompt, Turn

_INVENTORY = base64.b64encode(inventory()).decode()
_RED = red_square().partition("base64,")[2]
_SUM = re.compile(r"(?:a=)?(\d+)(?: and b=|\+)(\d+)")


def brain(prompt: Prompt) -> Turn:
    """Reply as a model does that follows instructions."""
    if "color" in prompt.user:
        return Turn(text="Red" if _RED in prompt.images else "none")
    if "`add`" in prompt.user:
        return _sums(prompt)
    if "apples" in prompt.user:
        return _apples(prompt)
    if prompt.user.startswith("What is the sum") and (prompt.schema or '"sum"' in prompt.system):
        return Turn(text=json.dumps({"sum": 5}))
    written = re.search(r"`(\w+)`", prompt.user)
    return Turn(text=written[1] if written else "I do not understand.")


def _sums(prompt: Prompt) -> Turn:
    wanted = [Call("add", {"a": int(a), "b": int(b)}) for a, b in _SUM.findall(prompt.user)]
    reasoning = "The user wants a sum, so I add." if prompt.effort or "Think" in prompt.user else ""
    left = wanted[len(prompt.results) :]
    if not left:
        return Turn(text=" and ".join(str(call.arguments["a"] + call.arguments["b"]) for call in wanted))
    calls = left if prompt.parallel else left[:1]
    return Turn(reasoning=reasoning, calls=tuple(calls), thinks_between=True)


def _apples(prompt: Prompt) -> Turn:
    # The SDK of Gemini writes the alphabet for URLs.
    if _INVENTORY in prompt.text.replace("-", "+").replace("_", "/"):
        return Turn(text="17")
    if not prompt.results:
        path = re.search(r"[\w.]+\.pdf", prompt.user)
        return Turn(calls=(Call("read_file", {"path": path[0] if path else "none"}),))
    found = re.search(r"Apples: (\d+)", prompt.results[-1])
    return Turn(text=found[1] if found else "none")
