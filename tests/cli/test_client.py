"""The client commands on the whole system, started by `banksman up` with the demo model."""

import base64
import json
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from banksman.cli.client.view import TextView
from tests.support.polling import scripted_pause, wait_until
from tests.support.timeouts import WAIT_TIMEOUT_S

from .conftest import banksman, environment

# The first test of the module starts the whole system, which is slow on a busy machine.
pytestmark = pytest.mark.timeout(180)

IDLE_S = 10
MAX_WINDOWS = 4
LEASES = 2
"""Processes that hold a lease: the tool-runner and the server of the built-in tools."""
NEEDS_APPROVAL = "run `echo signal-$((40 + 2))`"


class Cli:
    """Runs commands on one running system."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def __call__(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return banksman(*arguments, stdin=stdin, BANKSMAN_DATA_DIR=str(self.data_dir))

    def up(self) -> subprocess.CompletedProcess[str]:
        """Start the system. Its agents do not wait for calls when they stop."""
        options = ("--detach", "--port", "0", "--data-dir", str(self.data_dir))
        return banksman("up", *options, BANKSMAN_AGENT__DRAIN_S="0")

    def json(self, *arguments: str, stdin: str = "") -> list[dict[str, Any]]:
        """Return a command's JSON output."""
        return [json.loads(line) for line in self(*arguments, "--json", stdin=stdin).stdout.splitlines()]


@pytest.fixture(scope="module")
def cli(reachable_dir: Path) -> Generator[Cli]:
    """Start the whole system, without a sandbox if the machine has none."""
    data_dir = reachable_dir / "state"
    started = Cli(data_dir).up()
    assert started.returncode == 0, started.stderr
    yield Cli(data_dir)
    # The files of the last run change right before the end.
    assert banksman("demo", BANKSMAN_DATA_DIR=str(data_dir)).returncode == 0
    assert banksman("down", "--data-dir", str(data_dir)).returncode == 0
    assert complaints(data_dir / "logs") == [], "\n".join(complaints(data_dir / "logs"))
    assert banksman("reset", "--force", "--data-dir", str(data_dir)).returncode == 0
    assert not data_dir.exists()


def complaints(logs: Path) -> list[str]:
    """Return the warnings and errors in the logs of all processes.

    Two kinds are omitted: warnings of the watchdog, because an event loop may stand still on a busy machine,
    and warnings of a starting nats-server about the launcher's first health checks, which may see a stream
    that is being created.
    """
    lines = [line for file in sorted(logs.glob("*.log")) for line in file.read_text().splitlines()]
    complaint = re.compile(r'"level": "(warning|error|critical)"|Traceback|\[(WRN|ERR|FTL)\]')
    starting = 'Healthcheck failed: "(failed to be ready|JetStream stream .* could not be recovered)'
    expected = re.compile(rf'"logger": "banksman\.runtime\.(watchdog|event_loop)"|{starting}')
    return [line for line in lines if complaint.search(line) and not expected.search(line)]


@pytest.fixture
def open_request(cli: Cli) -> dict[str, Any]:
    """Start a run that waits for approval."""
    done = cli("run", NEEDS_APPROVAL)
    assert done.returncode == 1, done.stdout + done.stderr
    return cli.json("approvals")[-1]


def test_run_prints_the_reply_and_exits_with_0(cli: Cli) -> None:
    done = cli("run", "hello")

    assert done.returncode == 0, done.stderr
    assert "demo model" in done.stdout


def test_usage_lists_day_and_month(cli: Cli) -> None:
    """No limit is set."""
    assert cli("run", "hello").returncode == 0

    [day, month] = cli.json("usage")[0]["windows"]
    shown = cli("usage")

    assert (day["window"], month["window"], day["max_tokens"]) == ("day", "month", None)
    assert shown.returncode == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["day", "month"]


def test_run_without_a_terminal_leaves_the_approval_request_open_and_names_the_command(cli: Cli) -> None:
    done = cli("run", NEEDS_APPROVAL)

    assert done.returncode == 1
    open_ids = [request["approval_id"] for request in cli.json("approvals")]
    assert done.stderr.splitlines()[-1] == f"waiting for you: banksman approve {open_ids[-1]}"


