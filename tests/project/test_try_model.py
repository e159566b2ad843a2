"""`make try-model`: conversations with any model behind the APIs of OpenAI and Anthropic, and a score."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.model_server import ModelServer
from tests.support.paths import ROOT
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.timeouts import deadline
from tests.support.vendors.xai import XAI
from tests.vendors.brain import brain

Write = Callable[..., ScriptedReply]
POEM = 'She said "hi".\nC:\\temp'


async def tried(*arguments: str) -> tuple[int | None, str]:
    """Return the exit code and the output of the tool."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.try_model", *arguments),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with deadline("the tool did not end"):
        output, _ = await process.communicate()
    return process.returncode, output.decode()


def as_text(name: str, *, terminate: bool = False, **arguments: Any) -> ScriptedReply:
    return ScriptedReply(text=json.dumps({"tool": name, "parameters": arguments, "terminate": terminate}))


def natively(name: str, *, terminate: bool = False, **arguments: Any) -> ScriptedReply:
    ends = {"terminate": True} if terminate else {}
    return ScriptedReply(tool_calls=(ScriptedCall(name=name, arguments={**arguments, **ends}),))


def perfect(call: Write) -> list[ScriptedReply]:
    """Return the replies of a model that does everything right."""
    return [
        ScriptedReply(text="42"),
        *(call("read_file", path="notes.txt"), ScriptedReply(text="It is banana.")),
        *(
            call("read_file", path="first.txt"),
            call("read_file", path="second.txt"),
            ScriptedReply(text="heron"),
        ),
        *(call("read_file", path="absent.txt"), ScriptedReply(text="There is no such file.")),
        call("bash", terminate=True, command="echo lifted"),
        *(call("bash", command="echo lifted"), ScriptedReply(text="sublatus")),
        *(call("write_file", path="poem.txt", content=POEM), ScriptedReply(text="Written.")),
        *(call("bash", command="echo lifted", timeout_s=5), ScriptedReply(text="done")),
        ScriptedReply(text="No tool of mine sends e-mail."),
        ScriptedReply(text='{"colour": "blue", "count": 3}'),
    ]


@pytest.mark.parametrize(
    ("vendor", "protocol", "call"),
    [
        ("openai", "json_text", as_text),
        ("openai", "native", natively),
        ("anthropic", "json_text", as_text),
        ("anthropic", "native", natively),
    ],
)
async def test_a_perfect_model_has_all_points_over_both_wires(
    vendor: str, protocol: str, call: Write
) -> None:
    """R37, R113: prompts and adapters are those of agents, so a score reflects the replies that users get."""
    async with ModelServer.running() as server:
        model = f"{vendor}:{server.play('perfect', perfect(call), by='count')}"
        url = server.openai_url if vendor == "openai" else server.url
        code, output = await tried(
            model, "--base-url", url, "--protocol", protocol, "--json", "--only", "score", "--at-least", "100"
        )

        found = json.loads(output)["protocols"][protocol]
        wrong = [one for one in found["conversations"] if one["points"] < 1]
        assert (code, found["score"], wrong) == (0, 100.0, [])
        assert len(found["conversations"]) >= 10 and server.violations == []


async def test_mistakes_cost_points_and_are_named() -> None:
    """R37: a malformed call that is corrected, an unknown tool, and a call without need."""
    replies = perfect(as_text)
    replies[0] = as_text("calculator", expression="6*7")
    replies[1:1] = [
        ScriptedReply(text="42"),
        ScriptedReply(text="{'tool': 'read_file', 'parameters': {'path': 'notes.txt'}}"),
    ]
    async with ModelServer.running() as server:
        model = f"openai:{server.play('clumsy', replies, by='count')}"
        code, output = await tried(
            model,
            "--base-url",
            server.openai_url,
            "--protocol",
            "json_text",
            "--only",
            "score",
            "--at-least",
            "95",
        )

    assert code == 1
    assert "90.0 of 100" in output and "not: makes no call" in output
    assert "keys must be" in output and "There is no tool 'calculator'" in output


async def test_the_features_of_an_endpoint_are_a_row_of_the_table() -> None:
    async with XAI.running(brain) as server:
        address = ("--base-url", f"{server.url}{server.prefix}", "--vendor", server.vendor)
        code, output = await tried(f"somewhere:{server.model}", *address, "--only", "features")

    assert code == 0
    assert output.splitlines()[0].startswith("| model | tools | parallel calls | images | documents |")
    assert f"| somewhere:{server.model} | yes | yes | yes | with read_file |" in output


async def test_an_unknown_provider_is_named() -> None:
    code, output = await tried("nowhere:model")

    assert (code, output) == (2, "")
