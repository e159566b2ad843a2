"""How services listen, read off their source: what is durable is not heard by what may lose it (A20)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path
    for root in ("shared/banksman", "services")
    for path in sorted((ROOT / root).rglob("*.py"))
    if "testing" not in path.parts
]
CLIENTS = {"sdk", "cli"}
"""Packages of those who are told of approvals, and find all open ones at the door too."""
DURABLE = {
    "run_work",
    "run_signal",
    "approval_request",
    "approval_reply",
    "workflow_run",
    "timer_fired",
    "dead",
}
"""Functions of `contracts.subjects` whose messages wait in a stream until somebody has handled them."""
LISTENS = {"subscribe", "serve"}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a module, with the name of what is called."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Attribute(attr=name) | ast.Name(id=name):
                    yield name, node
                case _:
                    continue


def names_in(call: ast.Call) -> set[str]:
    """Names of functions called within a call's arguments."""
    inner = (node for argument in call.args for node in ast.walk(argument))
    return {node.attr for node in inner if isinstance(node, ast.Attribute)}


def where(path: Path, call: ast.Call) -> str:
    return f"{path.relative_to(ROOT)}:{call.lineno}"


def test_every_subscriber_of_a_stream_acknowledges_by_hand() -> None:
    """A20: FastStream's default deletes a message whose handler raises."""
    subscribers = [
        (path, call)
        for path in SOURCES
        for name, call in calls(path)
        if name == "subscriber" and _of_stream(call)
    ]
    without = [where(path, call) for path, call in subscribers if _policy(call) != "MANUAL"]

    assert len(subscribers) >= 1
    assert without == []


def test_subscribers_are_made_in_one_place() -> None:
    """A20: whatever FastStream is asked for passes the rules of the control plane."""
    made = {path for path in SOURCES for name, _ in calls(path) if name == "subscriber"}
    brokers = {path for path in SOURCES if "NatsBroker" in path.read_text(encoding="utf-8")}

    assert made == brokers == {ROOT / "shared/banksman/bus/control.py"}


def test_nobody_hears_a_durable_subject_by_a_core_subscription() -> None:
    """A20: a slow or absent subscriber loses what a consumer of the stream would keep for it."""
    services = [path for path in SOURCES if not CLIENTS & set(path.parts)]
    listening = [(path, call) for path in services for name, call in calls(path) if name in LISTENS]
    wrong = [where(path, call) for path, call in listening if names_in(call) & DURABLE]

    assert len(listening) >= 10
    assert wrong == []


@pytest.mark.parametrize("option", ["max_workers"])
def test_no_subscriber_of_a_stream_has_workers_of_its_own(option: str) -> None:
    """A20: with more than one worker a pull subscriber runs messages twice."""
    wrong = [
        where(path, call)
        for path in SOURCES
        for name, call in calls(path)
        if name == "subscriber" and _of_stream(call) and any(one.arg == option for one in call.keywords)
    ]

    assert wrong == []


def _of_stream(call: ast.Call) -> bool:
    return any(one.arg in ("stream", "durable", "pull_sub") for one in call.keywords)


def _policy(call: ast.Call) -> str | None:
    found = next((one.value for one in call.keywords if one.arg == "ack_policy"), None)
    return found.attr if isinstance(found, ast.Attribute) else None
