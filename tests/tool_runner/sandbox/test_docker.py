"""Behaviour of containers only: creation, removal, and calls while the engine fails."""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from tests.support import privileged
from tests.support.docker_engine import DockerEngine
from tests.support.polling import eventually
from tests.tool_runner.conftest import DockerBackend, Runner, started
from tests.tool_runner.sandbox.relay import Relay, relaying

from banksman.tool_runner.identity import sandbox_identity
from banksman.tool_runner.sandbox.base import EMPTY, SandboxCommand, SandboxUnavailable, Stop
from banksman.tool_runner.sandbox.docker.engine import find_host_directory
from banksman.tool_runner.sandbox.docker.sandbox import DockerSandbox
from banksman.tool_runner.sandbox.selftest import self_test
from banksman.tool_runner.settings import SandboxLimits, WorkspaceLimits
from banksman.tool_runner.workspaces.workspace import WorkspaceStore

WAIT_S = 30
ENGINE_TIMEOUT_S = 8
"""Engine time-out for tests with a hanging engine; longer than a request on a busy machine."""


@pytest.fixture
def backend() -> str:
    """In this module, `runner` uses containers."""
    return "docker"


@pytest.fixture
def workspace(root: Path) -> Path:
    return WorkspaceStore(root, sandbox_identity(), WorkspaceLimits()).get("acme", "c1").directory


Make = Callable[..., DockerSandbox]


@pytest.fixture
def make(root: Path, docker: DockerBackend) -> Iterator[Make]:
    """Creates a sandbox with the test's own settings or limits."""
    made: list[DockerSandbox] = []

    def make(*, at: Path = root, limits: SandboxLimits | None = None, **settings: object) -> DockerSandbox:
        changed = docker.settings.model_copy(update=settings)
        made.append(DockerSandbox(at, sandbox_identity(), limits or SandboxLimits(), changed))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.close()


async def run(sandbox: DockerSandbox, workspace: Path, script: str, timeout_s: float = 20) -> str:
    """Run a command that ends by itself; return its standard output."""
    outcome = await sandbox.run(SandboxCommand(script, workspace, timeout_s))
    with closing(outcome.output) as output:
        assert outcome.killed_reason is None, outcome
        return output.stdout.text()


@asynccontextmanager
async def running(sandbox: DockerSandbox, workspace: Path) -> AsyncIterator[asyncio.Task[str]]:
    """Run a command that has written output and sleeps; its task returns the outcome."""
    has_output, stop = asyncio.Event(), Stop()

    async def call() -> str:
        command = SandboxCommand("echo ready; sleep 3600", workspace, 3600)
        try:
            outcome = await sandbox.run(command, on_output=lambda *_: has_output.set(), stop=stop)
        except SandboxUnavailable as error:
            return str(error)
        outcome.output.close()
        return str(outcome.killed_reason)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(call())
        await started(has_output)
        yield task
        stop.request("cancelled")


def containers(engine: DockerEngine, workspace: str, root: Path) -> list[dict[str, Any]]:
    """Inspect the containers of a workspace below `root`."""
    listed = engine.output("ps", "--all", "--quiet", "--filter", f"label=banksman.workspace={workspace}")
    if not listed:
        return []
    # A container may end between the two commands.
    found: list[dict[str, Any]] = json.loads(engine.docker("inspect", *listed.split()).stdout)
    return [each for each in found if each["HostConfig"]["Mounts"][0]["Source"].startswith(f"{root}/")]


async def removed(engine: DockerEngine, workspace: str, root: Path) -> None:
    """Wait until a workspace has no container."""

    async def is_empty() -> bool:
        return not await asyncio.to_thread(containers, engine, workspace, root)

    await eventually(is_empty, WAIT_S, interval_s=0.05)


async def test_a_program_of_an_mcp_server_is_refused_and_blocks_no_command(
    make: Make, workspace: Path
) -> None:
    """It would hold the container of the commands, and find files that they have written."""
    sandbox = make()
    with pytest.raises(SandboxUnavailable, match="MCP servers run only in the sandbox bwrap"):
        await sandbox.run(SandboxCommand("true", workspace, 5, lambda _: None, EMPTY))
    assert await run(sandbox, workspace, "echo fine") == "fine\n"


