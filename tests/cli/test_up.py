"""`banksman up` starts the whole system, keeps it alive and stops it in order."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from banksman.cli.machine import free_port
from tests.support.polling import wait_until

from .conftest import SERVICES_LEFT_OUT, WAIT_TIMEOUT_S, Start, Up, banksman


@pytest.fixture(scope="module")
def shared_up(tmp_path_factory: pytest.TempPathFactory) -> Generator[Up]:
    """A ready system for tests that leave it running. Services that they kill are restarted."""
    up = Up(tmp_path_factory.mktemp("up") / "state")
    try:
        up.wait_for("up")
        yield up
    finally:
        up.close()


def test_up_reports_each_ready_process_with_its_start_time_and_then_the_url(shared_up: Up) -> None:
    up = shared_up
    first = [event["event"] for event in up.events].index("up") + 1
    kinds = [event["event"] for event in up.events[:first]]
    ready = {e["process"]: e["after_s"] for e in up.events[:first] if e["event"] == "ready"}
    last = up.wait_for("up")

    assert kinds == ["ready", "ready", "up"]
    assert set(ready) == {"nats", "model-server"}
    assert all(0 < after_s < WAIT_TIMEOUT_S for after_s in ready.values())
    assert last["url"] == f"http://127.0.0.1:{up.port}"
    assert [notice for notice in last["notices"] if "You're using the demo model" in notice]


def test_streams_of_up_pass_the_check(shared_up: Up) -> None:
    checked = banksman("streams", "check", "--data-dir", str(shared_up.data_dir))

    assert (checked.returncode, checked.stdout) == (0, "streams are as strong as required\n")


def test_web_pages_cannot_read_the_monitoring_of_nats(shared_up: Up) -> None:
    """nats-server lets pages of every site read its endpoints: their path is a secret."""
    address = urlsplit(shared_up.instance["monitoring_url"])
    assert len(address.path) > 32
    for path in ("/", "/varz", "/connz", "/jsz", "/healthz", "/subsz", "/accountz"):
        with pytest.raises(HTTPError) as refused:
            urlopen(f"http://{address.netloc}{path}", timeout=WAIT_TIMEOUT_S)
        with refused.value as response:
            assert response.code == 404
            assert "access-control-allow-origin" not in response.headers


def test_killed_process_is_reported_and_restarted(shared_up: Up) -> None:
    first = shared_up.pid_of("model-server")

    os.kill(first, signal.SIGKILL)

    assert shared_up.wait_for("ended", process="model-server")["how"] == "was killed by SIGKILL"
    shared_up.wait_for("ready", process="model-server", again=True)
    assert shared_up.pid_of("model-server") != first
    with urlopen(shared_up.instance["health"]["model-server"], timeout=WAIT_TIMEOUT_S) as response:
        assert response.status == 200


def test_services_restart_after_the_process_that_forked_them_was_killed(shared_up: Up) -> None:
    first = shared_up.pid_of("model-server")
    template = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
    before = [event["event"] for event in shared_up.events if event.get("process") == "model-server"]

    os.kill(template, signal.SIGKILL)
    ended = shared_up.wait_for("ended", before.count("ended") + 1, process="model-server")
    shared_up.wait_for("ready", before.count("ready") + 1, process="model-server")

    assert template != shared_up.process.pid
    assert ended["how"] == "was killed by SIGKILL"
    assert shared_up.pid_of("model-server") != first


def test_killed_nats_server_restarts_with_its_streams(shared_up: Up) -> None:
    os.kill(shared_up.pid_of("nats"), signal.SIGKILL)

    shared_up.wait_for("ready", process="nats", again=True)

    assert banksman("streams", "check", "--data-dir", str(shared_up.data_dir)).returncode == 0


def test_restart_delay_doubles_after_repeated_ends(up: Up) -> None:
    for times in (1, 2, 3):
        os.kill(up.pid_of("model-server"), signal.SIGKILL)
        up.wait_for("ready", count=times, process="model-server", again=True)

    waits = [event["again_in_s"] for event in up.events if event["event"] == "ended"]
    assert waits == [0.2, 0.4, 0.8]


def test_restart_delay_of_the_broker_stays_far_below_the_time_of_leases(up: Up) -> None:
    """P2: with the delay of other processes, the sixth kill of a series ended every running command."""
    for times in range(1, 7):
        os.kill(up.pid_of("nats"), signal.SIGKILL)
        up.wait_for("ready", count=times, process="nats", again=True)

    waits = [event["again_in_s"] for event in up.events if event["event"] == "ended"]
    assert waits == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_ctrl_c_stops_the_model_server_before_nats_and_leaves_no_process(up: Up) -> None:
    pids = [up.pid_of(name) for name in ("nats", "model-server")]

    up.interrupt()

    assert up.ended() == 0
    assert [event["process"] for event in up.events if event["event"] == "stopped"] == [
        "model-server",
        "nats",
    ]
    assert [pid for pid in pids if alive(pid)] == []
    assert not (up.data_dir / "run.json").exists()


def test_ctrl_c_during_the_start_stops_it(start: Start) -> None:
    system = start()
    system.wait_for("ready", process="nats")

    system.interrupt()

    assert system.ended() == 0
    assert not [event for event in system.events if event["event"] == "up"]


def test_start_ends_with_a_sentence_if_the_process_that_creates_the_streams_is_killed(start: Start) -> None:
    system = start()

    wait_until(lambda: killed_provisioner(system.process.pid), WAIT_TIMEOUT_S)

    assert system.ended() == 2
    assert system.events[-1]["error"]["message"] == (
        "the process that creates the streams ended without a result"
    )
    assert not (system.data_dir / "run.json").exists()


def test_start_ends_with_a_sentence_if_that_process_is_killed_before_it_describes_the_system() -> None:
    readable, writable = os.pipe()
    os.close(writable)
    provisioner = subprocess.Popen(["true"])
    provisioner.wait()
    arguments = (str(provisioner.pid), str(readable), "up", "--json")
    supervisor = [sys.executable, "-m", "banksman.cli.local.supervisor", *arguments]

    ended = subprocess.run(supervisor, pass_fds=(readable,), capture_output=True, text=True, check=False)

    assert ended.returncode == 2
    assert json.loads(ended.stdout)["error"]["message"] == (
        "the process that creates the streams ended without a result"
    )


def test_process_that_creates_the_streams_ends_before_the_system_is_ready(shared_up: Up) -> None:
    """It has the modules that the supervisor would need only for provisioning: settings and NATS."""
    shared_up.wait_for("up")

    children = children_of(shared_up.process.pid)

    assert len(children) == 2
    assert [command for command in children.values() if "nats-server" not in command] == [
        command for command in children.values() if "banksman.cli.template" in command
    ]


def test_second_ctrl_c_kills_processes_that_do_not_stop(start: Start) -> None:
    up = start(BANKSMAN_LOCAL__DRAIN_TIMEOUT_S=str(10 * WAIT_TIMEOUT_S))
    up.wait_for("up")
    frozen = up.pid_of("model-server")
    os.kill(frozen, signal.SIGSTOP)
    up.interrupt()
    up.wait_for("note")
    began = time.monotonic()

    up.interrupt()

    assert up.ended() == 0
    assert time.monotonic() - began < WAIT_TIMEOUT_S
    assert not alive(frozen)


def test_process_that_exceeds_the_drain_timeout_is_killed_and_reported(start: Start) -> None:
    system = start(BANKSMAN_LOCAL__DRAIN_TIMEOUT_S="3")
    system.wait_for("up")
    os.kill(system.pid_of("model-server"), signal.SIGSTOP)

    system.interrupt()

    assert system.ended() == 0
    assert "is killed" in system.wait_for("warning", process="model-server")["text"]


def test_kill_9_of_the_supervisor_leaves_no_orphaned_process(up: Up) -> None:
    children = [os.pidfd_open(up.pid_of(name)) for name in ("nats", "model-server")]

    up.process.kill()

    assert [ended(child, WAIT_TIMEOUT_S) for child in children] == [True, True]


def test_up_after_kill_9_of_the_supervisor_keeps_the_state(up: Up, start: Start) -> None:
    seed = (up.data_dir / "keys" / "agent.nk").read_bytes()
    up.process.kill()
    up.process.wait()

    second = start()

    second.wait_for("up")
    assert (up.data_dir / "keys" / "agent.nk").read_bytes() == seed
    assert banksman("streams", "check", "--data-dir", str(up.data_dir)).returncode == 0


def test_second_up_reports_the_running_system_and_changes_nothing(shared_up: Up) -> None:
    before = shared_up.instance

    second = banksman("up", "--data-dir", str(shared_up.data_dir), "--port", str(free_port()))

    assert second.returncode == 1
    assert second.stdout.count("\n") == 1
    assert f"http://127.0.0.1:{shared_up.port}" in second.stdout
    assert f"pid {shared_up.process.pid}" in second.stdout
    assert shared_up.instance == before


def test_port_in_use_prints_one_sentence(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = banksman("up", "--data-dir", str(data_dir), BANKSMAN_GATEWAY__PORT=str(port))

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"banksman: BANKSMAN_GATEWAY__PORT: expected a free port, got {port}; another program listens there: "
        "stop it, or choose another port\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "BANKSMAN_GATWAY__PORT",
            "8080",
            "Unknown setting BANKSMAN_GATWAY__PORT; did you mean BANKSMAN_GATEWAY__PORT?",
        ),
        ("BANKSMAN_LOCAL__AGENTS", "many", "BANKSMAN_LOCAL__AGENTS must be an integer"),
        (
            "BANKSMAN_LOCAL__AGENT",
            "2",
            "Unknown setting BANKSMAN_LOCAL__AGENT; did you mean BANKSMAN_LOCAL__AGENTS?",
        ),
        (
            "OPENAI_BASE_URL",
            "http://127.0.0.1:1/v1",
            "BANKSMAN_MODELS__DEFAULT: expected openai:NAME, a model of the server at OPENAI_BASE_URL",
        ),
    ],
)
def test_invalid_setting_prints_one_sentence(data_dir: Path, name: str, value: str, sentence: str) -> None:
    done = banksman("up", "--data-dir", str(data_dir), "--port", "0", **{name: value})

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"banksman: {sentence}")
    assert done.stderr.count("\n") == 1


def test_setting_that_a_service_rejects_stops_the_system_with_its_sentence(
    start: Start,
) -> None:
    system = start(BANKSMAN_MODEL_SERVER__PROT="1")

    assert system.ended() == 2
    assert system.events[-1]["error"]["message"].startswith(
        "Unknown setting BANKSMAN_MODEL_SERVER__PROT; did you mean BANKSMAN_MODEL_SERVER__PORT?"
    )
    assert not [event for event in system.events if event.get("event") == "ended"]


def test_process_that_is_not_ready_in_time_is_named_and_awaited(start: Start) -> None:
    system = start(BANKSMAN_LOCAL__READY_TIMEOUT_S="0.01")

    assert system.wait_for("not_ready", process="model-server")["reason"]
    system.wait_for("ready", process="model-server")
    system.wait_for("up")


def test_detached_up_returns_when_ready_and_down_stops_it(data_dir: Path) -> None:
    left_out = [word for name in SERVICES_LEFT_OUT for word in ("--without", name)]
    try:
        begun = banksman("up", "--detach", "--data-dir", str(data_dir), "--port", "0", *left_out)
        again = banksman("up", "--detach", "--data-dir", str(data_dir), "--port", "0", *left_out)
    finally:
        ended = banksman("down", "--data-dir", str(data_dir))
    nothing = banksman("down", "--data-dir", str(data_dir))

    assert begun.stdout.startswith("Banksman is ready at http://127.0.0.1:")
    assert [begun.returncode, again.returncode, ended.returncode, nothing.returncode] == [0, 1, 0, 0]
    assert (ended.stdout, nothing.stdout) == ("stopped\n", "nothing is running\n")


def test_one_of_several_detached_starts_wins_and_keeps_its_log(data_dir: Path) -> None:
    arguments = ("up", "--detach", "--json", "--data-dir", str(data_dir), "--port", "0")
    left_out = [word for name in SERVICES_LEFT_OUT for word in ("--without", name)]
    with ThreadPoolExecutor() as pool:
        starts = [pool.submit(banksman, *arguments, *left_out) for _ in range(4)]
        done = [start.result() for start in starts]
    try:
        answers = {one.returncode: json.loads(one.stdout) for one in done}
        log = (data_dir / "logs/up.log").read_text()
        instance = json.loads((data_dir / "run.json").read_text())
    finally:
        banksman("down", "--data-dir", str(data_dir))

    assert sorted(one.returncode for one in done) == [0, 1, 1, 1], [one.stderr for one in done]
    assert answers[0]["pid"] == instance["supervisor"]["pid"]
    assert answers[1]["running"]
    assert "already running" not in log and "is starting in" not in log and "ready" in log
    assert not list((data_dir / "logs").glob(".up-*"))


def test_detached_up_prints_the_reason_of_a_failed_start(data_dir: Path) -> None:
    done = banksman("up", "--detach", "--data-dir", str(data_dir), BANKSMAN_MODEL_SERVER__PROT="1")

    assert done.returncode == 2
    assert "BANKSMAN_MODEL_SERVER__PROT" in done.stderr


def test_private_files_are_readable_by_their_owner_only(shared_up: Up) -> None:
    files = list(walk(shared_up.data_dir / "keys"))

    assert files
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
    assert {oct((shared_up.data_dir / name).stat().st_mode & 0o777) for name in ("keys", "nats", "logs")} == {
        "0o700"
    }


def alive(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    with contextlib.suppress(OSError):
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    return False


def killed_provisioner(launcher: int) -> bool:
    """Kill the process that creates the streams; False before the launcher has become the supervisor."""
    if "supervisor" not in command_of(launcher):
        return False
    for pid, command in children_of(launcher).items():
        if " up " in command and "supervisor" not in command:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def children_of(parent: int) -> dict[int, str]:
    """Return the command lines of the processes that a process has started, zombies included, by pid."""
    found: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found[int(stat.parent.name)] = command_of(int(stat.parent.name))
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def ended(pidfd: int, within_s: float) -> bool:
    """Wait for the end of a process; return False on timeout."""
    ended, _, _ = select.select([pidfd], [], [], within_s)
    os.close(pidfd)
    return bool(ended)


def walk(directory: Path) -> Iterator[Path]:
    """Return all files below a directory."""
    return (path for path in directory.rglob("*") if path.is_file())
