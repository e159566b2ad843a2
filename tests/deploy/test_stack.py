"""compose.yaml starts the whole system, and the system works."""

import json
import subprocess
from urllib.request import urlopen

from tests.deploy.stack import Stack
from tests.support.client import Client

from .conftest import WAIT_TIMEOUT_S, bash_in


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
