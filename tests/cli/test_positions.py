"""Commands that read a conversation from a number of its events."""

import signal
import subprocess
import sys

import pytest

from tests.support.timeouts import WAIT_TIMEOUT_S

from .conftest import banksman, environment
from .fake_gateway import CONVERSATION, Frame, fake_gateway

SUBSCRIBED = {
    "type": "subscribed",
    "conversation_id": CONVERSATION,
    "head_seq": 2,
    "oldest_seq": 1,
    "log_epoch": "e1",
}


def resync(reason: str) -> Frame:
    return {"type": "resync_required", "conversation_id": CONVERSATION, "oldest_seq": 1, "reason": reason}


@pytest.mark.parametrize("command", ["tail", "replay"])
def test_a_number_beyond_the_last_event_is_refused_with_the_last_one(command: str) -> None:
    with fake_gateway(lambda _: None) as gateway:
        gateway.replies["subscribe"] = [resync("after_seq 9999 is beyond the last event, 2")]
        done = banksman(command, CONVERSATION, "--after", "9999", "--url", gateway.url)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "banksman: --after: expected the number of a stored event, or 0, got 9999; "
        "after_seq 9999 is beyond the last event, 2\n"
    )


def test_tail_shows_a_restored_conversation_from_its_start() -> None:
    with fake_gateway(lambda _: None) as gateway:
        reason = "the log was restored from a backup: positions in the earlier log are invalid"
        restored = {**SUBSCRIBED, "log_epoch": "e2"}
        gateway.replies["subscribe"] = [SUBSCRIBED, resync(reason), restored]
        follower = subprocess.Popen(
            [sys.executable, "-m", "banksman.cli", "tail", CONVERSATION, "--url", gateway.url],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        gateway.received("subscribe")
        gateway.event("workflow.progress", step=1, total=2, message="one")
        assert follower.stdout is not None and follower.stderr is not None
        first = follower.stdout.readline()
        gateway.drop()
        lost, restart = follower.stderr.readline(), follower.stderr.readline()
        gateway.restore()
        gateway.event("workflow.progress", step=2, total=2, message="two")
        shown = follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=WAIT_TIMEOUT_S)

    assert (first, shown) == ("· 1/2 one\n", "· 2/2 two\n")
    assert "retrying" in lost and restart == f"{reason}; showing the conversation from its start\n"
    subscribes = [frame for frame in gateway.frames if frame["type"] == "subscribe"]
    positions = [(frame["after_seq"], frame.get("log_epoch")) for frame in subscribes]
    assert positions == [(0, None), (1, "e1"), (0, None)]
