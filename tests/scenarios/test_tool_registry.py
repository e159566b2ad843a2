"""Tools that other processes register and serve (spec 002)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from banksman.bus.connection import NatsSettings
from banksman.bus.errors import RemoteError
from banksman.contracts.errors import ErrorCode
from banksman.contracts.ids import new_id
from banksman.contracts.registry import ListedTool
from banksman.sdk import Client as NatsClient
from banksman.sdk import Toolbox, ToolServer
from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client, Frame
from tests.support.paths import ROOT
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

EXAMPLES = ROOT / "examples"
WEATHER = "get_current_weather"


def local(system: System) -> NatsSettings:
    """The NATS settings of a service on this machine, from the file that `banksman up` writes."""
    context = json.loads((system.data_dir / "nats-context.json").read_text())
    return NatsSettings(url=context["url"], nkey_seed_file=context["nkey"], connect_timeout_s=WAIT_TIMEOUT_S)


@pytest.fixture
async def observer(system: System) -> AsyncGenerator[ToolServer]:
    """A tool server whose connection is only used to list registrations."""
    box = Toolbox()

    @box.tool(name=new_id("nothing-"))
    def nothing() -> None:
        """Do nothing."""

    async with ToolServer(new_id("observer-"), box, nats=local(system), drain_s=0) as server:
        yield server


async def listed(observer: ToolServer, name: str) -> ListedTool | None:
    """Return a tool as the registry lists it."""
    return next((one for one in await observer.list() if one.definition.name == name), None)


async def when(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a state of the registry, which publishes no events."""
    await eventually(holds, 40, interval_s=0.05)


async def served(observer: ToolServer, name: str, instances: int = 1) -> None:
    """Wait until `instances` processes serve a tool."""

    async def holds() -> bool:
        one = await listed(observer, name)
        return (one.instances if one else 0) == instances

    await when(holds)