async def test_container_uses_every_restriction_of_the_engine(
    runner: Runner, docker: DockerBackend, root: Path
) -> None:
    await runner.bash("true")
    (container,) = await asyncio.to_thread(containers, docker.engine, "acme/c1", root)
    host, config = container["HostConfig"], container["Config"]
    identity, limits = runner.identity, runner.limits.sandbox
    assert {
        "network": host["NetworkMode"],
        "capabilities": (host["CapAdd"], host["CapDrop"]),
        "security": host["SecurityOpt"],
        "privileged": host["Privileged"],
        "read-only": host["ReadonlyRootfs"],
        "namespaces": (host["PidMode"], host["UTSMode"], host["UsernsMode"], host["IpcMode"]),
        "devices": host["Devices"] or [],
        "user": config["User"],
        "swap": host["MemorySwap"] - host["Memory"],
        "cpus": host["NanoCpus"],
        "removed at its end": host["AutoRemove"],
        "log": host["LogConfig"]["Type"],
        "mounts": sorted((each["Destination"], each["Source"], each["RW"]) for each in container["Mounts"]),
    } == {
        "network": "none",
        "capabilities": (None, ["ALL"]),
        "security": ["no-new-privileges:true"],
        "privileged": False,
        "read-only": True,
        "namespaces": ("", "", "", "private"),
        "devices": [],
        "user": f"{identity.uid}:{identity.gid}",
        "swap": 0,
        "cpus": 1_000_000_000,
        "removed at its end": True,
        "log": "none",
        "mounts": [
            ("/etc/banksman", f"{root}/.etc", False),
            *((f"/etc/{name}", f"{root}/.etc/{name}", False) for name in ("group", "hosts", "passwd")),
            ("/run/banksman", f"{root}/.proxies{container['Name']}", False),
            ("/workspace", str(runner.workspace.directory), True),
        ],
    }
    assert limits.memory_bytes < host["Memory"] < limits.memory_bytes * 1.2
    assert limits.max_processes < host["PidsLimit"] < limits.max_processes + 10


async def test_commands_cannot_affect_the_supervisor(runner: Runner) -> None:
    outcome = await runner.bash(
        "for n in 1 2 3 9 10 12 15 17 19; do kill -$n 1; done; "
        "cat /proc/1/environ /proc/1/mem /proc/1/maps; ls /proc/1/fd /proc/1/cwd/; "
        'python3 -c \'open("/proc/1/mem", "r+b")\'; : > /proc/1/oom_score_adj; echo here'
    )
    assert outcome.value["stdout"] == "here\n", outcome.value
    assert str(outcome.value["stderr"]).count("Permission denied") == 7
    assert (await runner.bash("echo still")).value["stdout"] == "still\n"


async def test_commands_of_a_workspace_share_a_container_and_only_files_remain(
    runner: Runner, docker: DockerBackend, root: Path
) -> None:
    await runner.bash("touch kept; (setsid sleep 3600 &)")
    first = await asyncio.to_thread(containers, docker.engine, "acme/c1", root)
    outcome = await runner.bash("ls; set -- /proc/[0-9]*; echo $#")
    assert str(outcome.value["stdout"]).split() == ["kept", "2"]
    again = await asyncio.to_thread(containers, docker.engine, "acme/c1", root)
    assert [each["Id"] for each in first] == [each["Id"] for each in again]


@pytest.mark.parametrize(
    ("leave", "look"),
    [
        ("touch /dev/mqueue/left", "ls -A /dev/mqueue | wc -l"),
        ("mkdir -p /tmp/a/b; touch /tmp/a/b/c; chmod 0 /tmp/a", "ls -A /tmp | wc -l"),
    ],
)
async def test_container_with_leftovers_is_removed(runner: Runner, leave: str, look: str) -> None:
    assert (await runner.bash(leave)).value["success"] is True
    assert (await runner.bash(look)).value["stdout"] == "0\n"


