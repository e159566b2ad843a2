"""The tool-runner's container of compose.yaml: bubblewrap, attacks, limits, and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tests.deploy.stack import Stack
from tests.support.client import Client

from .conftest import WAIT_TIMEOUT_S, bash, bash_in, ready

RUNNER = "tool-runner"

OUTSIDE = "/proc/*/root"
"""A process outside of the sandbox would expose the container's files here."""

# If the command succeeds, the attack has succeeded.
ATTACKS = {
    "the runner's variables": "tr '\\0' '\\n' < /proc/1/environ | grep BANKSMAN || env | grep BANKSMAN",
    "the runner's seed": f"cat /keys/tool-runner/*.nk {OUTSIDE}/keys/tool-runner/*.nk | grep .",
    "other workspaces": f"ls /workspaces || ls {OUTSIDE}/workspaces",
    "processes outside": "ls -d /proc/[0-9]* | wc -l | grep -E '[0-9][0-9]|[7-9]'",
    "the kernel's settings": "echo x > /proc/sys/kernel/core_pattern || echo 1 > /proc/sys/vm/drop_caches",
    "the kernel's keys": "echo h > /proc/sysrq-trigger || cat /proc/kcore | head -c 1 | grep .",
    "a mount": "mount -t tmpfs x /tmp || mount --bind /usr /tmp || umount -l /proc",
    "a namespace": "unshare --user --map-root-user true || unshare --mount true || unshare --net true",
    "a namespace of pid 1": "nsenter --target 1 --mount true || chroot / true",
    "a capability": "grep ^Cap /proc/self/status | grep -v 0000000000000000",
    "a set-uid program": "grep NoNewPrivs /proc/self/status | grep 0 || su -c true",
    "the programs": "touch /usr/bin/x || touch /etc/x || touch /x",
    "a device": "mknod d b 8 0 || head -c 1 /dev/sda || head -c 1 /dev/mem",
    "the engine": "ls /var/run/docker.sock || ls /run/docker.sock",
    "control groups": "ls /sys/fs/cgroup",
    "the cloud's metadata": "timeout 5 bash -c 'exec 3<>/dev/tcp/169.254.169.254/80'",
    "the internet": "timeout 5 bash -c 'exec 3<>/dev/tcp/1.1.1.1/53'",
}

# Each process is smaller than the runner: by size alone the kernel would kill the runner. All are forks of
# one interpreter, and few: while memory is short, the kernel evicts the pages of the runner's files. On a
# busy machine the runner can then miss its lease, and stop itself.
CROWD = (
    "python3 -S -c 'import os, signal; "
    '[os.fork() or (b"x" * (40 << 20), signal.pause()) for _ in range(10)]; '
    "status = os.wait()[1]; os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else 1)'"
)

ESCAPED = {
    "the kernel's settings": "echo x > /proc/sys/kernel/core_pattern || echo 1 > /proc/sys/vm/drop_caches",
    "the kernel's keys": "echo h > /proc/sysrq-trigger",
    "the programs": "touch /usr/bin/x || touch /etc/x || touch /opt/banksman/x",
    "a set-uid program": "su -c true || mount -t tmpfs x /tmp",
    "a device": "mknod /tmp/d b 8 0",
    "keys of other services": "ls /keys/*/* | grep -v ^/keys/tool-runner",
    "control groups": "mkdir /sys/fs/cgroup/x || mkdir /sys/fs/cgroup/memory/x",
}


@pytest.mark.parametrize("aim", ATTACKS)
async def test_command_cannot_reach_a_protected_resource(stack: Stack, aim: str) -> None:
    result = await bash(stack, ATTACKS[aim])

    assert result["exit_code"] not in (0, None), result
    assert result["stdout"] == "", result


@pytest.mark.parametrize(
    "present",
    ["env | grep -q BANKSMAN_NATS__URL", "grep -q . /keys/tool-runner/tool-runner.nk", "ls /workspaces"],
)
def test_secrets_that_commands_cannot_read_exist_in_the_container(stack: Stack, present: str) -> None:
    assert stack.execute(RUNNER, "bash", "-c", present).returncode == 0


@pytest.mark.parametrize(("service", "port"), [("nats", 4222), ("gateway", 8080), ("model-server", 8000)])
async def test_command_cannot_reach_a_service_that_its_runner_reaches(
    stack: Stack, service: str, port: int
) -> None:
    connects = f"timeout 5 bash -c 'exec 3<>/dev/tcp/{_address(stack, service)}/{port}'"

    from_the_container = stack.execute(RUNNER, "bash", "-c", connects)
    result = await bash(stack, connects)

    assert from_the_container.returncode == 0, from_the_container.stderr
    assert result["exit_code"] not in (0, None), result


