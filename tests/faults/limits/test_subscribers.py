"""Subscriptions of services, read from their source: core subscriptions do not read durable subjects
(A20)."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import httpx
import pytest

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.names import api
from banksman.contracts import subjects
from banksman.contracts.subjects import ANY
from banksman.deployment.topology import StorageBudget, app_topology
from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.paths import ROOT
from tests.support.scripted_models import ScriptedReply
from tests.support.system import System

BROKER = re.compile(r"\b(Nats|Connected)Broker\b")
"""FastStream's class, and our only subclass of it."""
SOURCES = [
    path
    for root in ("shared/banksman", "services")
    for path in sorted((ROOT / root).rglob("*.py"))
    if "testing" not in path.parts
]
CLIENTS = {"sdk", "cli"}
"""Packages that are notified of approvals, and can also list all open ones."""
DURABLE = {
    "run_work",
    "run_signal",
    "approval_request",
    "approval_reply",
    "workflow_run",
    "timer_fired",
    "dead",
}
"""Functions of `contracts.subjects` whose messages wait in a stream until they are handled."""
LISTENS = {"subscribe", "subscriber", "listen"}


@cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Return every call of a module, with the name of the function."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    found = [(_called(node), node) for node in nodes if isinstance(node, ast.Call)]
    return [(name, node) for name, node in found if name is not None]


def _called(call: ast.Call) -> str | None:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return None


def names_in(call: ast.Call) -> set[str]:
    """Return the names of functions called within a call's arguments."""
    inner = (node for argument in call.args for node in ast.walk(argument))
    return {node.attr for node in inner if isinstance(node, ast.Attribute)}


def where(path: Path, call: ast.Call) -> str:
    return f"{path.relative_to(ROOT)}:{call.lineno}"


def test_no_subscriber_of_faststream_reads_a_stream() -> None:
    """A20: FastStream's default deletes a message whose handler raises; `queues.work` reads streams."""
    subscribers = [(path, call) for path in SOURCES for name, call in calls(path) if name == "subscriber"]
    of_streams = [where(path, call) for path, call in subscribers if _of_stream(call)]

    assert len(subscribers) >= 10
    assert of_streams == []


def test_every_subscriber_is_served_by_the_control_plane() -> None:
    """A20: subscribers are declared on routers, and the only broker that serves routers adds our rules."""
    declared = {path for path in SOURCES for name, _ in calls(path) if name == "subscriber"}
    routers = {path for path in SOURCES for name, _ in calls(path) if name == "NatsRouter"}
    brokers = {path for path in SOURCES if BROKER.search(path.read_text(encoding="utf-8"))}

    assert declared == routers
    assert {path.name for path in declared} == {"calls.py", "endpoints.py", "router.py"}
    assert {str(path.relative_to(ROOT / "shared/banksman")) for path in brokers} == {
        "library_internals/faststream_nats.py",
        "bus/control_plane/broker.py",
    }


def test_no_core_subscription_reads_a_durable_subject() -> None:
    """A20: a slow or absent subscriber loses messages that a consumer of the stream would retain."""
    services = [path for path in SOURCES if not CLIENTS & set(path.parts)]
    listening = [
        (path, call)
        for path in services
        for name, call in calls(path)
        if name in LISTENS and not _of_stream(call)
    ]
    wrong = [where(path, call) for path, call in listening if names_in(call) & DURABLE]

    assert len(listening) >= 10
    assert wrong == []


def _of_stream(call: ast.Call) -> bool:
    return any(one.arg in ("stream", "durable", "pull_sub") for one in call.keywords)


# -- the subscriptions of a running system -----------------------------------------------------------------

SERVICES = ("gateway", "agent", "tool-runner", "workflows")
WORK = ("RUNS", "APPROVALS", "WORKFLOWS", "TIMERS")
"""Streams whose messages must each be handled."""


@pytest.mark.one_server
async def test_no_core_subscription_of_a_running_system_overlaps_with_a_stream(
    system: System, operator: Bus, client: Client, play: Play
) -> None:
    """A20: by the broker's list of every connection's subscriptions."""
    await client.run(await client.create(play(ScriptedReply(text="Hi."))), "hi")
    await operator.subscribe(subjects.run_work(ANY, ANY), _ignore)
    await operator.ready()

    heard = await _subscriptions(system)

    assert all(heard[service] for service in SERVICES)
    assert [stream for service in SERVICES for stream in _kept(heard[service])] == []
    assert _kept(heard["scenario-operator"]) == ["RUNS"], "the check would find such a subscription"


async def test_every_work_consumer_uses_explicit_acks_and_unlimited_deliveries(operator: Bus) -> None:
    """A20: the server drops no message, for any number of deliveries."""
    configs = [
        consumer["config"]
        for stream in WORK
        for consumer in (await jetstream.call(operator, api("CONSUMER.LIST", stream)))["consumers"]
    ]

    assert {config["durable_name"] for config in configs} >= {
        "agents",
        "signals",
        "approval-replies",
        "timers",
    }
    assert {(config["ack_policy"], config["max_deliver"]) for config in configs} == {("explicit", -1)}


async def _ignore(message: Message) -> None:
    return


def _kept(heard: set[str]) -> list[str]:
    """Return the streams that overlap with a subscription."""
    topology = app_topology(StorageBudget(10 * 1024**3))
    return [
        stream.name
        for stream in topology.streams
        for pattern in stream.subjects
        if any(_overlap(subject, pattern) for subject in heard)
    ]


async def _subscriptions(system: System) -> dict[str, set[str]]:
    """Return the subscribed subjects by connection name."""
    state = json.loads((system.data_dir / "run.json").read_text())
    async with httpx.AsyncClient(base_url=state["monitoring_url"], trust_env=False) as http:
        served = (await http.get("/connz", params={"subs": 1, "limit": 1024})).json()
    found: dict[str, set[str]] = {service: set() for service in SERVICES}
    for connection in served["connections"]:
        # A tool-runner appends its own name.
        service = connection["name"].partition(" ")[0]
        found.setdefault(service, set()).update(connection.get("subscriptions_list", ()))
    return found


def _overlap(one: str, other: str) -> bool:
    """Return whether a subject exists that matches both patterns."""
    left, right = one.split("."), other.split(".")
    for mine, theirs in zip(left, right, strict=False):
        if ">" in (mine, theirs):
            return True
        if mine != theirs and "*" not in (mine, theirs):
            return False
    return len(left) == len(right)
