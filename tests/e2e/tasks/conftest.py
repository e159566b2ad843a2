"""The system of the tasks, with two people and a scripted model."""

from __future__ import annotations

import json
from collections.abc import Generator

import pytest

from banksman.cli.machine import free_port
from tests.e2e.tasks.people import KEYS, SLOTS, Office
from tests.support.system import System, scripted_model

PRICE = {"input": 1_000, "output": 1_000}
"""Dollars per million tokens of the model `dear`."""


@pytest.fixture(scope="package")
def office(tmp_path_factory: pytest.TempPathFactory, axe: str) -> Generator[Office]:
    """The system, started once for all tasks."""
    mcp_port = free_port()
    environment = {
        "BANKSMAN_LOCAL__AGENTS": "1",
        "BANKSMAN_AGENT__SLOTS": str(SLOTS),
        "BANKSMAN_GATEWAY__KEYS": json.dumps(KEYS),
        "BANKSMAN_AGENT__PRICES": json.dumps({"openai:scripted/dear": PRICE}),
        "BANKSMAN_GATEWAY__FRAMES_PER_S": "1000",
        "BANKSMAN_TENANTS__NAMED": json.dumps({"small": {"tokens_per_day": 100}}),
        "BANKSMAN_TOOL_RUNNER__EGRESS__ALLOW_PRIVATE_ADDRESSES": json.dumps([f"127.0.0.1:{mcp_port}"]),
    }
    with scripted_model() as model:
        system = System(tmp_path_factory.mktemp("tasks"), model, environment)
        try:
            system.start()
            yield Office(system, model, axe, mcp_port)
        finally:
            system.close()
