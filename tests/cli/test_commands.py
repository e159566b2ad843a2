"""Common behaviour of all commands, and commands that need no running system."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from banksman.cli.machine import free_port
from banksman.cli.main import command_tree
from banksman.cli.state import DataDir, Instance, ProcessIdentity

from .conftest import WAIT_TIMEOUT_S, banksman, environment

COMMANDS = [
    "up", "down", "doctor", "reset", "call", "chat", "run", "demo", "tail", "replay", "approvals", "approve",
    "reject", "check", "accept", "salvage", "backup", "restore",
    "keys", "nats", "gateway", "agent", "tool-runner", "model-server", "config", "streams", "dead",
    "workflows",
]  # fmt: skip
HEAVY = ("pydantic", "nats", "faststream", "fastapi", "httpx", "uvicorn", "websockets")
CANARY = "sk-canary-0123456789abcdef"


def test_help_lists_every_command() -> None:
    help_text = banksman("--help").stdout

    listed = [line.split()[0] for line in help_text.partition("Commands:")[2].splitlines() if line.strip()]
    assert [name for name in COMMANDS if name not in listed] == []


def test_help_imports_no_heavy_library() -> None:
    program = (
        "import sys\n"
        "from banksman.cli.main import main\n"
        "sys.argv = ['banksman', '--help']\n"
        "main()\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())

    assert done.stderr == "[]\n"


def commands() -> list[tuple[str, ...]]:
    """Return the words of every command of the tree, groups included."""
    return [words for words, _ in walk(get_command(command_tree()), ())]


def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, part in getattr(command, "commands", {}).items():
        yield from walk(part, (*words, name))


def runnable() -> dict[tuple[str, ...], list[str]]:
    """Return every command that does something by itself, and an example of each argument it requires."""
    examples = {"text": "hello", "letter": "1", "config_file": "none.conf", "public_keys": "none.env"}
    found: dict[tuple[str, ...], list[str]] = {}
    for words, command in walk(get_command(command_tree()), ()):
        if words and (not hasattr(command, "commands") or command.invoke_without_command):
            required = [parameter for parameter in command.params if parameter.required]
            given = [(parameter, examples.get(parameter.name, "example")) for parameter in required]
            found[words] = [
                word
                for parameter, value in given
                for word in (
                    [value] if parameter.param_type_name == "argument" else [parameter.opts[0], value]
                )
            ]
    return found


def printed(lines: list[tuple[str, ...]], cwd: Path, **variables: str) -> dict[tuple[str, ...], str]:
    """Return what each command prints on standard output; one process runs them all."""
    program = (
        "import contextlib, io, json, os, sys\n"
        "from banksman.cli.main import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    printed = io.StringIO()\n"
        "    sys.argv = ['banksman', *words]\n"
        "    with contextlib.redirect_stdout(printed):\n"
        "        main()\n"
        "    print(json.dumps(printed.getvalue()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(lines)],
        capture_output=True, text=True, env=environment(**variables), cwd=cwd, timeout=WAIT_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(lines, map(json.loads, done.stdout.splitlines()), strict=True))


def test_no_summary_of_a_command_is_cut_off(tmp_path: Path) -> None:
    lines = [(*words, "--help") for words in commands()]

    shown = printed(lines, tmp_path, COLUMNS="80")

    assert [words for words, text in shown.items() if re.search(r"\w\.\.\.$", text, re.MULTILINE)] == []
    assert all("--help" in text for text in shown.values())


def test_every_command_prints_errors_about_its_options_as_json(tmp_path: Path) -> None:
    lines = [(*words, "--json", "--bogus") for words in runnable()]

    shown = printed(lines, tmp_path)

    errors = {words: json.loads(text)["error"] for words, text in shown.items()}
    assert {error["code"] for error in errors.values()} == {"bad_request"}
    assert [words for words, error in errors.items() if "--bogus" not in error["message"]] == []


def test_every_command_prints_json_only(tmp_path: Path) -> None:
    """Without a system, and with an invalid setting, most print an error and some a result."""
    lines = [(*words, *given, "--json") for words, given in runnable().items()]

    shown = printed(
        lines, tmp_path, BANKSMAN_LOG__LEVEL="loud", BANKSMAN_GATEWAY_URL=f"http://127.0.0.1:{free_port()}"
    )

    assert [words for words, text in shown.items() if not text] == []
    assert {type(json.loads(line)) for text in shown.values() for line in text.splitlines()} == {dict}


def test_unreachable_gateway_prints_one_sentence_and_exits_with_2() -> None:
    done = banksman("run", "hello", "--url", "http://127.0.0.1:1")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("banksman: no gateway responds at http://127.0.0.1:1 (")
    assert done.stderr.count("\n") == 1


def test_errors_are_json_with_the_json_option() -> None:
    done = banksman("approvals", "--json", "--url", "http://127.0.0.1:1")

    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "unavailable"


def test_config_show_masks_secrets_and_names_the_source_of_each_value(tmp_path: Path) -> None:
    file = tmp_path / "banksman.toml"
    file.write_text('[gateway]\nport = 9000\n[models]\nopenai_api_key = "sk-from-the-file-012345"\n')

    done = banksman(
        "config",
        "show",
        "--json",
        BANKSMAN_CONFIG=str(file),
        BANKSMAN_LOCAL__AGENTS="3",
        BANKSMAN_NATS__URL='["nats://ann:pass-word@nats-1:4222", "nats://a-token@nats-2:4222"]',
        BANKSMAN_NATS__MONITORING_URL="http://nats-1:8222/?api_key=the-key&verbose=1",
        BANKSMAN_APPROVALS__SIGNING_KEY=CANARY * 2,
        ANTHROPIC_API_KEY=CANARY,
    )

    shown = {
        line["name"]: (line["value"], line["source"]) for line in map(json.loads, done.stdout.splitlines())
    }
    assert done.returncode == 0, done.stderr
    assert shown["gateway.port"] == (9000, str(file))
    assert shown["local.agents"] == (3, "environment BANKSMAN_LOCAL__AGENTS")
    assert shown["local.drain_timeout_s"] == (30.0, "default")
    assert shown["models.anthropic_api_key"] == ("«hidden»", "environment ANTHROPIC_API_KEY")
    assert shown["models.openai_api_key"] == ("«hidden»", str(file))
    assert shown["approvals.signing_key"] == ("«hidden»", "environment BANKSMAN_APPROVALS__SIGNING_KEY")
    hosts = ["nats://«hidden»@nats-1:4222", "nats://«hidden»@nats-2:4222"]
    assert shown["nats.url"] == (hosts, "environment BANKSMAN_NATS__URL")
    assert shown["nats.monitoring_url"][0] == "http://nats-1:8222/?«hidden»&verbose=1"
    printed = done.stdout + done.stderr
    assert not [secret for secret in ("sk-", "pass-word", "a-token", "the-key") if secret in printed]


def test_config_validate_lists_all_invalid_settings(tmp_path: Path) -> None:
    file = tmp_path / "banksman.toml"
    file.write_text("[gatehouse]\nport = 9000\n[agent]\nslots = 0\n[tool_runner]\nrunners = 3\n")

    done = banksman("config", "validate", BANKSMAN_CONFIG=str(file))

    assert done.returncode == 2
    assert "gatehouse is not a known section" in done.stderr
    assert "BANKSMAN_AGENT__SLOTS must be at least 1" in done.stderr
    unknown = "Unknown setting BANKSMAN_TOOL_RUNNER__RUNNERS; did you mean BANKSMAN_TOOL_RUNNER__RUNNER?"
    assert unknown in done.stderr


@pytest.mark.parametrize("command", [("config", "validate"), ("config", "show"), ("agent",)])
def test_malformed_settings_are_refused_in_one_sentence(tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tmp_path / "banksman.toml"
    file.write_text("[agent\n")

    for variables, sentence in (
        ({"BANKSMAN_CONFIG": str(file)}, "BANKSMAN_CONFIG must be a TOML file: "),
        ({"BANKSMAN_AGENT": '{"slots": '}, "BANKSMAN_AGENT must be JSON: "),
        ({"BANKSMAN_AGENT": '{"slots": ' + "[" * 20_000}, "BANKSMAN_AGENT must be JSON: "),
        ({"BANKSMAN_AGENT__DRAIN_S": "1e400"}, "BANKSMAN_AGENT__DRAIN_S must be a finite number"),
    ):
        done = banksman(*command, **variables)

        assert done.returncode == 2
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("content", ["{", '{"a": 1}', "[1]", '[{"user": "u"}]', "[" * 20_000])
def test_a_malformed_file_of_keys_is_refused_in_one_sentence(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys" / "api-keys.json"
    file.parent.mkdir()
    file.write_text(content)

    for command in (("ls",), ("create", "ann")):
        done = banksman("keys", *command, "--data-dir", str(tmp_path))

        assert done.returncode == 2
        assert f"{file} must be a JSON list of keys" in done.stderr
        assert done.stderr.count("\n") == 1
    assert file.read_text() == content


def test_config_validate_accepts_valid_settings() -> None:
    done = banksman("config", "validate")

    assert (done.returncode, done.stdout) == (0, "all settings are valid\n"), done.stderr


def test_keys_are_created_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    first = json.loads(banksman("keys", "deployment", str(tmp_path), "--json").stdout)
    again = json.loads(banksman("keys", "deployment", str(tmp_path), "--json").stdout)

    private = [path for path in tmp_path.rglob("*") if path.suffix in (".nk", ".key", ".path")]
    assert first == again
    assert all(key.startswith("U") for key in first.values())
    assert {oct(path.stat().st_mode & 0o777) for path in private} == {"0o600"}
    assert (tmp_path / "gateway/approvals.key").read_text() == (tmp_path / "agent/approvals.key").read_text()
    public = [line.partition("=")[2] for line in (tmp_path / "nats/public.env").read_text().splitlines()]
    assert {key[0] for key in public} == {"U", "/"}  # a seed begins with S
    (path,) = {file.read_text() for file in tmp_path.glob("*/monitoring.path")}
    assert public[-1] == path and len(path) > 30
    assert {file.parent.name for file in tmp_path.glob("*/*.nk")} < {
        file.parent.name for file in tmp_path.glob("*/monitoring.path")
    }


def test_doctor_names_the_remedy_for_a_missing_sandbox(tmp_path: Path) -> None:
    done = banksman("doctor", "--json", "--data-dir", str(tmp_path), PATH=str(tmp_path))

    findings = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1, done.stdout
    assert findings["sandbox"]["level"] == "warning"
    assert "apt-get install -y bubblewrap" in findings["sandbox"]["remedy"]
    assert findings["python"]["level"] == "ok"


def test_doctor_names_the_log_of_a_process_that_is_not_ready_in_the_data_directory(tmp_path: Path) -> None:
    closed = f"http://127.0.0.1:{free_port()}"
    data = DataDir(tmp_path / "other")
    data.path.mkdir()
    data.write(
        Instance(
            url=closed,
            supervisor=ProcessIdentity.of(os.getpid()),
            processes={},
            health={"gateway": f"{closed}/readyz"},
            nats_url=closed.replace("http", "nats"),
            monitoring_url=closed,
            ready=True,
        )
    )

    done = banksman("doctor", "--json", "--data-dir", str(data.path))

    findings = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert str(data.logs / "gateway.log") in findings["gateway"]["remedy"]
    assert str(data.logs / "nats.log") in findings["streams"]["remedy"]


def test_restore_names_a_monitoring_address_that_does_not_respond(tmp_path: Path) -> None:
    now = "2026-11-28T10:00:00Z"
    manifest = {"made_by": "1.0.0", "began_at": now, "ended_at": now, "streams": []}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = banksman("restore", str(tmp_path), BANKSMAN_NATS__MONITORING_URL=url)

    assert done.returncode == 2
    assert done.stderr == f"banksman: {url}/connz did not respond within 5 s\n"


def test_reset_refuses_a_directory_that_up_did_not_create(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    done = banksman("reset", "--force", "--data-dir", str(tmp_path))

    assert done.returncode == 2
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("words", [["up", "--bogus"], ["tail"], ["run", "x", "--approve", "--reject"]])
def test_invalid_argument_exits_with_2_and_no_traceback(words: list[str]) -> None:
    done = banksman(*words)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
