"""Who is offered the mock weather tool (R61)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from banksman.bus.connection import NatsSettings
from banksman.workflows.settings import WorkflowServiceSettings, WorkflowSettings

OF_TENANT = NatsSettings(url="nats://tenant:4222")


@pytest.mark.parametrize("given", [None, False, OF_TENANT], ids=["default", "off", "of a tenant"])
def test_the_weather_tool_is_served_unless_it_is_switched_off(
    tmp_path: Path, given: NatsSettings | Literal[False] | None
) -> None:
    own, key = tmp_path / "workflows.nk", tmp_path / "tool-server-weather.nk"
    key.touch()
    nats = NatsSettings(url="tls://nats:4222", nkey_seed_file=own, tls_ca_file=tmp_path / "ca.crt")
    workflows = WorkflowSettings(example_tools=given)

    served = WorkflowServiceSettings(nats=nats, workflows=workflows).example_tools

    assert served == (nats.model_copy(update={"nkey_seed_file": key}) if given is None else given or None)


def test_without_a_key_the_weather_tool_is_not_served(tmp_path: Path) -> None:
    nats = NatsSettings(nkey_seed_file=tmp_path / "workflows.nk")
    assert WorkflowServiceSettings(nats=nats).example_tools is None