@pytest.mark.parametrize("aim", ESCAPED)
def test_process_outside_the_sandbox_cannot_reach_a_protected_resource(stack: Stack, aim: str) -> None:
    done = stack.execute(RUNNER, "bash", "-c", ESCAPED[aim])

    assert done.returncode != 0, done.stdout


async def test_conversations_share_no_files_and_files_remain_for_later_calls(stack: Stack) -> None:
    async with Client.connected(stack.url, timeout_s=WAIT_TIMEOUT_S) as client:
        first, second = await client.create(), await client.create()
        await bash_in(client, first, "echo mine > kept.txt")

        kept = await bash_in(client, first, "cat kept.txt")
        other = await bash_in(client, second, "ls")

    assert (kept["stdout"], other["stdout"]) == ("mine\n", "")


async def test_kernel_out_of_memory_kills_commands_and_never_the_runner(stack: Stack) -> None:
    before = _incarnation(stack)
    with _memory(stack, "400m"):
        crowd = await bash(stack, CROWD)
        single = await bash(stack, "python3 -c 'x = b\"x\" * (900 << 20)'")
        after = await bash(stack, "echo fine")

    assert (crowd["exit_code"], single["exit_code"]) == (137, 137), (crowd, single)
    assert after["stdout"] == "fine\n"
    assert _incarnation(stack) == before
    assert _kills(stack) >= 2


async def test_stopped_container_finishes_its_command_and_restarts_with_its_files(stack: Stack) -> None:
    async with Client.connected(stack.url, timeout_s=WAIT_TIMEOUT_S) as client:
        conversation = await client.create()
        run = await client.chat(conversation, "run `echo begun > begun; sleep 4; echo finished`")
        await client.approve(run)
        await client.event("tool_call.started", run_id=run)

        await asyncio.to_thread(stack.compose, "stop", RUNNER)
        ended = stack.inspect(RUNNER)["State"]
        (call,) = (await client.finished(run))["tool_calls"]
        await ready(stack, RUNNER)
        kept = await bash_in(client, conversation, "cat begun")

    assert call["result"]["stdout"] == "finished\n"
    assert (ended["Status"], ended["ExitCode"]) == ("exited", 0)
    assert kept["stdout"] == "begun\n"


async def test_killed_container_has_an_unknown_outcome_keeps_files_and_leaves_no_process(
    stack: Stack,
) -> None:
    async with Client.connected(stack.url, timeout_s=WAIT_TIMEOUT_S) as client:
        conversation = await client.create()
        run = await client.chat(conversation, "run `echo begun > begun; sleep 50`")
        await client.approve(run)
        await client.event("tool_call.started", run_id=run)

        stack.engine.output("kill", stack.id(RUNNER))
        await client.finished(run)
        await ready(stack, RUNNER)
        kept = await bash_in(client, conversation, "cat begun")

    outcomes = [event["data"]["error_kind"] for event in client.events(conversation, "tool_call.completed")]
    assert outcomes == ["unknown_outcome", None]
    assert kept["stdout"] == "begun\n"
    assert stack.execute(RUNNER, "pgrep", "sleep").returncode == 1


def _address(stack: Stack, service: str) -> str:
    networks = stack.inspect(service)["NetworkSettings"]["Networks"]
    return str(networks[f"{stack.project}_bus"]["IPAddress"])


@contextmanager
def _memory(stack: Stack, limit: str) -> Generator[None]:
    container = stack.id(RUNNER)
    given = stack.inspect(RUNNER)["HostConfig"]["Memory"]
    stack.engine.output("update", "--memory", limit, "--memory-swap", limit, container)
    try:
        yield
    finally:
        stack.engine.output("update", "--memory", str(given), "--memory-swap", str(given), container)


def _incarnation(stack: Stack) -> tuple[str, int]:
    known = stack.inspect(RUNNER)
    return known["State"]["StartedAt"], known["RestartCount"]


def _kills(stack: Stack) -> int:
    """Return how many processes of the container the kernel killed for memory; cgroup v1 or v2."""
    files = "cat /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events 2>/dev/null"
    lines = stack.execute(RUNNER, "sh", "-c", files).stdout.splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
