"""What every command has in common, and those that need no running system."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import banksman, environment

COMMANDS = [
    "up", "down", "doctor", "reset", "chat", "run", "demo", "tail", "replay", "approvals", "approve",
    "reject", "check", "accept", "backup", "restore",
    "keys", "nats", "gateway", "agent", "tool-runner", "model-server", "config", "streams", "dead",
    "workflows",
]  # fmt: skip
HEAVY = ("pydantic", "nats", "faststream", "fastapi", "httpx", "uvicorn", "websockets")
CANARY = "sk-canary-0123456789abcdef"


def test_help_lists_every_command() -> None:
    told = banksman("--help").stdout

    listed = [line.split()[0] for line in told.partition("Commands:")[2].splitlines() if line.strip()]
    assert [name for name in COMMANDS if name not in listed] == []


def test_help_is_quick_because_it_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from banksman.cli.main import main\n"
        "sys.argv = ['banksman', '--help']\n"
        "main()\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())

    assert done.stderr == "[]\n"


def test_every_command_but_the_services_speaks_json() -> None:
    served = {"chat", "nats", "gateway", "agent", "tool-runner", "model-server"}
    groups = {
        "config": ("show", "validate"),
        "streams": ("provision", "check"),
        "dead": ("ls", "replay"),
        "workflows": ("ls", "run"),
    }
    asked = [(name, part) for name in groups for part in groups[name]]
    asked += [(name, "") for name in COMMANDS if name not in served and name not in groups]

    silent = [words for words in asked if "--json" not in banksman(*filter(None, words), "--help").stdout]

    assert silent == []


def test_a_gateway_that_does_not_answer_is_one_sentence_and_exit_2() -> None:
    done = banksman("run", "hello", "--url", "http://127.0.0.1:1")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("banksman: no gateway responds at http://127.0.0.1:1 (")
    assert done.stderr.count("\n") == 1


def test_with_json_an_error_is_json_too() -> None:
    done = banksman("approvals", "--json", "--url", "http://127.0.0.1:1")

    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "unavailable"


def test_config_show_masks_secrets_and_names_where_each_value_came_from(tmp_path: Path) -> None:
    file = tmp_path / "banksman.toml"
    file.write_text('[gateway]\nport = 9000\n[models]\nopenai_api_key = "sk-from-the-file-012345"\n')

    done = banksman(
        "config",
        "show",
        "--json",
        BANKSMAN_CONFIG=str(file),
        BANKSMAN_LOCAL__AGENTS="3",
        BANKSMAN_APPROVALS__SIGNING_KEY=CANARY * 2,
        ANTHROPIC_API_KEY=CANARY,
    )

    told = {
        line["name"]: (line["value"], line["source"]) for line in map(json.loads, done.stdout.splitlines())
    }
    assert done.returncode == 0, done.stderr
    assert told["gateway.port"] == (9000, str(file))
    assert told["local.agents"] == (3, "environment BANKSMAN_LOCAL__AGENTS")
    assert told["local.drain_timeout_s"] == (30.0, "default")
    assert told["models.anthropic_api_key"] == ("«hidden»", "environment ANTHROPIC_API_KEY")
    assert told["models.openai_api_key"] == ("«hidden»", str(file))
    assert told["approvals.signing_key"] == ("«hidden»", "environment BANKSMAN_APPROVALS__SIGNING_KEY")
    assert "sk-" not in done.stdout + done.stderr


def test_config_validate_names_every_wrong_setting_at_once(tmp_path: Path) -> None:
    file = tmp_path / "banksman.toml"
    file.write_text("[gatehouse]\nport = 9000\n[agent]\nslots = 0\n[tool_runner]\nrunners = 3\n")

    done = banksman("config", "validate", BANKSMAN_CONFIG=str(file))

    assert done.returncode == 2
    assert "gatehouse: a known section" in done.stderr
    assert "BANKSMAN_AGENT__SLOTS: must be at least 1" in done.stderr
    assert "BANKSMAN_TOOL_RUNNER__RUNNERS: is not a known field" in done.stderr


def test_config_validate_passes_when_all_is_well() -> None:
    done = banksman("config", "validate")

    assert (done.returncode, done.stdout) == (0, "all settings are valid\n"), done.stderr


def test_keys_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    first = json.loads(banksman("keys", str(tmp_path), "--json").stdout)
    again = json.loads(banksman("keys", str(tmp_path), "--json").stdout)

    private = [path for path in tmp_path.rglob("*") if path.suffix in (".nk", ".key")]
    assert first == again
    assert all(key.startswith("U") for key in first.values())
    assert {oct(path.stat().st_mode & 0o777) for path in private} == {"0o600"}
    assert (tmp_path / "gateway/approvals.key").read_text() == (tmp_path / "agent/approvals.key").read_text()
    public = [line.partition("=")[2] for line in (tmp_path / "nats/public.env").read_text().splitlines()]
    assert {key[0] for key in public} == {"U"}  # a seed begins with S


def test_doctor_names_the_remedy_of_what_is_missing(tmp_path: Path) -> None:
    done = banksman("doctor", "--json", "--data-dir", str(tmp_path), PATH=str(tmp_path))

    told = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1, done.stdout
    assert told["sandbox"]["level"] == "warning"
    assert "apt-get install -y bubblewrap" in told["sandbox"]["remedy"]
    assert told["python"]["level"] == "ok"


def test_reset_leaves_a_directory_alone_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    done = banksman("reset", "--force", "--data-dir", str(tmp_path))

    assert done.returncode == 2
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("words", [["up", "--bogus"], ["tail"], ["run", "x", "--approve", "--reject"]])
def test_a_wrong_argument_is_exit_2_without_a_traceback(words: list[str]) -> None:
    done = banksman(*words)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
