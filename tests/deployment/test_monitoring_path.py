"""nats-server lets the pages of all sites read its monitoring: in containers too, its path is a secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx

from banksman.bus.settings import NatsSettings
from banksman.cli.machine import free_port
from tests.support.paths import ROOT
from tests.support.system import wait_ready
from tests.support.timeouts import WAIT_TIMEOUT_S

BANKSMAN = (sys.executable, "-m", "banksman.cli")


def test_web_pages_cannot_read_the_monitoring_of_a_deployed_server(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    subprocess.run([*BANKSMAN, "keys", "deployment", str(keys)], check=True, capture_output=True)
    port, monitoring = free_port(), free_port()
    text = (ROOT / "deploy" / "nats" / "nats.conf").read_text()
    text = text.replace("0.0.0.0:4222", f"127.0.0.1:{port}").replace(
        "0.0.0.0:8222", f"127.0.0.1:{monitoring}"
    )
    config = tmp_path / "nats.conf"
    config.write_text(text.replace('"/data"', json.dumps(str(tmp_path / "data"))))
    public = str(keys / "nats" / "public.env")
    environment = {**os.environ, "BANKSMAN_OPERATOR__STORAGE_BYTES": "1000000000"}
    command = [*BANKSMAN, "nats", "--config", str(config), "--public-keys", public]
    address = f"http://127.0.0.1:{monitoring}"
    found = NatsSettings(nkey_seed_file=keys / "gateway" / "gateway.nk", monitoring_url=address).monitoring
    with (tmp_path / "out").open("wb") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        wait_ready(f"{found}/healthz", lambda: (tmp_path / "out").read_text() if server.poll() else None)
        for path in ("/", "/varz", "/connz", "/jsz", "/healthz", "/subsz", "/accountz"):
            refused = httpx.get(f"{address}{path}", timeout=WAIT_TIMEOUT_S)
            assert refused.status_code == 404
            assert "access-control-allow-origin" not in refused.headers
    finally:
        server.terminate()
        server.wait(timeout=WAIT_TIMEOUT_S)