async def test_engine_limits_memory_outside_of_processes(make: Make, workspace: Path) -> None:
    limits = SandboxLimits(memory_bytes=64 * 1024**2, watchdog_interval_s=3600)
    hog = "python3 -c 'x = bytearray(b\"x\") * (600 << 20)'; sleep 1"
    outcome = await make(limits=limits).run(SandboxCommand(hog, workspace, 30))
    outcome.output.close()
    assert (outcome.killed_reason, outcome.exit_code) == ("memory_limit", None)


async def test_recreated_workspace_is_mounted_at_once(runner: Runner) -> None:
    directory = runner.workspace.directory
    await runner.bash("touch old")
    directory.rename(directory.with_name("elsewhere"))
    directory.with_name("other").mkdir(mode=0o777)
    directory.with_name("other").rename(directory)
    directory.chmod(0o777)
    (directory / "new").touch()
    assert (await runner.bash("ls")).value["stdout"] == "new\n"


async def test_container_that_ends_during_a_call_is_reported_and_replaced(
    runner: Runner, docker: DockerBackend, root: Path
) -> None:
    assert isinstance(runner.sandbox, DockerSandbox)
    async with running(runner.sandbox, runner.workspace.directory) as call:
        (container,) = await asyncio.to_thread(containers, docker.engine, "acme/c1", root)
        await asyncio.to_thread(docker.engine.output, "kill", container["Id"])
        assert "the container or its engine ended" in await call
    assert (await runner.bash("echo again")).value["stdout"] == "again\n"


async def test_idle_container_is_removed_and_the_next_call_starts_another(
    make: Make, workspace: Path, docker: DockerBackend, root: Path
) -> None:
    sandbox = make(idle_s=0.01)
    sweep = asyncio.create_task(sandbox.sweep())
    await run(sandbox, workspace, "touch kept")
    await removed(docker.engine, "acme/c1", root)
    assert await run(sandbox, workspace, "ls") == "kept\n"
    sweep.cancel()


async def test_longest_idle_container_is_removed_for_a_new_container(
    make: Make, docker: DockerBackend, root: Path
) -> None:
    sandbox = make(max_containers=2)
    store = WorkspaceStore(root, sandbox_identity(), WorkspaceLimits())
    for name in ("a", "b", "a", "c"):
        await run(sandbox, store.get("acme", name).directory, "true")
    await removed(docker.engine, "acme/b", root)
    for name in ("a", "c"):
        assert len(await asyncio.to_thread(containers, docker.engine, f"acme/{name}", root)) == 1


async def test_start_removes_only_containers_of_an_earlier_runner(
    make: Make, docker: DockerBackend, root: Path
) -> None:
    mine, others = root / "mine", root / "others"
    places: list[Path] = []
    for each in (mine, others):
        each.mkdir(mode=0o711)
        store = WorkspaceStore(each, sandbox_identity(), WorkspaceLimits())
        places.append(store.get("acme", "c1").directory)
    earlier, neighbour = make(at=mine), make(at=others)
    async with running(earlier, places[0]) as lost, running(neighbour, places[1]) as kept:
        later = await asyncio.to_thread(make, at=mine)
        assert "ended" in await lost
        assert await run(later, places[0], "echo mine") == "mine\n"
        assert not kept.done()