def test_approved_run_continues_and_finishes(cli: Cli, open_request: dict[str, Any]) -> None:
    decided = cli("approve", open_request["approval_id"])

    finished = follow_to_the_end(cli, open_request["conversation_id"])
    assert (decided.returncode, decided.stdout) == (0, "approved by local\n")
    assert finished["data"]["status"] in ("completed", "failed")
    assert cli("approve", open_request["approval_id"]).returncode == 1


def test_command_that_runs_at_the_stop_has_its_result_after_the_next_start(cli: Cli) -> None:
    """P2, P16: agents store the result, so they stop after the runner."""
    run = cli.json("run", "run `touch begun; sleep 3; echo kept-$((40 + 2))`")
    conversation = run[0]["conversation_id"]
    assert cli("approve", cli.json("approvals")[-1]["approval_id"]).returncode == 0
    begun = cli.data_dir / "workspaces"
    wait_until(lambda: any(begun.glob("**/begun")), WAIT_TIMEOUT_S)

    assert banksman("down", "--data-dir", str(cli.data_dir)).returncode == 0
    assert cli.up().returncode == 0

    follow_to_the_end(cli, conversation)
    events = cli.json("replay", conversation)
    results = [event["data"]["content"] for event in events if event["type"] == "tool_call.completed"]
    assert "kept-42" in str(results[0])


def test_run_continues_after_a_rejection_as_feedback(cli: Cli, open_request: dict[str, Any]) -> None:
    """R13: against the policy of its assistant."""
    decided = cli("reject", open_request["approval_id"], "--on-reject", "feedback")

    assert decided.returncode == 0, decided.stderr
    assert follow_to_the_end(cli, open_request["conversation_id"])["data"]["status"] == "completed"


def test_rejected_run_ends_and_stores_the_reason(cli: Cli, open_request: dict[str, Any]) -> None:
    """R13."""
    decided = cli("reject", open_request["approval_id"], "--reason", "not today")

    assert decided.returncode == 0, decided.stderr
    assert follow_to_the_end(cli, open_request["conversation_id"])["data"]["status"] == "rejected"
    events = cli.json("replay", open_request["conversation_id"])
    (resolved,) = [event for event in events if event["type"] == "approval.resolved"]
    assert [item["reason"] for item in resolved["data"]["decisions"]] == ["not today"]


def test_replay_prints_each_event_once_in_order_and_exits(cli: Cli) -> None:
    events = cli.json("run", "hello")
    conversation = events[0]["conversation_id"]

    replayed = cli.json("replay", conversation)

    assert [event["seq"] for event in replayed] == list(range(1, len(replayed) + 1))
    assert [replayed[0]["type"], replayed[-1]["type"]] == ["run.started", "run.finished"]
    assert [event["seq"] for event in cli.json("replay", conversation, "--after", "2")] == [
        event["seq"] for event in replayed[2:]
    ]


def test_run_continues_an_existing_conversation(cli: Cli) -> None:
    conversation = cli.json("run", "hello")[0]["conversation_id"]

    cli("run", "hello again", "--conversation", conversation)

    started = [event for event in cli.json("replay", conversation) if event["type"] == "run.started"]
    assert [event["data"]["message"] for event in started] == ["hello", "hello again"]


def test_an_export_is_imported_with_its_files_and_exported_again_without_loss(
    cli: Cli, tmp_path: Path
) -> None:
    """Ids, and the marks that an import sets, differ; the attached file is in the new workspace."""
    conversation = cli.json("run", "say hello")[0]["conversation_id"]
    first, second, attached = tmp_path / "first.json", tmp_path / "second.json", "notes/a b.txt"
    exported = cli("export", conversation, "--output", str(first))
    assert (exported.returncode, exported.stdout) == (0, ""), exported.stderr
    content = json.loads(first.read_text())
    [start] = [event for event in content["events"] if event["type"] == "run.started"]
    # A client would have attached the file with its message.
    start["data"]["message"] = [
        {"type": "text", "text": "say hello"},
        {"type": "file", "path": attached},
    ]
    data = "data:application/octet-stream;base64," + base64.b64encode(b"Hello").decode()
    content["files"] = [{"path": attached, "data": data}]
    first.write_text(json.dumps(content))

    def again(file: Path) -> dict[str, Any]:
        [result] = json.loads(cli("import", str(file), "--json").stdout)
        assert (result["error"], result["left_out"]) == (None, {})
        count = len(json.loads(file.read_text())["events"])

        def whole() -> dict[str, Any] | None:
            found = json.loads(cli("export", result["conversation_id"]).stdout)
            return found if len(found["events"]) == count else None

        return wait_until(whole, interval_s=1.0)

    once = again(first)
    assert once["files"] == content["files"]
    assert _same_in_each(once) == _same_in_each(content)
    second.write_text(json.dumps(once))
    assert _same_in_each(again(second)) == _same_in_each(once)
    unknown = cli("export", "c" * 22)
    assert (unknown.returncode, unknown.stdout) == (2, "")


