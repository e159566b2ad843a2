"""Services and tool servers run on uvloop."""

from __future__ import annotations

import subprocess
import sys

from tests.support.timeouts import WAIT_TIMEOUT_S

SERVICE = """
import asyncio
from banksman.runtime import service
from banksman.runtime.settings import ServiceSettings

async def main(settings, process):
    print(type(asyncio.get_running_loop()).__module__)

raise SystemExit(service.run("test", ServiceSettings, main))
"""


def test_service_runs_on_uvloop() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVICE], capture_output=True, text=True, timeout=WAIT_TIMEOUT_S, check=True
    )
    assert done.stdout == "uvloop\n"
