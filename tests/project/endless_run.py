"""A test that never ends by itself and has started processes of each kind; test_run_end.py runs it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.async_api import async_playwright

from banksman.cli.machine import free_port
from tests.support.nats import Broker
from tests.support.system import ScriptedModel, scripted_model

pytestmark = pytest.mark.timeout(600)

LEFT_OUT = ("gateway", "agent", "workflows", "tool-runner")
"""Services that are started as the model server is, and only cost time here."""


async def test_that_waits_until_it_is_ended(nats_server: Broker, tmp_path: Path) -> None:
    assert nats_server.url
    up = [sys.executable, "-m", "banksman.cli", "up", "--detach", "--port", str(free_port())]
    without = [word for name in LEFT_OUT for word in ("--without", name)]
    state = ("--data-dir", str(tmp_path / "state"))
    await asyncio.to_thread(subprocess.run, [*up, *state, *without], check=True, stdin=subprocess.DEVNULL)
    # Like the Docker engine of the tests, this process is neither a child of the run nor in its session.
    await asyncio.to_thread(subprocess.run, ["setsid", "--fork", "sleep", "900"], check=True)
    with scripted_model() as model:
        await _browse(model, tmp_path)


async def _browse(model: ScriptedModel, tmp_path: Path) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-background-networking"]
        )
        page = await browser.new_page()
        await page.goto(f"{model.url}/readyz")
        (tmp_path.parent / "started").touch()
        await asyncio.Event().wait()
