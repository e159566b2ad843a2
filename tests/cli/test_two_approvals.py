"""The second of two approvals on a terminal: it shows what the first user changed before a decision."""

from __future__ import annotations

from banksman.contracts.approvals import sent_digest
from banksman.contracts.tools import call_digest
from banksman.contracts.wire import JsonObject

from .conftest import banksman
from .fake_gateway import ACK, FakeGateway, Frame, fake_gateway
from .terminal import on_terminal

REQUESTED: JsonObject = {"path": "a.txt", "content": "one"}
EDITED: JsonObject = {"path": "b.txt", "content": "two\u202e"}
OLD = call_digest("write_file", REQUESTED)
NEW = sent_digest(call_digest("write_file", EDITED), remember="conversation")
WORDS = "every call of write_file with the path b.txt, any content"
ITEM = {"tool_call_id": "k-1", "name": "write_file", "arguments": REQUESTED, "digest": OLD}
CHANGED: Frame = {
    "approval_id": "a-1",
    "expires_at": "2030-01-01T00:00:00Z",
    "items": [
        {
            **ITEM,
            "arguments": EDITED,
            "requested": REQUESTED,
            "digest": NEW,
            "covers": {"by": "path", "words": WORDS},
        }
    ],
    "first": {
        "by": "alice",
        "remember": "conversation",
        "decisions": [{"tool_call_id": "k-1", "decision": "approve", "arguments": EDITED}],
    },
}
REFUSED: Frame = {
    "type": "error",
    "code": "conflict",
    "message": "another content",
    "details": {"approval": CHANGED},
}


def shows_everything(text: str) -> bool:
    """Return whether a text has what will run, what was requested, for how long it counts, and for what."""
    shown = ('"two\\u202e"', 'requested: {"path": "a.txt"', "alice", "for this conversation", WORDS)
    return all(one in text for one in shown)


def test_prompt_shows_the_changed_content_and_asks_again() -> None:
    """R13, P15: the first decision named the old content."""

    def request(gateway: FakeGateway) -> None:
        gateway.replies["approval.reply"] = [REFUSED, ACK]
        gateway.event("approval.requested", approval_id="a-1", items=[ITEM])

    with fake_gateway(request) as gateway:
        with on_terminal("run", "hello", "--url", gateway.url, variables={}) as terminal:
            terminal.wait_for("approve?")
            terminal.press("y\n")
            terminal.wait_for("and remember it for this conversation")
            assert [frame["digests"] for frame in decisions(gateway)] == [[OLD]]
            terminal.press("y\n")
            gateway.received("approval.reply", 2)
            gateway.event("run.finished", status="completed", content="")
            assert terminal.ended() == 0
        assert shows_everything(terminal.text)
        assert [frame["digests"] for frame in decisions(gateway)] == [[OLD], [NEW]]


def test_approve_shows_the_changed_content_instead_of_deciding() -> None:
    """R13: `approvals` shows it too, with the command that names it."""
    with fake_gateway(lambda _: None) as gateway:
        gateway.approvals = [CHANGED]
        gateway.replies["approval.reply"] = [REFUSED]
        listed = banksman("approvals", "--url", gateway.url)
        refused = banksman("approve", "a-1", "--url", gateway.url)
        command = listed.stdout.splitlines()[-1].split()[1:]
        stale = banksman("approve", "a-1", "--seen", "0" * 16, "--url", gateway.url)
        assert len(decisions(gateway)) == 1
        done = banksman(*command, "--url", gateway.url)

    assert shows_everything(listed.stdout)
    assert (refused.returncode, shows_everything(refused.stdout)) == (2, True)
    assert (stale.returncode, "has changed" in stale.stderr) == (2, True)
    assert (done.returncode, command[:3]) == (0, ["approve", "a-1", "--seen"])
    assert [frame.get("digests") for frame in decisions(gateway)] == [[], [NEW]]


def decisions(gateway: FakeGateway) -> list[Frame]:
    return [frame for frame in gateway.frames if frame["type"] == "approval.reply"]