@pytest.fixture
def relay(root: Path, docker: DockerBackend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    """Relay to the engine for sandboxes that are created afterwards."""
    with relaying(root / "engine.sock", docker.engine.host) as wire:
        monkeypatch.setenv("DOCKER_HOST", wire.host)
        yield wire


async def test_calls_are_unavailable_while_the_engine_is_down(
    relay: Relay, make: Make, workspace: Path
) -> None:
    sandbox = make()
    async with running(sandbox, workspace) as call:
        await asyncio.to_thread(relay.cut)
        assert "engine ended" in await call
    with pytest.raises(SandboxUnavailable, match="Docker engine"):
        await run(sandbox, workspace, "true")
    relay.repair()
    assert await run(sandbox, workspace, "echo back") == "back\n"


async def test_call_on_a_hanging_engine_ends_at_its_time_out(
    relay: Relay, make: Make, workspace: Path
) -> None:
    sandbox = make(limits=SandboxLimits(kill_wait_s=0.2), engine_timeout_s=ENGINE_TIMEOUT_S)
    await run(sandbox, workspace, "true")
    relay.freeze()
    async with asyncio.timeout(WAIT_S):
        outcome = await sandbox.run(SandboxCommand("sleep 3600", workspace, 0.3))
        outcome.output.close()
        assert (outcome.killed_reason, outcome.exit_code) == ("timeout", None)
        with pytest.raises(SandboxUnavailable, match="has not removed"):
            await run(sandbox, workspace, "true")
    relay.thaw()
    assert await run(sandbox, workspace, "set -- /proc/[0-9]*; echo $#") == "2\n"


async def test_start_of_a_container_times_out(relay: Relay, make: Make, workspace: Path) -> None:
    sandbox = make(start_timeout_s=0.3, engine_timeout_s=ENGINE_TIMEOUT_S)
    relay.freeze()
    with pytest.raises(SandboxUnavailable, match=r"no container within 0\.3 s"):
        async with asyncio.timeout(WAIT_S):
            await run(sandbox, workspace, "true")
    relay.thaw()


async def test_stop_during_a_container_start_returns_at_once(
    relay: Relay, make: Make, workspace: Path
) -> None:
    sandbox, stop = make(), Stop()
    relay.freeze()
    asyncio.get_running_loop().call_later(0.1, stop.request, "cancelled")
    async with asyncio.timeout(WAIT_S):
        outcome = await sandbox.run(SandboxCommand("touch effect", workspace, 20), stop=stop)
    outcome.output.close()
    relay.thaw()
    assert outcome.killed_reason == "cancelled"
    assert await run(sandbox, workspace, "ls") == ""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"image": "no-such-image:none"}, ("no image no-such-image:none", "docker pull no-such-image:none")),
        ({"runtime": "no-such-runtime"}, ("does not know the runtime 'no-such-runtime'", "daemon.json")),
        ({"runtime": "io.no-such-shim.v1"}, ("the Docker engine refused", "no-such-shim")),
        ({"host_dir": Path("/var/tmp/no-such-directory")}, ("no-such-directory", "docker")),
        ({"host_dir": Path("/var/tmp")}, (".selftest-", "docker")),
    ],
)
async def test_missing_engine_feature_is_reported_with_its_remedy(
    make: Make, root: Path, settings: dict[str, object], expected: tuple[str, ...]
) -> None:
    report = await self_test(root, sandbox_identity(), lambda: make(**settings))
    assert not report.ok
    assert all(words in report.summary() for words in expected), report.summary()


async def test_the_runtime_of_the_settings_runs_the_commands(
    make: Make, workspace: Path, docker: DockerBackend, root: Path
) -> None:
    assert await run(make(runtime="io.containerd.runc.v2"), workspace, "echo runs") == "runs\n"
    (container,) = await asyncio.to_thread(containers, docker.engine, "acme/c1", root)
    assert container["HostConfig"]["Runtime"] == "io.containerd.runc.v2"


