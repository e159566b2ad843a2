"""compose.yaml starts the whole system, and the system works."""

import json
import subprocess
from base64 import b64encode
from shlex import quote
from urllib.request import urlopen

from tests.deploy.stack import Stack
from tests.support.client import Client
from tests.support.everyday_commands import COMMANDS, COMPLAINTS

from .conftest import WAIT_TIMEOUT_S, bash_in

EVERYDAY_TIMEOUT_S = 240.0
"""Some 30 commands one after the other, on a busy machine."""


def test_page_is_served_on_the_published_port(stack: Stack) -> None:
    with urlopen(stack.url, timeout=WAIT_TIMEOUT_S) as response:
        assert "<title>Banksman" in response.read().decode()


async def test_approved_run_writes_and_reads_files_in_the_runners_container(stack: Stack) -> None:
    async with Client.connected(stack.url, timeout_s=WAIT_TIMEOUT_S) as client:
        conversation = await client.create()

        run = await client.chat(conversation, 'write "signal" to notes.txt')
        await client.approve(run)
        written = await client.finished(run)
        shown = await bash_in(client, conversation, "pwd; id -u; cat notes.txt; echo; hostname")
        read = await client.run(conversation, "read notes.txt")

    assert written["status"] == "completed"
    assert shown["stdout"].split() == ["/workspace", "1000", "signal", "sandbox"]
    assert "signal" in read["content"]


async def test_everyday_commands_work_in_the_runners_image(stack: Stack) -> None:
    """Each in a directory of its own; what fails or complains is printed with its output."""
    complaint = quote("|".join(COMPLAINTS))
    script = "\n".join(
        f"mkdir ~/{number}; (cd ~/{number}; set -e\n{command}\n) >~/out 2>&1 "
        f"&& ! grep -qE {complaint} ~/out && echo works || tail -n 99 <<< {quote(name)} - ~/out"
        for number, (name, command) in enumerate(COMMANDS.items())
    )
    encoded = b64encode(script.encode()).decode()
    async with Client.connected(stack.url, timeout_s=EVERYDAY_TIMEOUT_S) as client:
        done = await bash_in(client, await client.create(), f"base64 -d <<< {encoded} | bash")

    assert done["stdout"].splitlines() == ["works"] * len(COMMANDS)


async def test_every_tenant_is_offered_the_weather_tool(stack: Stack) -> None:
    """R59, R60, R61."""
    async with Client.connected(stack.url, timeout_s=WAIT_TIMEOUT_S) as client:
        run = await client.run(await client.create(), "what is the weather in Paris")
        (call,) = run["tool_calls"]

    assert call["tool"] == "get_current_weather"
    assert (call["result"]["location"], call["result"]["condition"]) == ("Paris", "Sunny")
    assert 65 <= call["result"]["temperature"] <= 75


def test_every_container_runs_with_the_restrictions_of_the_compose_file(stack: Stack) -> None:
    services = stack.compose("config", "--services").split()

    restrictions = {
        name: _restrictions(stack, container) for name in services for container in stack.ids(name)
    }

    assert set(restrictions) == set(services)
    assert set(restrictions.values()) == {("10001:10001", True, ("ALL",), None, True, True)}, restrictions


def _restrictions(stack: Stack, container: str) -> tuple[object, ...]:
    known = json.loads(stack.engine.output("inspect", container))[0]
    host = known["HostConfig"]
    return (
        known["Config"]["User"],
        host["ReadonlyRootfs"],
        tuple(host["CapDrop"]),
        host["CapAdd"],
        "no-new-privileges:true" in host["SecurityOpt"],
        host["Init"],
    )


def test_no_service_logs_an_error(stack: Stack) -> None:
    logs = stack.compose("logs", "--no-color")

    assert [line for line in logs.splitlines() if '"level": "error"' in line or "Traceback" in line] == []


def test_nats_can_repair_its_files(stack: Stack) -> None:
    check = "from banksman.cli.broker.salvage import is_available; print(is_available())"
    assert stack.execute("nats", "python", "-c", check).stdout.split() == ["True"]


def test_nats_and_the_runner_are_unreachable_from_outside(stack: Stack) -> None:
    published = stack.engine.output(
        "ps", "--filter", f"label=com.docker.compose.project={stack.project}", "--format", "{{.Ports}}"
    )

    assert [line for line in published.splitlines() if line] == [f"127.0.0.1:{stack.port}->8080/tcp"]


def test_service_without_an_outbound_network_reaches_no_address(stack: Stack) -> None:
    program = (
        "import socket\n"
        "for host in ('1.1.1.1', '169.254.169.254'):\n"
        "    try: socket.create_connection((host, 80), 3); print('out')\n"
        "    except OSError as error: print('no way')"
    )

    done: subprocess.CompletedProcess[str] = stack.execute("workflows", "python", "-c", program)

    assert done.stdout.split("\n")[:2] == ["no way", "no way"], done.stderr
