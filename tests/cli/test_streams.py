"""Standard streams that are closed, full or of another encoding, and messages that are no text."""

import subprocess
import sys

import pytest

from tests.support.timeouts import WAIT_TIMEOUT_S

from .conftest import environment
from .fake_gateway import FakeGateway, fake_gateway


def shell(line: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a line of a shell, in which `banksman` is the command."""
    command = f'banksman() {{ "{sys.executable}" -m banksman.cli "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, env=environment(**variables), timeout=WAIT_TIMEOUT_S * 2
    )


def finish(gateway: FakeGateway) -> None:
    gateway.event("run.finished", status="completed", content="done")


@pytest.mark.parametrize(
    ("line", "code"),
    [("banksman run hello >&-", 0), ("banksman run hello --json >&-", 0), ("banksman run hello <&-", 0)],
)
def test_a_command_runs_with_a_closed_stream(line: str, code: int) -> None:
    with fake_gateway(finish) as gateway:
        done = shell(f"{line} --url {gateway.url}")

    assert (done.returncode, b"Traceback" in done.stderr) == (code, False)


@pytest.mark.parametrize("option", ["", "--json"])
def test_a_full_output_ends_a_command_with_one_sentence(option: str) -> None:
    with fake_gateway(finish) as gateway:
        done = shell(f"banksman run hello {option} --url {gateway.url} >/dev/full")

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == b"banksman: [Errno 28] No space left on device"
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (r"printf 'a\xff' | banksman run -", "message: expected valid UTF-8; nothing was sent"),
        (r"""banksman run "$(printf 'a\xff')" """, "message: expected valid UTF-8; nothing was sent"),
        ("banksman run ''", "message: expected text, got ''; nothing was sent"),
        ("banksman run - <&-", "message: expected text, got ''; nothing was sent"),
    ],
)
def test_a_message_that_is_no_text_is_refused_without_a_conversation(line: str, reason: str) -> None:
    with fake_gateway(finish) as gateway:
        done = shell(f"{line} --url {gateway.url}")

    assert (done.returncode, done.stderr.decode()) == (2, f"banksman: {reason}\n")
    assert gateway.frames == []


def test_a_chat_refuses_a_line_that_is_no_text_and_continues() -> None:
    with fake_gateway(finish) as gateway:
        done = shell(rf"printf 'a\xff\nhello\n' | banksman chat --url {gateway.url}")

    assert done.returncode == 0
    assert b"message: expected valid UTF-8; nothing was sent\n" in done.stderr
    assert [frame["content"] for frame in gateway.frames if frame["type"] == "chat.send"] == ["hello"]


def test_characters_that_an_encoding_lacks_are_escaped() -> None:
    def on_message(gateway: FakeGateway) -> None:
        gateway.event("workflow.progress", step=1, total=2, message="a → b")
        finish(gateway)

    with fake_gateway(on_message) as gateway:
        done = shell(f"banksman run hello --url {gateway.url}", PYTHONIOENCODING="latin-1")

    assert (done.returncode, done.stdout) == (0, "· 1/2 a \\u2192 b\ndone\n".encode("latin-1"))