async def test_missing_engine_is_reported(make: Make, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/no-such-engine.sock")
    report = await self_test(root, sandbox_identity(), make)
    assert "unix:///run/no-such-engine.sock does not respond" in report.summary()
    assert "Start the engine" in report.summary()


@pytest.fixture
def docker_image(docker: DockerBackend) -> Iterator[Callable[[str], str]]:
    """Builds an image from the base image and one more instruction."""
    made: list[str] = []

    def make(instruction: str) -> str:
        container = docker.engine.output("create", str(docker.settings.image), "true")
        made.append(docker.engine.output("commit", "--change", instruction, container))
        docker.engine.output("rm", container)
        return made[-1]

    yield make
    for image in made:
        docker.engine.docker("image", "rm", image)


async def test_an_image_that_declares_volumes_is_refused(
    make: Make, root: Path, docker_image: Callable[[str], str]
) -> None:
    image = docker_image("VOLUME /data")
    report = await self_test(root, sandbox_identity(), lambda: make(image=image))
    assert "declares volumes (/data)" in report.summary()


def test_host_path_of_workspaces_is_read_from_the_runners_mounts(root: Path) -> None:
    own: Any = {
        "Mounts": [
            {"Destination": "/var", "Source": "/srv/var"},
            {"Destination": str(root), "Source": "/var/lib/docker/volumes/workspaces/_data"},
        ]
    }
    below = root / "acme" / "c1"
    assert find_host_directory(root, None, None).of(below) == below
    assert find_host_directory(root, Path("/srv/given"), own).of(below) == Path("/srv/given/acme/c1")
    volume = Path("/var/lib/docker/volumes/workspaces/_data")
    assert find_host_directory(root, None, own).of(below) == volume / "acme/c1"
    assert find_host_directory(root / "deep", None, own).of(root / "deep" / "acme") == volume / "deep/acme"
    with pytest.raises(SandboxUnavailable, match="not on a volume"):
        find_host_directory(root, None, {"Mounts": []})


async def test_image_without_python_is_reported_with_its_requirements(
    make: Make, root: Path, docker: DockerBackend
) -> None:
    with tarfile.open(root / "empty.tar", "w"):
        pass
    image = await asyncio.to_thread(docker.engine.output, "import", str(root / "empty.tar"))
    report = await self_test(root, sandbox_identity(), lambda: make(image=image))
    await asyncio.to_thread(docker.engine.docker, "image", "rm", image)
    assert "python3" in report.summary()


_IN_A_CONTAINER = """
import asyncio
from pathlib import Path
from banksman.tool_runner.identity import sandbox_identity
from banksman.tool_runner.settings import SandboxLimits
from banksman.tool_runner.sandbox.base import SandboxCommand
from banksman.tool_runner.sandbox.docker.sandbox import DockerSandbox
from banksman.tool_runner.settings import DockerSettings
from banksman.tool_runner.sandbox.selftest import self_test

async def main():
    root = Path("/workspaces/below")
    root.mkdir()
    sandboxes = []
    def make():
        sandboxes.append(DockerSandbox(root, sandbox_identity(), SandboxLimits(), DockerSettings()))
        return sandboxes[0]
    report = await self_test(root, sandbox_identity(), make)
    print(report.summary() or "all holds")
    workspace = root / "c1"
    workspace.mkdir(mode=0o777)
    workspace.chmod(0o777)
    (workspace / "given").write_text("by the runner")
    outcome = await sandboxes[0].run(SandboxCommand("cat given; touch made", workspace, 20))
    print(outcome.output.stdout.text(), [each.name for each in workspace.iterdir()])
    outcome.output.close()
    sandboxes[0].close()

asyncio.run(main())
"""


def test_a_runner_in_a_container_shares_its_volume_with_its_workspaces(docker: DockerBackend) -> None:
    """The runner is configured as in compose.yaml: without a host path, and with its own image."""
    engine, image = docker.engine, str(docker.settings.image)
    paths = [path for path in sys.path if path and Path(path).exists()]
    version = engine.output("run", "--rm", image, "python3", "--version")
    same = version.split()[1].rpartition(".")[0] == f"{sys.version_info.major}.{sys.version_info.minor}"
    privileged.require("a base image with this Python", same, "a runner in a container of its own")
    volume = engine.output("volume", "create")
    socket = engine.host.removeprefix("unix://")
    try:
        printed = engine.output(
            *("run", "--rm", "--network", "none", "--volume", f"{volume}:/workspaces"),
            *("--volume", f"{socket}:/var/run/docker.sock"),
            *(word for path in paths for word in ("--volume", f"{path}:{path}:ro")),
            *("--env", f"PYTHONPATH={':'.join(paths)}"),
            *(image, "python3", "-c", _IN_A_CONTAINER),
        )
    finally:
        engine.output("volume", "rm", "--force", volume)
    assert printed.splitlines() == ["all holds", "by the runner ['given', 'made']"]