def _same_in_each(export: dict[str, Any]) -> Any:
    """Return events and files of an export, without what every import changes."""
    ids: dict[str, str] = {}
    events = [
        {key: value for key, value in event.items() if key not in ("log_epoch", "imported")}
        for event in export["events"]
    ]
    named = re.sub(
        r"\b[cmki][0-9a-z]{21}(?:-[0-9a-z]{12}){0,2}\b",
        lambda found: ids.setdefault(found[0], f"id{len(ids)}"),
        json.dumps(events),
    )
    return json.loads(named), export["files"]


def test_unknown_conversation_prints_one_sentence(cli: Cli) -> None:
    done = cli("replay", "c-unheard-of")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "banksman: no conversation with id 'c-unheard-of'\n"


def test_doctor_reports_a_running_system_as_ok(cli: Cli) -> None:
    levels = {line["name"]: line["level"] for line in cli.json("doctor")}

    assert {name: levels[name] for name in ("system", "nats", "gateway", "agent-1", "streams")} == {
        "system": "ok",
        "nats": "ok",
        "gateway": "ok",
        "agent-1": "ok",
        "streams": "ok",
    }


def test_each_service_exports_only_what_it_measures(cli: Cli) -> None:
    """Services are forked from a process that has imported all of them."""
    exported: dict[str, set[str]] = {}
    for name, url in json.loads((cli.data_dir / "run.json").read_text())["health"].items():
        if name not in ("nats", "model-server"):
            with urlopen(url.replace("/readyz", "/metrics"), timeout=WAIT_TIMEOUT_S) as response:
                lines = response.read().decode().splitlines()
            exported[name] = {line.split()[2] for line in lines if line.startswith("# TYPE banksman_")}
    gateway = {"banksman_waiting_runs", "banksman_expired_conversations_total"}
    runs = {"banksman_full_streams"}

    assert gateway | runs <= exported["gateway"]
    assert runs <= exported["agent-1"]
    assert [name for name, found in exported.items() if found & gateway] == ["gateway"]
    assert {name for name, found in exported.items() if found & runs} <= {"gateway", "agent-1", "agent-2"}


def test_an_idle_system_sends_few_messages(cli: Cli) -> None:
    """Each message costs processor time, and each stored message costs a write to the disk."""
    monitoring = json.loads((cli.data_dir / "run.json").read_text())["monitoring_url"]

    def counted() -> tuple[int, int]:
        with urlopen(f"{monitoring}/varz", timeout=WAIT_TIMEOUT_S) as varz:
            totals = json.load(varz)
        with urlopen(f"{monitoring}/jsz?streams=true", timeout=WAIT_TIMEOUT_S) as jsz:
            accounts = json.load(jsz)["account_details"]
        streams = [stream for account in accounts for stream in account.get("stream_detail", [])]
        stored = sum(int(stream["state"]["last_seq"]) for stream in streams)
        return int(totals["in_msgs"]) + int(totals["out_msgs"]), stored

    def window() -> tuple[int, int]:
        before = counted()
        scripted_pause(IDLE_S)
        sent, stored = (after - first for after, first in zip(counted(), before, strict=True))
        return sent, stored

    def is_quiet(sent: int, stored: int) -> bool:
        return sent <= (6 + 4 * LEASES) * IDLE_S and stored <= 0.25 * LEASES * IDLE_S + 1

    # The remaining work of earlier tests ends in the first windows.
    windows = [window()]
    while not is_quiet(*windows[-1]) and len(windows) < MAX_WINDOWS:
        windows.append(window())
    assert is_quiet(*windows[-1]), windows


def test_dead_ls_is_empty_and_replay_of_an_unknown_letter_fails(cli: Cli) -> None:
    listed, replayed = cli("dead", "ls"), cli("dead", "replay", "17")

    assert (listed.returncode, listed.stdout) == (0, "no dead letters\n")
    assert (replayed.returncode, replayed.stderr) == (2, "banksman: no dead letter with id '17'\n")


def test_a_workflow_prints_its_result_once(cli: Cli) -> None:
    done = cli("workflows", "run", "search_code", "no-such-text")
    assert (done.returncode, done.stdout.count("Nothing matches `no-such-text`.")) == (0, 1), done.stdout


def test_workflows_are_listed(cli: Cli) -> None:
    """R112."""
    done = cli("workflows", "ls", "--json")

    assert done.returncode == 0, done.stderr
    assert all(json.loads(line)["name"] for line in done.stdout.splitlines())


def test_any_operation_is_called_with_the_ids_of_its_path_and_its_fields(cli: Cli) -> None:
    times = ("cron=0 9 * * MON-FRI", "timezone=Europe/Berlin")
    start = 'start={"type": "prompt", "content": "hello"}'
    [added] = cli.json("call", "schedule.create", start, *times, "title=-", stdin="Greeting\n")
    [started] = cli.json("call", "schedule.run", added["id"])
    follow_to_the_end(cli, started["conversation_id"])
    [paused] = cli.json("call", "schedule.update", added["id"], start, *times, "paused=true")
    shown = cli("call", "schedule.read", added["id"])
    removed = cli("call", "schedule.delete", added["id"])

    assert added["title"] == "Greeting" and added["next_at"]
    assert (paused["paused"], paused["next_at"], paused["cron"]) == (True, None, "0 9 * * MON-FRI")
    assert json.loads(shown.stdout)["runs"][0]["run_id"] == started["run_id"]
    assert (removed.returncode, removed.stdout) == (0, "{}\n")
    assert cli.json("call", "schedule.list") == [{"items": [], "next": None}]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(("schedule.lst",), "the name of an operation: schedule.list", id="misspelt"),
        pytest.param(("schedule.list", "more"), "NAME=VALUE after 0 values of the path", id="too many words"),
        pytest.param(("audit.export",), "an operation whose reply is JSON", id="a file"),
        pytest.param(("schedule.read", "no-such"), "no schedule with id 'no-such'", id="refused"),
    ],
)
def test_a_call_that_cannot_be_made_names_the_reason(cli: Cli, words: tuple[str, ...], says: str) -> None:
    done = cli("call", *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_a_secret_is_read_from_standard_input_listed_by_name_and_removed(cli: Cli) -> None:
    done = cli("secrets", "set", "API_TOKEN", stdin="value-of-the-token\n")
    [listed] = cli.json("secrets", "ls")
    shown = cli("secrets", "ls").stdout
    short = cli("secrets", "set", "SHORT", stdin="geheim")
    assert cli("secrets", "rm", "API_TOKEN").returncode == 0

    assert (done.returncode, done.stdout) == (0, "set API_TOKEN\n")
    assert listed["name"] == "API_TOKEN" and shown.startswith("API_TOKEN ")
    assert "value-of-the-token" not in json.dumps(listed) + shown
    assert short.returncode == 2 and "geheim" not in short.stdout + short.stderr
    assert cli("secrets", "ls").stdout == "no secrets\n"


def test_a_workflow_takes_its_parameters_by_name_and_by_position(cli: Cli) -> None:
    given = cli("workflows", "run", "search_code", "no-such-text", "path=.", "--json")
    extra = cli("workflows", "run", "create_project", "demo", "web", "more")
    misspelt = cli("workflows", "run", "create_project", "tmeplate=web", "demo")
    with_sign = cli("workflows", "run", "search_code", "a == b", "pat=src")

    assert (given.returncode, "no-such-text" in given.stdout) == (0, True), given.stderr
    assert (extra.returncode, "NAME=VALUE" in extra.stderr) == (2, True)
    assert (misspelt.returncode, "the text itself, write name=tmeplate=web" in misspelt.stderr) == (2, True)
    assert "NAME one of name, template" in misspelt.stderr
    assert (with_sign.returncode, "path=pat=src" in with_sign.stderr) == (2, True)


@pytest.mark.parametrize(
    ("pieces", "printed"),
    [
        pytest.param([(0, "He"), (2, "llo "), (0, "Hello "), (6, "wor")], "Hello world\n", id="repeated"),
        pytest.param(
            [(0, "Bye, wo"), (0, "He"), (2, "llo")], "Bye, wo\nHello world\n", id="model requested again"
        ),
        pytest.param([(0, "Bye")], "Bye\nHello world\n", id="pieces of the second request missed"),
        pytest.param([(0, "He"), (8, "rld")], "Hello world\n", id="a piece missed"),
    ],
)
def test_deltas_and_the_whole_message_print_each_text_once(
    pieces: list[tuple[int, str]], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    view = TextView()

    for offset, text in pieces:
        view.show({"type": "message.delta", "data": {"message_id": "m", "offset": offset, "text": text}})
    view.show(
        {
            "type": "message.completed",
            "data": {"message_id": "m", "role": "assistant", "content": "Hello world"},
        }
    )

    assert capsys.readouterr().out == printed


def test_a_wait_for_an_overloaded_model_is_printed_with_its_time_and_cause(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = {"reason": "overloaded", "next_attempt_s": 11.7, "error": "529: Overloaded\x1b[2J"}

    TextView().show({"type": "model.waiting", "data": data})

    printed = capsys.readouterr().out
    assert printed.startswith("· model overloaded; next attempt in 12 s: 529: Overloaded")
    assert "\x1b" not in printed


def test_a_request_for_a_value_and_a_tool_of_the_same_name_are_each_printed_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The steps of one turn: a tool, two requests for a value, and a tool with the name of such a step."""
    view = TextView()
    for id, name in (
        ("k1", "bash"),
        ("k2", "request_input"),
        ("k3", "request_input"),
        ("k4", "request_input"),
    ):
        data = {"tool_call_id": id, "name": name, "arguments": {"n": id}}
        view.show({"type": "tool_call.requested", "data": data})
    for id in ("k2", "k3"):
        view.show({"type": "input.requested", "data": {"tool_call_id": id, "message": f"Which {id}?"}})
    view.show({"type": "tool_call.started", "data": {"tool_call_id": "k4"}})
    printed = '· bash {"n": "k1"}\n? Which k2?\n? Which k3?\n· request_input {"n": "k4"}\n'
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("outcome", "printed"),
    [
        ({"status": "completed", "content": "Hello"}, ""),
        ({"status": "completed", "content": "Bye"}, "Bye\n"),
        ({"status": "rejected", "content": "No.", "error": {"message": "No."}}, "· run rejected: No.\n"),
    ],
)
def test_the_end_of_a_run_prints_a_text_that_was_in_no_message(
    outcome: dict[str, Any], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    view = TextView()
    message = {"message_id": "m", "role": "assistant", "content": "Hello"}
    view.show({"type": "message.completed", "data": message})
    view.show({"type": "run.finished", "data": outcome})
    assert capsys.readouterr().out == f"Hello\n{printed}"


@pytest.mark.parametrize(
    ("aside", "end"), [(0, "agent\n"), (4, "agent; an operator set 4 later events aside\n")]
)
def test_a_log_that_was_cut_states_the_time_of_the_cut(
    aside: int, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    view = TextView()
    view.show({"type": "run.cancel_requested", "seq": 3, "ts": "2030-01-01T00:00:00Z", "data": {}})

    view.show({"type": "history.cut", "seq": 4, "data": {"first_missing": 4, "set_aside": aside}})

    lost = "events after 2030-01-01T00:00:00Z are missing, also for the "
    assert capsys.readouterr().out == f"! part of this conversation was lost: {lost}{end}"


def follow_to_the_end(cli: Cli, conversation: str) -> dict[str, Any]:
    """Follow with `tail` until a run finishes, and return its last event."""
    follower = subprocess.Popen(
        [sys.executable, "-m", "banksman.cli", "tail", conversation, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(BANKSMAN_DATA_DIR=str(cli.data_dir)),
    )
    assert follower.stdout is not None
    with follower, follower.stdout:
        for line in follower.stdout:
            event = json.loads(line)
            if event["type"] == "run.finished":
                follower.send_signal(signal.SIGINT)
                return dict(event)
    raise AssertionError("`tail` ended before the run")