@asynccontextmanager
async def process(
    system: System, *command: str, stdout: int | None = None
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a tool server in its own process beside the system."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("BANKSMAN_", "NATS_"))}
    running = await asyncio.create_subprocess_exec(
        *command, env={**environment, "BANKSMAN_DATA_DIR": str(system.data_dir)}, stdout=stdout
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.terminate()
        async with deadline(f"{command[0]} did not end after SIGTERM"):
            await running.wait()


@pytest.fixture
async def weather(observer: ToolServer) -> None:
    """The weather tool that is part of the system, once it is registered."""
    await served(observer, WEATHER)


def call(name: str, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


def results(client: Client, conversation: str) -> list[Frame]:
    """Return the results of a conversation's calls in the order in which they ended."""
    return [event["data"] for event in client.events(conversation, "tool_call.completed")]


def offered(model: ScriptedModel, name: str, request: int = -1) -> set[str]:
    """Return the names of the tools that a request offers."""
    tools = model_requests(model, name)[request].get("tools", [])
    return {str(one["function"]["name"]) for one in tools}


async def test_the_weather_tool_is_registered_when_the_system_starts(observer: ToolServer) -> None:
    """R42, R43, R51, R60, R61: on load, with name, description and a required string."""
    await served(observer, WEATHER)
    found = await listed(observer, WEATHER)

    assert found is not None
    assert found.definition.description == "Get the current weather for a location."
    schema = cast(dict[str, Any], found.definition.input_schema)
    assert (schema["type"], schema["required"]) == ("object", ["location"])
    assert schema["properties"]["location"]["type"] == "string"
    assert "City and state" in schema["properties"]["location"]["description"]


@pytest.mark.usefixtures("weather")
async def test_the_example_is_the_same_tool_and_shares_its_calls(
    system: System, observer: ToolServer
) -> None:
    """R61: a program that anyone starts, and the tool that the system serves, register alike."""
    before = await listed(observer, WEATHER)
    async with process(system, sys.executable, str(EXAMPLES / "weather_tool.py")):
        await served(observer, WEATHER, instances=2)
        after = await listed(observer, WEATHER)

    assert before is not None and after is not None
    assert after.definition == before.definition


@pytest.mark.usefixtures("weather")
async def test_tools_are_listed_and_read_by_name_over_every_interface(
    http: httpx.AsyncClient, nats: NatsClient, observer: ToolServer
) -> None:
    """R42, R43: the tools that models are offered: built-in ones, and registered ones with their owner."""
    listed_tools = (await http.get("/context/tools")).json()["items"]
    read = (await http.get(f"/context/tools/{WEATHER}")).json()
    over_nats = {tool.name: tool for tool in await nats.tools()}
    builtin, unknown = await nats.tool("read_file"), await http.get("/context/tools/no_such_tool")
    with pytest.raises(RemoteError) as refused:
        await nats.tool("no_such_tool")
    of_registry = [one.definition.name for one in await observer.list()]

    by_name = {tool["name"]: tool for tool in listed_tools}
    builtins = ["bash", "read_file", "edit_file", "write_file", "web_fetch", "search_code"]
    assert [tool["name"] for tool in listed_tools][:6] == builtins
    assert by_name[WEATHER] == read == over_nats[WEATHER].model_dump(mode="json")
    assert (read["owner"], read["requires_approval"], read["available"]) == ("weather", False, True)
    assert read["input_schema"]["required"] == ["location"] and read["category"] == "weather"
    assert (builtin.owner, builtin.category, builtin.tenant) == ("builtin", "workspace", None)
    assert by_name["read_file"] == builtin.model_dump(mode="json")
    assert (unknown.status_code, refused.value.code) == (404, ErrorCode.NOT_FOUND)
    assert {"bash", "read_file", "write_file", "web_fetch", WEATHER} <= set(of_registry)


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
@pytest.mark.usefixtures("weather")
async def test_the_model_calls_the_weather_tool_and_receives_sunny_weather(
    client: Client, play: Play, vendor: str
) -> None:
    """R45, R59, R60: the function gets the arguments, and its value is returned as JSON."""
    name = play(
        ScriptedReply(tool_calls=(call(WEATHER, location="Oslo, Norway"),)),
        ScriptedReply(text="Sunny."),
        vendor=vendor,
    )
    conversation = await client.create(name)

    outcome = await client.run(conversation, "How is the weather in Oslo?")

    assert outcome["content"] == "Sunny."
    [tracked] = outcome["tool_calls"]
    result = tracked["result"]
    assert (result["success"], result["condition"], result["location"]) == (True, "Sunny", "Oslo, Norway")
    assert 65 <= result["temperature"] <= 75


@pytest.mark.usefixtures("weather")
async def test_a_missing_location_is_named(client: Client, play: Play) -> None:
    """R53, R60: the error names the parameter and the reason; the model continues."""
    conversation = await client.create(
        play(ScriptedReply(tool_calls=(call(WEATHER),)), ScriptedReply(text="Where?"))
    )

    outcome = await client.run(conversation, "weather?")

    [result] = results(client, conversation)
    assert result["error_kind"] == "invalid_arguments"
    assert "location is required" in result["content"]["error"]
    assert outcome["content"] == "Where?"


@pytest.mark.usefixtures("weather")
async def test_an_unknown_tool_does_not_prevent_a_registered_one_from_running(
    client: Client, play: Play
) -> None:
    """R50: the error names the tool; the other call of the reply runs."""
    batch = ScriptedReply(tool_calls=(call("get_tides"), call(WEATHER, location="Rome")))
    conversation = await client.create(play(batch, ScriptedReply(text="ok")))

    outcome = await client.run(conversation, "go")

    unknown, known = outcome["tool_calls"]
    assert "get_tides" in unknown["result"]["error"]
    assert known["result"]["condition"] == "Sunny"


@pytest.mark.usefixtures("weather")
async def test_second_server_with_the_same_name_is_refused_and_the_first_stays(
    system: System, observer: ToolServer, client: Client, play: Play
) -> None:
    """R44: a clear error, the first unchanged and still called."""
    first = await listed(observer, WEATHER)
    box = Toolbox()

    @box.tool(name=WEATHER)
    def another() -> str:
        """Return rainy weather."""
        return "rain"

    with pytest.raises(
        RemoteError, match="'get_current_weather' is already registered by server 'weather'"
    ) as no:
        async with ToolServer("rain", box, nats=local(system)):
            pass

    assert no.value.code == ErrorCode.CONFLICT
    assert await listed(observer, WEATHER) == first
    conversation = await client.create(
        play(ScriptedReply(tool_calls=(call(WEATHER, location="Rome"),)), ScriptedReply(text="ok"))
    )
    outcome = await client.run(conversation, "go")
    assert outcome["tool_calls"][0]["result"]["condition"] == "Sunny"


@pytest.fixture
async def faulty(system: System) -> AsyncGenerator[Callable[[str], str]]:
    """A server whose tools each fail differently; yields a function that returns a tool's full name."""
    box, suffix = Toolbox(), new_id("-")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

    @box.tool(name=f"raises{suffix}")
    def raises() -> None:
        """Fail."""
        raise ValueError("the moon is in the wrong house")

    @box.tool(name=f"unwritable{suffix}")
    def unwritable() -> object:
        """Return a value that JSON cannot represent."""
        return object()

    @box.tool(name=f"infinite{suffix}")
    def infinite() -> float:
        """Return an infinite number."""
        return float("inf")

    @box.tool(name=f"fetches{suffix}")
    async def fetches() -> str:
        """Request a server that is not running."""
        async with httpx.AsyncClient(trust_env=False) as http:
            return (await http.get(f"http://127.0.0.1:{port}/")).text

    @box.tool(name=f"waits{suffix}", timeout_s=0.3)
    async def waits() -> None:
        """Wait for an event that never occurs."""
        await asyncio.Event().wait()

    @box.tool(name=f"blocks{suffix}", timeout_s=0.3)
    def blocks() -> None:
        """Read from a pipe without a writer."""
        reader, writer = os.pipe()
        with os.fdopen(reader) as pipe, os.fdopen(writer, "w"):
            pipe.read(1)

    @box.tool(name=f"forked{suffix}", timeout_s=0.3, process=True)
    def forked() -> None:
        """Wait for a signal."""
        signal.pause()

    @box.tool(name=f"plain{suffix}")
    def plain() -> int:
        """Return a number."""
        return 7

    async with ToolServer(new_id("faulty-"), box, nats=local(system), drain_s=0):
        yield lambda name: f"{name}{suffix}"


@pytest.mark.parametrize(
    ("tool", "kind", "message"),
    [
        ("raises", "tool_error", "ValueError: the moon is in the wrong house"),
        ("unwritable", "tool_error", "returned a value of type object that cannot be written as JSON"),
        ("infinite", "tool_error", "returned a value of type float that cannot be written as JSON"),
        ("fetches", "tool_error", "ConnectError"),
        ("waits", "timeout", "timeout of 0.3 s"),
        ("blocks", "unknown_outcome", "timeout of 0.3 s; it could not be ended"),
        ("forked", "timeout", "timeout of 0.3 s"),
    ],
)
async def test_a_failing_tool_returns_an_error_and_others_run(
    client: Client, play: Play, faulty: Callable[[str], str], tool: str, kind: str, message: str
) -> None:
    """R46, R47, R52, R54, R55: the error is structured; a tool without arguments runs in parallel."""
    batch = ScriptedReply(tool_calls=(call(faulty(tool)), call(faulty("plain"))))
    conversation = await client.create(play(batch, ScriptedReply(text="I see.")))

    outcome = await client.run(conversation, "go")

    assert outcome["content"] == "I see."
    by_id = {result["tool_call_id"]: result for result in results(client, conversation)}
    requested = [e["data"] for e in client.events(conversation, "tool_call.requested")]
    failed, fine = (by_id[one["tool_call_id"]] for one in requested)
    assert (failed["error_kind"], failed["content"]["success"]) == (kind, False)
    assert message in failed["content"]["error"]
    assert fine["content"] == {"success": True, "result": 7}


@pytest.mark.usefixtures("weather")
async def test_an_assistant_is_given_every_registered_tool(
    system: System, client: Client, play: Play, model: ScriptedModel
) -> None:
    """R56, R57, R58: with tools on, all; with tools off, text only, until it is updated."""
    name = play(ScriptedReply(text="Hello."))
    async with httpx.AsyncClient(base_url=system.url, trust_env=False) as http:
        made = {}
        for tools in ({"enabled": True}, {}):
            reply = await http.post("/context/assistants", json={"model": name, "tools": tools})
            made[bool(tools)] = reply.json()["id"]

        await client.run(await client.create(assistant=made[True]), "go")
        assert WEATHER in offered(model, name) and "bash" in offered(model, name)

        conversation = await client.create(assistant=made[False])
        outcome = await client.run(conversation, "go")
        assert (outcome["content"], offered(model, name)) == ("Hello.", set())

        update = {"model": name, "tools": {"enabled": True}}
        assert (await http.put(f"/context/assistants/{made[False]}", json=update)).status_code == 200
        await client.run(await client.create(assistant=made[False]), "go")
        assert WEATHER in offered(model, name)


async def test_a_tool_registered_later_is_offered_in_the_next_run(
    system: System, client: Client, play: Play, model: ScriptedModel
) -> None:
    """R58: the conversation began without the tool."""
    name = play(ScriptedReply(text="one"), ScriptedReply(text="two"))
    conversation = await client.create(name)
    await client.run(conversation, "go")
    box, later = Toolbox(), new_id("later-")

    @box.tool(name=later)
    def comes_later() -> None:
        """Do nothing."""

    async with ToolServer(new_id("later-"), box, nats=local(system)):
        await client.run(conversation, "go on")

    assert later not in offered(model, name, 0)
    assert later in offered(model, name, 1)


async def test_replicas_of_a_tool_server_share_its_calls(system: System, client: Client, play: Play) -> None:
    """R114: each call ends only when both run, and each process accepts one at a time."""
    name, server = new_id("meet-"), new_id("replicas-")
    meeting = asyncio.Barrier(2)

    def replica(number: int) -> ToolServer:
        box = Toolbox()

        @box.tool(name=name)
        async def meet() -> int:
            """Wait for the other."""
            await meeting.wait()
            return number

        return ToolServer(server, box, nats=local(system), capacity=1)

    async with replica(1), replica(2):
        batch = ScriptedReply(tool_calls=(call(name), call(name)))
        conversation = await client.create(play(batch, ScriptedReply(text="met")))
        outcome = await client.run(conversation, "go")

    assert {one["result"]["result"] for one in outcome["tool_calls"]} == {1, 2}


async def test_a_killed_server_is_no_longer_offered(
    system: System, client: Client, play: Play, model: ScriptedModel, observer: ToolServer, tmp_path: Path
) -> None:
    """R57: no process withdrew it; its lease expired."""
    tool, file = new_id("hang-"), tmp_path / "hangs.py"
    file.write_text(HANGS)
    name = play(ScriptedReply(text="one"), ScriptedReply(text="two"))
    async with process(system, sys.executable, str(file), tool) as running:
        await served(observer, tool)
        await client.run(await client.create(name), "hang?")
        running.kill()
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await served(observer, tool, instances=0)

    await client.run(await client.create(name), "hang?")

    assert tool in offered(model, name, request=0)
    assert tool not in offered(model, name)


async def test_a_tool_in_javascript_is_offered_called_and_withdrawn(
    system: System,
    client: Client,
    play: Play,
    model: ScriptedModel,
    observer: ToolServer,
    node_examples: Path,
) -> None:
    """R18, R114: with the plain NATS client; an error also names an invalid argument."""
    tool = "get_current_time"
    batch = ScriptedReply(tool_calls=(call(tool, timezone="Europe/Oslo"), call(tool, timezone="Mars/Utopia")))
    name = play(batch, ScriptedReply(text="It is late."))
    async with process(system, "node", str(node_examples / "clock_tool.mjs")) as running:
        await served(observer, tool)
        conversation = await client.create(name)
        outcome = await client.run(conversation, "How late is it?")
        running.terminate()
        async with deadline("the tool server did not end after SIGTERM"):
            await running.wait()

    assert outcome["content"] == "It is late."
    assert tool in offered(model, name, 0)
    # In the order in which they ended.
    mars, oslo = sorted(outcome["tool_calls"], key=lambda tracked: tracked["result"]["success"])
    assert (oslo["result"]["success"], oslo["result"]["timezone"]) == (True, "Europe/Oslo")
    assert "timezone" in mars["result"]["error"] and "Mars/Utopia" in mars["result"]["error"]
    assert {result["runner"] for result in results(client, conversation)} == {"clock"}
    await served(observer, tool, instances=0)


HANGS = """
import signal, sys
from banksman.sdk import ToolServer, tool

@tool(name=sys.argv[1])
def hang() -> None:
    "Hang."
    print("hanging", flush=True)
    signal.pause()

ToolServer(sys.argv[1]).run()
"""


async def test_a_call_of_a_killed_server_has_an_unknown_outcome_and_is_not_repeated(
    system: System, client: Client, play: Play, observer: ToolServer, tmp_path: Path
) -> None:
    """P5: it had started; another process of the server exists and does not run it again."""
    name = new_id("hang-")
    file = tmp_path / "hangs.py"
    file.write_text(HANGS)
    command = (sys.executable, str(file), name)
    async with process(system, *command) as first:
        await served(observer, name)
        conversation = await client.create(
            play(ScriptedReply(tool_calls=(call(name),)), ScriptedReply(text="I will look."))
        )
        run_id = await client.chat(conversation, "go")
        await client.event("tool_call.started", run_id=run_id)
        async with process(system, *command):
            await served(observer, name, instances=2)
            first.kill()
            outcome = await client.finished(run_id)

    assert outcome["content"] == "I will look."
    [result] = results(client, conversation)
    assert result["error_kind"] == "unknown_outcome"
    assert [e["type"] for e in client.events(conversation, "tool_call.completed")] == ["tool_call.completed"]


async def test_a_cancel_ends_the_call_of_a_tool_server(system: System, client: Client, play: Play) -> None:
    """The function is cancelled, and its clean-up runs."""
    box, name = Toolbox(), new_id("waits-")
    cleaned_up = asyncio.Event()

    @box.tool(name=name)
    async def waits() -> None:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    async with ToolServer(new_id("waits-"), box, nats=local(system)):
        conversation = await client.create(play(ScriptedReply(tool_calls=(call(name),))))
        run_id = await client.chat(conversation, "go")
        await client.event("tool_call.started", run_id=run_id)
        await client.request("run.cancel", run_id=run_id)
        outcome = await client.finished(run_id)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await cleaned_up.wait()

    assert outcome["status"] == "cancelled"
    [result] = results(client, conversation)
    assert result["error_kind"] == "cancelled"
