"""`python -m tests.support.planned` prints the environments of a second set of processes of a running system.

The services of a system show theirs to no other process.
"""

from __future__ import annotations

import json
import os
import sys
from urllib.parse import urlsplit

from banksman.cli.local.command import UpOptions, local_runners
from banksman.cli.local.plan import LocalNats, Plan
from banksman.cli.machine import free_port
from banksman.cli.state import DataDir


def main() -> None:
    settings = UpOptions().settings()
    data = DataDir(settings.data_dir.resolve())
    running = data.running()
    assert running is not None, f"no system runs in {data.path}"
    nats, monitoring = (urlsplit(url) for url in (running.nats_url, running.monitoring_url))
    runners = local_runners(settings, data)
    local = LocalNats(data, nats.port or 0, monitoring.port or 0, monitoring.path)
    plan = Plan(settings, local, free_port(), os.environ, runners=runners)
    json.dump({spec.name: dict(spec.environment) for spec in plan.services()}, sys.stdout)


if __name__ == "__main__":
    main()
