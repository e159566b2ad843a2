"""The number of runs that an agent drives at a time: by memory, and a warning when it alone is the limit."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from tests.agent.test_fair_slots import Runs
from tests.support.fixtures import settings_of
from tests.support.model_server import ModelServer
from tests.support.nats import Broker
from tests.support.polling import eventually
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.agent import app
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.settings import AgentServiceSettings, AgentSettings
from banksman.agent.slots import memory_bytes, slots_by_memory
from banksman.bus.connection import Bus
from banksman.runtime.health import Health
from banksman.runtime.service import ServiceProcess
from banksman.runtime.settings import ApprovalSettings

MIB = 1024 * 1024
SLOTS = 4


@pytest.mark.parametrize(
    ("memory_mib", "expected"), [(64, 105), (16, 96), (512, 840), (2_048, 3_360), (65_536, 4_000)]
)
def test_an_eighth_of_the_memory_is_for_runs(memory_mib: int, expected: int) -> None:
    assert slots_by_memory(memory_mib * MIB) == expected


@pytest.mark.parametrize(
    ("files", "expected_mib"),
    [
        ({"memory.max": "max\n", "box/memory.max": f"{512 * MIB}\n"}, 512),
        ({"memory.max": f"{256 * MIB}\n", "box/memory.max": "max\n"}, 256),
        ({"memory/memory.limit_in_bytes": f"{128 * MIB}\n"}, 128),
    ],
    ids=["its own limit", "the limit of a parent", "version 1"],
)
def test_the_limit_of_a_container_counts(tmp_path: Path, files: dict[str, str], expected_mib: int) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/box\n")
    for name, text in files.items():
        file = tmp_path / "fs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    assert memory_bytes(tmp_path / "fs", own) == expected_mib * MIB


def test_without_a_container_the_memory_of_the_machine_counts(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path, tmp_path / "missing") >= 256 * MIB
    assert AgentSettings().most_slots >= 96
    assert AgentSettings(slots=7).most_slots == 7


async def test_an_agent_reports_that_its_slots_alone_are_the_limit(
    own_nats: Broker, own_bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    """Readiness warns, a metric is 1 and the log names the setting, until the runs that waited have slots."""
    caplog.set_level(logging.WARNING, "banksman.agent")
    async with ModelServer.running() as model, Runs.on(own_bus) as runs:
        name = model.play("slow", [ScriptedReply(text="Done.", gate=Gate(name="slow"))], at_end="repeat")
        settings = AgentServiceSettings(
            nats=settings_of(own_nats),
            agent=AgentSettings(slots=SLOTS, drain_s=0.0),
            models=ProviderSettings.model_validate(
                {"openai_base_url": model.openai_url, "openai_api_key": "sk-test"}
            ),
            approvals=ApprovalSettings.model_validate({"signing_key": "k" * 32}),
            allow_weak_durability=True,
        )
        process = ServiceProcess(Health("agent"))
        serving = asyncio.create_task(app.main(settings, process))
        await eventually(lambda: process.health.started or serving.done())
        await runs.start("acme", name, 4 * SLOTS)

        async def warned() -> bool:
            return "BANKSMAN_AGENT__SLOTS" in (await process.health.warned()).get("slots", "")

        await eventually(warned, WAIT_TIMEOUT_S * 2)
        exhausted = REGISTRY.get_sample_value("banksman_slots_exhausted")
        model.open_gate("slow")
        await runs.until_ended("acme", 4 * SLOTS)
        process.drain()
        await serving

    assert exhausted == 1
    assert any("slots are used" in record.getMessage() for record in caplog.records)
