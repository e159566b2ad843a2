"""`banksman up` on a full disk, and the one setting of its storage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

from banksman.cli.machine import free_port
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.support.volumes import Volume, require_volumes

from .conftest import SERVICES_LEFT_OUT, Start, Up, banksman, environment

MEGABYTE = 1024 * 1024
STORAGE = "BANKSMAN_OPERATOR__STORAGE_BYTES"


def test_up_waits_for_space_if_the_disk_is_full_at_its_start(tmp_path: Path) -> None:
    """A37: and keys that could not be written whole are not left behind."""
    require_volumes()
    with Volume.made(tmp_path / "disk", tmp_path / "volume", megabytes=64) as volume:
        with volume.filled():
            system = Up(volume.path / "state")
            try:
                system.wait_for("warning", process="disk")
                assert system.process.poll() is None
            except BaseException:
                system.close()
                raise
        try:
            system.wait_for("up")
            assert banksman("streams", "check", "--data-dir", str(system.data_dir)).returncode == 0
            system.interrupt()
            assert system.ended() == 0
        finally:
            system.close()


def test_a_detached_up_waits_for_a_disk_that_is_read_only(tmp_path: Path) -> None:
    """A37: the command that was started in the background ended with an error."""
    require_volumes()
    without = [word for name in SERVICES_LEFT_OUT for word in ("--without", name)]
    with Volume.made(tmp_path / "disk", tmp_path / "volume", megabytes=64) as volume:
        place = ("--data-dir", str(volume.path / "state"), "--port", str(free_port()))
        command = [sys.executable, "-m", "banksman.cli", "up", "--detach", "--json", *place, *without]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as waiting:
            with volume.failed():
                assert waiting.stdout is not None
                assert "Read-only" in json.loads(waiting.stdout.readline())["text"]
            try:
                assert waiting.wait(WAIT_TIMEOUT_S * 4) == 0
            finally:
                banksman("down", "--data-dir", str(volume.path / "state"))


def test_the_storage_of_server_and_streams_is_one_setting_that_can_grow(start: Start) -> None:
    limits: list[tuple[int, int]] = []
    for megabytes in (100, 300):
        system = start(**{STORAGE: str(megabytes * MEGABYTE)})
        system.wait_for("up")
        limits.append(_limits(system))
        assert banksman("streams", "check", "--data-dir", str(system.data_dir)).returncode == 0
        system.interrupt()
        assert system.ended() == 0

    refused = start(**{STORAGE: str(200 * MEGABYTE)})

    assert refused.ended() == 2
    assert "storage can grow and not shrink" in refused.events[-1]["error"]["message"]
    sizes = [100 * MEGABYTE, 300 * MEGABYTE]
    assert limits == [(size, size * 348 // 1000) for size in sizes]


def _limits(system: Up) -> tuple[int, int]:
    """Return the bytes of the server, and of the stream of logs."""
    url = f"{system.instance['monitoring_url']}/jsz?streams=true&config=true"
    with urlopen(url, timeout=WAIT_TIMEOUT_S) as response:
        found = json.load(response)
    streams = {
        stream["name"]: stream["config"]["max_bytes"]
        for account in found["account_details"]
        for stream in account["stream_detail"]
    }
    return found["config"]["max_storage"], streams["EVENTS"]
