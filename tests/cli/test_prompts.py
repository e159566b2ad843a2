"""Prompts on a terminal: only keys that are pressed after a prompt was shown decide."""

from pathlib import Path

from banksman.contracts.tools import NetworkPolicy, call_digest

from .conftest import banksman
from .fake_gateway import FakeGateway, Frame, fake_gateway
from .terminal import on_terminal

NETWORK = {"allow_hosts": ["example.org"]}
CALLS = [
    {"tool_call_id": "k-1", "name": "bash", "arguments": {"command": "ls"}, "digest": "from the gateway"},
    {"tool_call_id": "k-2", "name": "bash", "arguments": {"command": "id"}, "digest": "", "network": NETWORK},
]


def request_approval(gateway: FakeGateway) -> None:
    gateway.event("approval.requested", approval_id="a-1", expires_at="2030-01-01T00:00:00Z", items=CALLS)


def test_keys_pressed_before_the_prompt_of_an_approval_request_decide_nothing() -> None:
    with fake_gateway(lambda _: None) as gateway:
        with on_terminal("run", "hello", "--url", gateway.url, variables={}) as terminal:
            gateway.received("chat.send")
            terminal.press("y\n")
            terminal.wait_for("y\r\n")
            request_approval(gateway)
            terminal.wait_for("approve?")
            terminal.press("n\n")
            decision = gateway.received("approval.reply")
            gateway.event("run.finished", status="rejected", content="")
            terminal.ended()

    assert decision["all"] == "reject"


def test_a_decision_names_the_calls_that_were_shown() -> None:
    """A decision on other calls than these is refused by the gateway."""
    decision = decided("y\n")

    assert decision["all"] == "approve"
    assert decision["digests"] == [
        call_digest("bash", {"command": "ls"}),
        call_digest("bash", {"command": "id"}, NetworkPolicy.model_validate(NETWORK)),
    ]


def decided(keys: str) -> Frame:
    """Return the decision that the keys make at the prompt."""
    with fake_gateway(request_approval) as gateway:
        with on_terminal("run", "hello", "--url", gateway.url, variables={}) as terminal:
            terminal.wait_for("approve?")
            terminal.press(keys)
            decision = gateway.received("approval.reply")
            gateway.event("run.finished", status="completed", content="")
            assert terminal.ended() == 0
    return decision


def test_the_end_of_input_leaves_an_approval_request_open() -> None:
    with fake_gateway(request_approval) as gateway:
        with on_terminal("run", "hello", "--url", gateway.url, variables={}) as terminal:
            terminal.wait_for("approve?")
            terminal.press("\x04")
            code = terminal.ended()

    assert code == 1
    assert "waiting for you: banksman approve a-1" in terminal.text


def request_value(gateway: FakeGateway) -> None:
    """Request a value from an agent run that the followed run started."""
    gateway.event(
        "workflow.linked", workflow="agent", workflow_run_id="c-2-r-1", workflow_conversation_id="c-2"
    )
    gateway.event("input.requested", request_id="q-1", message="Which version?", schema={"type": "string"})


def test_a_value_that_a_workflow_requests_is_typed_on_the_terminal() -> None:
    with fake_gateway(request_value) as gateway:
        with on_terminal("run", "hello", "--url", gateway.url, variables={}) as terminal:
            terminal.wait_for("? Which version?")
            terminal.wait_for("value")
            terminal.press("2.0 Beta\n")
            reply = gateway.received("input.reply")
            gateway.event("run.finished", status="completed", content="")
            code = terminal.ended()
        linked = gateway.received("subscribe")

    assert (reply["request_id"], reply["value"], code) == ("q-1", "2.0 Beta", 0)
    assert (linked["conversation_id"], linked["after_seq"]) == ("c-2", 0)


def test_a_letter_declines_what_a_server_requests_and_is_a_value_for_a_workflow() -> None:
    def asks(gateway: FakeGateway) -> None:
        asked = {"message": "Who are you?", "schema": {"type": "object"}}
        gateway.event("input.requested", request_id="q-1", server="issues", **asked)
        gateway.event("input.requested", request_id="q-2", message="Letter?", schema={"type": "string"})

    with fake_gateway(asks) as gateway:
        with on_terminal("run", "hello", "--url", gateway.url, variables={}) as terminal:
            terminal.wait_for("The MCP server issues asks")
            terminal.wait_for("d declines]")
            terminal.press("d\n")
            declined = gateway.received("input.reply")
            terminal.wait_for("Letter?")
            terminal.wait_for("value [Enter leaves it open] ")
            terminal.press("d\n")
            given = gateway.received("input.reply", 2)
            gateway.event("run.finished", status="completed", content="")
            code = terminal.ended()

    assert (declined["request_id"], declined["decline"], "value" in declined) == ("q-1", True, False)
    assert (given["request_id"], given["value"], "decline" in given) == ("q-2", "d", False)
    assert code == 0


def test_a_value_that_is_not_typed_leaves_the_request_open_and_names_the_command() -> None:
    with fake_gateway(request_value) as gateway:
        with on_terminal("run", "hello", "--url", gateway.url, variables={}) as terminal:
            terminal.wait_for("value")
            terminal.press("\n")
            code = terminal.ended()

    assert code == 1
    assert "waiting for you: banksman provide q-1 VALUE" in terminal.text


def test_keys_pressed_before_the_confirmation_of_a_reset_delete_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "up.lock").touch()
    with on_terminal("reset", "--data-dir", str(state), variables={}) as terminal:
        terminal.press("y\n")
        terminal.wait_for("Delete?")
        terminal.press("n\n")
        code = terminal.ended()

    assert code == 1
    assert state.exists()


def test_a_message_behind_an_open_approval_request_names_the_request() -> None:
    def on_message(gateway: FakeGateway) -> None:
        if [frame["type"] for frame in gateway.frames].count("chat.send") == 1:
            request_approval(gateway)
        else:
            gateway.event("run.queued", position=1, message="again")

    with (
        fake_gateway(on_message) as gateway,
        on_terminal("chat", "--url", gateway.url, variables={}) as terminal,
    ):
        terminal.wait_for("> ")
        terminal.press("hello\n")
        terminal.wait_for("approve?")
        terminal.press("\n")
        terminal.wait_for("waiting for you: banksman approve a-1\r\n")
        terminal.press("again\n")
        terminal.wait_for("· queued; runs before it: 1\r\n  waiting for you: banksman approve a-1\r\n")


def test_a_cancelled_command_shows_its_output_without_an_exit_code() -> None:
    def on_message(gateway: FakeGateway) -> None:
        content = {"stdout": "begun\n", "stderr": "", "exit_code": None}
        gateway.event("tool_call.completed", content=content, is_error=True, error_kind="cancelled")
        gateway.event("run.finished", status="cancelled", content="")

    with fake_gateway(on_message) as gateway:
        done = banksman("run", "hello", "--url", gateway.url)

    assert done.stdout == "  [cancelled] begun\n· run cancelled\n"
