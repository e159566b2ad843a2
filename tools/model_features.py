"""Find out which features of a model work, in one short conversation for each feature."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Awaitable, Callable
from typing import cast

from tools.model_talk import Talk

from banksman.agent.protocols.base import LoadedFile
from banksman.agent.protocols.structured import written_object
from banksman.agent.providers.base import Provider
from banksman.contracts.assistants import ModelOptions
from banksman.contracts.errors import BanksmanError
from banksman.contracts.messages import FilePart, ImagePart, TextPart
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject

Finding = str
"""What works: `yes`, a restriction in a few words, or `no`."""

ADD = ToolDefinition(
    name="add",
    description="Adds two integers.",
    input_schema={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
READ_FILE = ToolDefinition(
    name="read_file",
    description="Reads a text file of the workspace.",
    input_schema={
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    },
)
SUM_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}

CALL = "Call the tool `add` once, with a=2 and b=3. Then reply with the sum alone."
CALLS = "Call the tool `add` twice in one reply: 1+1 and 20+20. Then reply with both sums."
COLOR = "Which color does this image have? Reply with one word. If you see no image, reply with `none`."
APPLES = "How many apples does the attached file name? Read it, then reply with the number alone."
REASON = "Think carefully: call the tool `add` with a=17 and b=25. Then reply with the sum alone."
OBJECT = "What is the sum of 2 and 3?"
CONTEXT = "The inventory lists one item per line.\n" + "\n".join(
    f"Item {number} is on shelf {number % 17} in room {number % 23}." for number in range(500)
)
"""A prompt that is long enough for every vendor's cache."""


def execute(name: str, arguments: JsonObject) -> JsonObject:
    if name == "read_file":
        return {"success": True, "content": "Pears: 4\nApples: 17\n"}
    return {"success": True, "sum": cast(int, arguments["a"]) + cast(int, arguments["b"])}


def red_square() -> str:
    """Return a red image of 64 by 64 pixels as a data URL."""
    row = b"\0" + b"\xff\0\0" * 64

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * 64)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()


async def _tools(talk: Talk) -> Finding:
    talk.tools = (ADD,)
    text = await talk.say(CALL)
    calls = [call for reply in talk.replies for call in reply.calls]
    return "yes" if "5" in text and [call.name for call in calls] == ["add"] else "no"


async def _parallel_calls(talk: Talk) -> Finding:
    talk.tools = (ADD,)
    text = await talk.say(CALLS)
    if "40" not in text:
        return "no"
    return "yes" if len(talk.replies[0].calls) == 2 else "one at a time"


async def _images(talk: Talk) -> Finding:
    text = await talk.say((TextPart(text=COLOR), ImagePart(url=red_square())))
    return "yes" if "red" in text.lower() else "as a note"


def inventory() -> bytes:
    """Return a PDF document of one page with the number of apples."""
    text = b"BT /F1 24 Tf 72 700 Td (Apples: 17) Tj ET"
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>"
    objects = (
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        page,
        b"<</Length %d>>stream\n%s\nendstream" % (len(text), text),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    )
    body, offsets = b"%PDF-1.4\n", list[int]()
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 6\n0000000000 65535 f \n"
    return body + head + table + b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % len(body)


async def _documents(talk: Talk) -> Finding:
    async def load(_message: str, _path: str) -> LoadedFile:
        return LoadedFile("application/pdf", base64.b64encode(inventory()).decode())

    talk.tools, talk.load = (READ_FILE,), load
    text = await talk.say((TextPart(text=APPLES), FilePart(path="inventory.pdf")))
    called = any(call.name == "read_file" for reply in talk.replies for call in reply.calls)
    return ("with read_file" if called else "yes") if "17" in text else "no"


async def _reasoning(talk: Talk) -> Finding:
    talk.tools, talk.options = (ADD,), ModelOptions(reasoning_effort="low")
    if "42" not in await talk.say(REASON):
        return "no"
    shown = "shown" if talk.reasoning else "hidden"
    return f"{shown}, returned" if talk.replies[0].provider_state else shown


async def _structured_output(talk: Talk) -> Finding:
    talk.options = ModelOptions(response_schema=SUM_SCHEMA)
    return "yes" if written_object(await talk.say(OBJECT)) == {"sum": 5} else "no"


async def _caching(talk: Talk) -> Finding:
    talk.system = CONTEXT
    await talk.say("Reply with `ready`.")
    await talk.say("Reply with `done`.")
    return "yes" if talk.replies[-1].usage.cached_tokens else "not reported"


async def _usage(talk: Talk) -> Finding:
    await talk.say("Reply with `ready`.")
    usage = talk.replies[0].usage
    return "yes" if usage.input_tokens and usage.output_tokens else "not reported"


FEATURES: dict[str, Callable[[Talk], Awaitable[Finding]]] = {
    "tools": _tools,
    "parallel calls": _parallel_calls,
    "images": _images,
    "documents": _documents,
    "reasoning": _reasoning,
    "structured output": _structured_output,
    "caching": _caching,
    "usage": _usage,
}


async def features(provider: Provider, model: str, *, deadline_s: float = 60.0) -> dict[str, Finding]:
    """Return what works of each feature; a failed request counts as `no`, with its reason."""
    found: dict[str, Finding] = {}
    for name, probe in FEATURES.items():
        try:
            found[name] = await probe(Talk(provider, model, execute=execute, deadline_s=deadline_s))
        except (BanksmanError, RuntimeError) as error:
            found[name] = f"no: {error}"
    return found
