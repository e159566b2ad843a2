"""Escapes that a command prepares for the file tools, and exhaustion of shared resources."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.tool_runner.conftest import Runner

from banksman.tool_runner.settings import RunnerLimits

_SECRET = "the neighbour's"


@pytest.fixture
def secret(runner: Runner) -> Path:
    """A file of another workspace."""
    file = runner.store.get("acme", "c2").directory / "secret"
    file.write_text(_SECRET)
    file.chmod(0o666)
    return file


async def test_links_of_a_command_lead_no_tool_outside(runner: Runner, secret: Path) -> None:
    """Case A29; also links to files that exist only on the host."""
    made = await runner.bash(
        f"ln -s {secret} abs; ln -s ../c2/secret rel; ln -s {secret.parent} dir; ln -s / top; ln -s .. up; "
        "ln -s /proc/self/root proc; ln -s /proc/1/environ env; mkfifo fifo; mkdir real; ln -s real alias"
    )
    assert made.value["success"] is True
    ways = ["abs", "rel", "dir/secret", f"top{secret}", "up/c2/secret", f"proc{secret}", "env", "fifo"]
    for way in ways:
        read = await runner.call("read_file", path=way)
        assert (read.value["success"], _SECRET in str(read.value)) == (False, False), way
    for way in (*ways, "alias/new"):
        assert (await runner.call("write_file", path=way, content="owned")).value["success"] is False, way
        assert await asyncio.to_thread(secret.read_text) == _SECRET
    assert (await runner.bash("cat abs rel dir/secret")).value["stdout"] == ""


async def test_devices_cannot_be_created_and_hard_links_stay_inside(runner: Runner, secret: Path) -> None:
    outcome = await runner.bash(
        f"mknod disk b 8 0; mknod null c 1 3; ln {secret} hard; ln /etc/fstab name; ln /usr/bin/env env; ls"
    )
    assert outcome.value["stdout"] == ""


async def test_setuid_programs_run_with_the_rights_of_the_command(runner: Runner) -> None:
    """Setuid bits on a command's own file and on system programs."""
    outcome = await runner.bash(
        "cp /bin/bash shell; chmod 6755 shell; ./shell -p -c 'grep -h ^Cap /proc/self/status' | sort -u; "
        "find / -xdev -perm -4000 -type f 2>/dev/null | while read -r program; do $program --version; done"
        " >/dev/null 2>&1; id -u; ./shell -p -c 'id -u'"
    )
    words = str(outcome.value["stdout"]).split()
    assert {word for word in words if word.strip("0") == "" and len(word) == 16} == {"0" * 16}
    assert words[-1] == words[-2] != "0"


@pytest.mark.parametrize(
    "command",
    ["truncate -s 10G big", "fallocate -l 10G big", "dd if=/dev/zero of=big bs=1M seek=10000 count=1 2>&1"],
)
async def test_file_of_ten_gigabytes_is_refused(runner: Runner, command: str) -> None:
    """Case A31."""
    outcome = await runner.bash(command)
    assert outcome.value["success"] is False
    big = runner.workspace.directory / "big"
    assert not big.exists() or big.stat().st_size <= runner.limits.sandbox.file_size_bytes


class TestManyFiles:
    @pytest.fixture
    def limits(self, small_workspace: RunnerLimits) -> RunnerLimits:
        return small_workspace

    async def test_a_million_small_files_end_at_the_quota(self, runner: Runner) -> None:
        """Case A31."""
        outcome = await runner.bash("for i in {1..1000000}; do : > $RANDOM$i; done; sleep 30", timeout_s=30)
        assert outcome.value["killed_reason"] == "workspace_limit"
        assert (await runner.bash("find . -type f -delete; ls | wc -l")).value["stdout"] == "0\n"


async def test_open_files_processes_and_processor_time_are_bounded(runner: Runner) -> None:
    limits = runner.limits.sandbox
    outcome = await runner.bash("ulimit -n; ulimit -t; ulimit -c; ulimit -f; ulimit -d")
    assert str(outcome.value["stdout"]).split() == [
        str(limits.max_open_files), str(limits.cpu_s), "0",
        str(limits.file_size_bytes // 1024), str(limits.data_bytes // 1024),
    ]  # fmt: skip
    assert (await runner.bash("ulimit -n 100000 || ulimit -d unlimited")).value["success"] is False


async def test_end_of_both_flooded_streams_reaches_a_slow_reader(
    runner: Runner,
) -> None:
    outcome = await runner.bash("seq 300000; seq 300000 >&2; echo last; echo final >&2")
    assert str(outcome.value["stdout"]).endswith("300000\nlast\n")
    assert str(outcome.value["stderr"]).endswith("300000\nfinal\n")
    assert outcome.value["exit_code"] == 0
