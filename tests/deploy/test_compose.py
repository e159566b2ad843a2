"""compose.yaml is valid, separates the services, and lets bubblewrap work in the tool-runner's container."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from banksman.cli.broker.accounts import key_variable
from tests.support.paths import ROOT
from tests.support.privileged import require

RUNNERS = {"tool-runner": "r1", "tool-runner-2": "r2"}
"""The runners of the file for several containers, with their ids."""
PROFILE = ROOT / "deploy" / "docker" / "seccomp-tool-runner.json"

AS_NOBODY = """
import os, shutil, sys

def become_nobody():
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

command = sys.argv[1:]
program = shutil.which(command[0])
"""

WITHOUT_PROFILE = f"""
{AS_NOBODY}
become_nobody()
os.execv(program, command)
"""

UNDER_PROFILE = f"""
{AS_NOBODY}
import json
import pyseccomp

profile = json.load(open({str(PROFILE)!r}))
rules = pyseccomp.SyscallFilter(pyseccomp.ERRNO(profile["defaultErrnoRet"]))
for entry in profile["syscalls"]:
    limits = [pyseccomp.Arg(a["index"], pyseccomp.EQ, a["value"]) for a in entry.get("args", ())]
    for name in entry["names"]:
        try:
            rules.add_rule(pyseccomp.ALLOW, name, *limits)
        except (OSError, ValueError):
            continue  # as an engine does with a name that its libseccomp does not know
become_nobody()
rules.load()
os.execv(program, command)
"""

BWRAP = (
    "bwrap --unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try "
    "--disable-userns --uid 1000 --gid 1000 --new-session --die-with-parent --cap-drop ALL "
    "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 "
    "--dev /dev --proc /proc --size 1048576 --tmpfs /tmp --remount-ro / --clearenv"
).split()


@pytest.fixture(scope="module")
def compose() -> list[str]:
    """Return the command of the installed Compose."""
    plugin = (
        subprocess.run(["docker", "compose", "version"], capture_output=True)
        if shutil.which("docker")
        else None
    )
    if plugin and plugin.returncode == 0:
        return ["docker", "compose"]
    require(
        "Docker Compose", shutil.which("docker-compose") is not None, "compose.yaml read by Compose itself"
    )
    return ["docker-compose"]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Return the services as written, with merge keys resolved."""
    return yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]


@pytest.fixture(scope="module")
def scaled() -> dict[str, Any]:
    """Return the services as the file for several containers changes them."""
    text = (ROOT / "deploy" / "docker" / "compose.scaled.yaml").read_text()
    # A tag of Compose, by which a value replaces the one of the other file.
    return yaml.safe_load(text.replace("!override", ""))["services"]


def test_several_containers_of_a_service_have_their_own_ports_and_workspaces(scaled: dict[str, Any]) -> None:
    """R114: two containers of each service; a workspace belongs to one runner. `make scaled` starts them."""
    assert {name: service["scale"] for name, service in scaled.items() if "scale" in service} == {
        "agent": 2,
        "workflows": 2,
    }
    for name, runner in RUNNERS.items():
        assert scaled[name]["volumes"] == [
            f"workspaces-{runner}:/workspaces",
            f"nkeys-tool-runner-{runner}:/keys/tool-runner-{runner}:ro",
        ]


def test_published_ports_stay_the_same_at_each_start(
    services: dict[str, Any], scaled: dict[str, Any]
) -> None:
    """The engine gives the ports of a range to the containers of a service in any order."""
    published = {
        name: service["ports"]
        for file in (services, scaled)
        for name, service in file.items()
        if "ports" in service
    }
    assert published == {
        "gateway": ["127.0.0.1:${BANKSMAN_PORT:-8080}:8080"],
        "gateway-2": ["127.0.0.1:${BANKSMAN_PORT_2:-8081}:8080"],
    }
    assert not any("scale" in file.get(name, {}) for file in (services, scaled) for name in published)


def test_each_of_several_runners_has_its_own_key(scaled: dict[str, Any], tmp_path: Path) -> None:
    """The keys that the file creates, those that it gives to its runners, and the server's users agree."""
    command = [str(tmp_path) if word == "/keys" else word for word in scaled["keys"]["command"]]
    created = subprocess.run(
        [sys.executable, "-m", "banksman.cli", *command, "--json"], capture_output=True, text=True, check=True
    )
    config = (ROOT / "deploy" / "nats" / Path(scaled["nats"]["command"][2]).name).read_text()
    settings = {name: scaled[name]["environment"] for name in RUNNERS}
    seeds = {name: Path(one["BANKSMAN_NATS__NKEY_SEED_FILE"]) for name, one in settings.items()}

    assert {name: one["BANKSMAN_TOOL_RUNNER__RUNNER"] for name, one in settings.items()} == RUNNERS
    assert all((tmp_path / seed.relative_to("/keys")).is_file() for seed in seeds.values())
    users = {seed.stem for seed in seeds.values()}
    assert {user for user in json.loads(created.stdout) if user.startswith("tool-runner")} == users
    assert set(re.findall(r"_INBOX_(tool-runner[^.]*)", config)) == users
    assert set(re.findall(r"nkey: \$(BANKSMAN_NKEY_TOOL_RUNNER\w*)", config)) == set(map(key_variable, users))


