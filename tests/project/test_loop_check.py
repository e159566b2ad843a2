"""The check of loops finds one that runs in a bare task."""

import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

SERVICE = """
class Collector:
    async def start(self) -> None:
        {start}

    async def _collect(self) -> None:
        while True:
            await asyncio.sleep(1)
"""


def test_a_loop_in_a_task_that_an_object_stores_is_found(tmp_path: Path) -> None:
    service = tmp_path / "services" / "agent" / "collector.py"
    service.parent.mkdir(parents=True)

    service.write_text(SERVICE.format(start="self._task = asyncio.create_task(self._collect(), name='c')"))
    bare = check(tmp_path)
    service.write_text(SERVICE.format(start="self._task = self._background.run('c', self._collect)"))
    supervised = check(tmp_path)

    assert bare == (
        1,
        "services/agent/collector.py:4: _collect loops in a bare task; run it in `bus.background`\n",
    )
    assert supervised == (0, "")


def check(root: Path) -> tuple[int, str]:
    command = (sys.executable, str(ROOT / "tools" / "check_loops.py"), str(root))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout
