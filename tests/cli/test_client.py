"""The client commands against the whole system, started by `banksman up` with the demo model."""

import json
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from banksman.cli.client.view import TextView, clean

from .conftest import banksman, environment

# The first test of the module starts the whole system, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(180)

ASKS = "run `echo signal-$((40 + 2))`"


class Cli:
    """Commands to one running system."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return banksman(*arguments, BANKSMAN_DATA_DIR=str(self.data_dir))

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        """What a command tells as JSON."""
        return [json.loads(line) for line in self(*arguments, "--json").stdout.splitlines()]


@pytest.fixture(scope="module")
def cli(reachable_dir: Path) -> Generator[Cli]:
    """The whole system, without a sandbox where the machine has none."""
    data_dir = reachable_dir / "state"
    begun = banksman("up", "--detach", "--port", "0", "--data-dir", str(data_dir))
    assert begun.returncode == 0, begun.stderr
    yield Cli(data_dir)
    assert banksman("down", "--data-dir", str(data_dir)).returncode == 0
    assert banksman("reset", "--force", "--data-dir", str(data_dir)).returncode == 0
    assert not data_dir.exists()


@pytest.fixture
def open_question(cli: Cli) -> dict[str, Any]:
    """A run that waits for a person."""
    done = cli("run", ASKS)
    assert done.returncode == 1, done.stdout + done.stderr
    return cli.json("approvals")[-1]


def test_run_prints_the_answer_and_completes(cli: Cli) -> None:
    done = cli("run", "hello")

    assert done.returncode == 0, done.stderr
    assert "demo model" in done.stdout


def test_usage_tells_what_was_consumed(cli: Cli) -> None:
    """Beside no bound, for none is set."""
    assert cli("run", "hello").returncode == 0

    [day, month] = cli.json("usage")[0]["windows"]
    shown = cli("usage")

    assert (day["window"], month["window"], day["max_tokens"]) == ("day", "month", None)
    assert shown.returncode == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["day", "month"]


def test_run_with_nobody_at_the_keyboard_leaves_the_question_open_and_says_how_to_answer(cli: Cli) -> None:
    done = cli("run", ASKS)

    assert done.returncode == 1
    asked = [question["approval_id"] for question in cli.json("approvals")]
    assert done.stderr.splitlines()[-1] == f"waiting for: banksman approve {asked[-1]}"


def test_an_approved_run_goes_on_where_it_was_left(cli: Cli, open_question: dict[str, Any]) -> None:
    decided = cli("approve", open_question["approval_id"])

    finished = follow_to_the_end(cli, open_question["conversation_id"])
    assert (decided.returncode, decided.stdout) == (0, "approved by local\n")
    assert finished["data"]["status"] in ("completed", "failed")
    assert cli("approve", open_question["approval_id"]).returncode == 1


def test_a_rejected_run_ends_and_its_reason_is_kept(cli: Cli, open_question: dict[str, Any]) -> None:
    """R13."""
    decided = cli("reject", open_question["approval_id"], "--reason", "not today")

    assert decided.returncode == 0, decided.stderr
    assert follow_to_the_end(cli, open_question["conversation_id"])["data"]["status"] == "rejected"
    told = cli.json("replay", open_question["conversation_id"])
    (resolved,) = [event for event in told if event["type"] == "approval.resolved"]
    assert [item["reason"] for item in resolved["data"]["decisions"]] == ["not today"]


def test_replay_tells_every_event_once_in_order_and_ends(cli: Cli) -> None:
    events = cli.json("run", "hello")
    conversation = events[0]["conversation_id"]

    told = cli.json("replay", conversation)

    assert [event["seq"] for event in told] == list(range(1, len(told) + 1))
    assert [told[0]["type"], told[-1]["type"]] == ["run.started", "run.finished"]
    assert [event["seq"] for event in cli.json("replay", conversation, "--after", "2")] == [
        event["seq"] for event in told[2:]
    ]


def test_a_conversation_goes_on(cli: Cli) -> None:
    conversation = cli.json("run", "hello")[0]["conversation_id"]

    cli("run", "hello again", "--conversation", conversation)

    started = [event for event in cli.json("replay", conversation) if event["type"] == "run.started"]
    assert [event["data"]["message"] for event in started] == ["hello", "hello again"]


def test_a_conversation_that_does_not_exist_is_one_sentence(cli: Cli) -> None:
    done = cli("replay", "c-unheard-of")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "banksman: no conversation with id 'c-unheard-of'\n"


def test_doctor_finds_the_running_system_well(cli: Cli) -> None:
    told = {line["name"]: line["level"] for line in cli.json("doctor")}

    assert {name: told[name] for name in ("system", "nats", "gateway", "agent-1", "agent-2", "streams")} == {
        "system": "ok",
        "nats": "ok",
        "gateway": "ok",
        "agent-1": "ok",
        "agent-2": "ok",
        "streams": "ok",
    }


def test_there_are_no_dead_letters_and_one_that_is_not_there_cannot_be_replayed(cli: Cli) -> None:
    listed, replayed = cli("dead", "ls"), cli("dead", "replay", "17")

    assert (listed.returncode, listed.stdout) == (0, "no dead letters\n")
    assert (replayed.returncode, replayed.stderr) == (2, "banksman: no dead letter with id '17'\n")


def test_workflows_are_listed(cli: Cli) -> None:
    """R112."""
    done = cli("workflows", "ls", "--json")

    assert done.returncode == 0, done.stderr
    assert all(json.loads(line)["name"] for line in done.stdout.splitlines())


def test_what_steers_a_terminal_is_shown_and_not_obeyed() -> None:
    assert clean("\x1b[2Jgone\u202e\x07 ok\n\tdone") == "\\x1b[2Jgone\\u202e\\x07 ok\n\tdone"


def test_text_is_written_once_though_pieces_repeat_and_the_whole_follows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = TextView()
    pieces = [(0, "He"), (2, "llo "), (0, "Hello "), (6, "wor")]

    for offset, text in pieces:
        view.show({"type": "message.delta", "data": {"message_id": "m", "offset": offset, "text": text}})
    view.show(
        {
            "type": "message.completed",
            "data": {"message_id": "m", "role": "assistant", "content": "Hello world"},
        }
    )

    assert capsys.readouterr().out == "Hello world\n"


def follow_to_the_end(cli: Cli, conversation: str) -> dict[str, Any]:
    """What `tail` tells until a run has finished."""
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
    raise AssertionError("the end was not told")