def test_compose_accepts_the_file_with_every_profile(compose: list[str]) -> None:
    done = subprocess.run(
        [*compose, "--file", str(ROOT / "compose.yaml"), "--profile", "docker-sandbox", "config", "--quiet"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr


def test_only_the_gateway_publishes_a_port_and_only_on_loopback(
    services: dict[str, Any],
) -> None:
    assert {name: service["ports"] for name, service in services.items() if "ports" in service} == {
        "gateway": ["127.0.0.1:${BANKSMAN_PORT:-8080}:8080"]
    }


def test_no_service_mounts_the_key_of_another_service(services: dict[str, Any]) -> None:
    mounted = {
        name: {mount.split(":")[0] for mount in service.get("volumes", ()) if mount.startswith("nkeys-")}
        for name, service in services.items()
        if name != "keys"
    }

    assert {name: keys for name, keys in mounted.items() if keys} == {
        "agent": {"nkeys-agent"},
        "gateway": {"nkeys-gateway"},
        "nats": {"nkeys-nats"},
        "provision": {"nkeys-operator"},
        "tool-runner": {"nkeys-tool-runner"},
        "tool-runner-docker": {"nkeys-tool-runner"},
        "workflows": {"nkeys-workflows"},
    }


def test_no_provider_key_reaches_a_service_that_calls_no_model(services: dict[str, Any]) -> None:
    holders = {name for name, service in services.items() if "API_KEY" in str(service.get("environment"))}

    assert holders == {"agent", "gateway"}


def test_no_service_runs_as_root_with_a_capability_or_a_writable_root(services: dict[str, Any]) -> None:
    restrictions = {
        name: (service["user"], service["cap_drop"], service["read_only"], service["security_opt"][0])
        for name, service in services.items()
    }

    assert set(map(str, restrictions.values())) == {
        str(("10001:10001", ["ALL"], True, "no-new-privileges:true")),
    }, restrictions


def test_only_the_docker_profile_holds_the_engine_socket(services: dict[str, Any]) -> None:
    holders = {name for name, service in services.items() if "docker.sock" in str(service.get("volumes"))}

    assert holders == {"tool-runner-docker"}
    assert services["tool-runner-docker"]["profiles"] == ["docker-sandbox"]


def test_bubblewrap_creates_its_sandbox_under_the_container_profile() -> None:
    require_user_namespaces()

    done = under_profile([*BWRAP, "bash", "-c", "echo inside; ls /proc | grep -c '^[0-9]'"])

    assert done.stdout.startswith("inside\n"), done.stderr


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("ptrace", 101),
        ("add_key", 248),
        ("setns", 308),
        ("bpf", 321),
        ("userfaultfd", 323),
        ("io_uring_setup", 425),
    ],
)
def test_the_container_profile_refuses_the_system_call(call: str, number: int) -> None:
    require("an x86-64 machine", os.uname().machine == "x86_64", f"{call} by its number")
    program = f"$! = 0; syscall({number}, 0, 0, 0, 0); print $! + 0"

    done = under_profile(["perl", "-e", program])

    assert done.stdout == "1", (call, done.stdout, done.stderr)


def test_container_profile_allows_the_calls_of_bubblewrap_and_no_dangerous_call() -> None:
    allowed = {
        name
        for entry in json.loads(PROFILE.read_text())["syscalls"]
        if "args" not in entry
        for name in entry["names"]
    }

    assert {"clone", "unshare", "mount", "umount2", "pivot_root", "openat2", "seccomp"} <= allowed
    assert allowed.isdisjoint(
        {"bpf", "ptrace", "keyctl", "kexec_load", "init_module", "open_by_handle_at", "setns"}
    )


def under_profile(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command as an ordinary user under the tool-runner's container profile."""
    return _python(UNDER_PROFILE, command)


def require_user_namespaces() -> None:
    """Skip the check where an ordinary user may not create namespaces, whatever the profile."""
    made = shutil.which("bwrap") is not None and _python(WITHOUT_PROFILE, [*BWRAP, "true"]).returncode == 0
    require("user namespaces and bubblewrap", made, "bubblewrap under the container's profile")


def _python(program: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, cwd="/", timeout=20
    )
