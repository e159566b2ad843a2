"""Calls over NATS: accepted once, started once, with one stored result."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime

import pytest
from tests.support.fixtures import SecuredNats
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.tool_runner.service.owner import Owner, handling_reports, owning
from tests.tool_runner.service.processes import RunnerProcess, Runners, wait_for_end, wait_for_start

from banksman.bus.messages import Message
from banksman.bus.names import OUTPUTS
from banksman.bus.secrets import opened
from banksman.bus.storage.objects import Objects
from banksman.contracts import subjects
from banksman.contracts.calls import CallProgress, CallStarted
from banksman.contracts.ids import new_id
from banksman.contracts.runner_requests import FileWrite
from banksman.deployment.users import GATEWAY_FILES
from banksman.tool_runner.execution import MAX_RESULT_BYTES

WAIT_FOR_GO = "until [ -e go ]; do sleep 0.02; done"


async def go(owner: Owner) -> None:
    """Release the command that waits for the file `go`."""
    data = base64.b64encode(b"!").decode()
    written = await owner.file(
        FileWrite(path="go", upload=new_id("u"), offset=0, data_base64=data, last=True)
    )
    assert written.error is None


async def test_a_call_is_accepted_started_and_its_result_stored(owner: Owner) -> None:
    request = await owner.accepted(owner.request("bash", command="echo hi; echo no >&2; exit 3"))
    started, result = await owner.started(request), await owner.result(request)
    assert (started.runner, started.runner_epoch) == (owner.runner.id, owner.runner.epoch)
    assert not started.void
    assert (result.content["stdout"], result.content["stderr"]) == ("hi\n", "no\n")
    assert (result.exit_code, result.is_error, result.runner) == (3, False, owner.runner.id)
    assert result.started_at is not None and started.ts <= result.started_at <= datetime.now(UTC)
    assert result.tool_call_id == request.call.id


async def test_an_idempotent_call_starts_without_a_record(owner: Owner) -> None:
    request = owner.request("read_file", path="missing.txt")
    result = await owner.result(await owner.accepted(request))
    assert result.error_kind == "tool_error"
    facts = await owner.slots.read(owner.tenant, request.attempt)
    assert facts.started is None and facts.finished is not None


async def test_repeated_request_executes_once(owner: Owner) -> None:
    request = owner.request("bash", command=f"{WAIT_FOR_GO}; echo once >> log; cat log")
    replies = [await owner.send(request) for _ in range(3)]
    await owner.started(request)
    replies.append(await owner.send(request))
    await go(owner)
    assert (await owner.result(request)).content["stdout"] == "once\n"
    assert [reply.answer for reply in replies] == ["accepted"] * 4
    assert (await owner.send(request)).answer == "done"
    assert (await owner.bash("cat log")).content["stdout"] == "once\n"


async def test_call_with_a_void_start_never_executes(owner: Owner) -> None:
    first = await owner.accepted(owner.request("bash", command=WAIT_FOR_GO))
    await owner.started(first)
    second = await owner.accepted(owner.request("bash", command="touch effect"))
    void = CallStarted(
        conversation_id=owner.conversation,
        attempt=second.attempt,
        runner=None,
        void=True,
        ts=datetime.now(UTC),
    )
    assert (await owner.slots.store_started(owner.tenant, void)).fresh
    await go(owner)
    await owner.result(first)
    assert (await owner.bash("ls")).content["stdout"] == "go\n"
    facts = await owner.slots.read(owner.tenant, second.attempt)
    assert facts.started == void and facts.finished is None


async def test_calls_of_one_workspace_run_in_order_and_others_run_in_parallel(
    owner: Owner, runners_nats: SecuredNats
) -> None:
    first = await owner.accepted(owner.request("bash", command=f"{WAIT_FOR_GO}; echo 1 >> order"))
    rest = [
        await owner.accepted(owner.request("bash", command=f"echo {number} >> order")) for number in (2, 3, 4)
    ]
    async with owning(runners_nats, owner.runner) as other:
        assert (await other.bash("echo beside")).content["stdout"] == "beside\n"
    await go(owner)
    for request in (first, *rest):
        await owner.result(request)
    assert (await owner.bash("cat order")).content["stdout"] == "1\n2\n3\n4\n"


async def test_hanging_fetch_delays_no_other_call(runners: Runners, runners_nats: SecuredNats) -> None:
    """The fetched server is an allowed private address; another port of that address is refused."""
    requested = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        requested.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        runner = runners.start(
            BANKSMAN_TOOL_RUNNER__EGRESS__ALLOW_PRIVATE_ADDRESSES=json.dumps([address]),
            BANKSMAN_TOOL_RUNNER__LIMITS__SANDBOX__MAX_CONCURRENT_CALLS="1",
        )
        async with owning(runners_nats, runner) as owner:
            fetch = await owner.accepted(owner.request("web_fetch", url=f"http://{address}/"))
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await requested.wait()
            assert (await owner.bash("echo beside")).exit_code == 0
            other_port = await owner.call("web_fetch", url=f"http://127.0.0.1:{runner.health_port}/healthz")
            assert other_port.error_kind == "denied"
            assert (await owner.cancel(fetch)).answer == "accepted"
            assert (await owner.result(fetch)).error_kind == "cancelled"


async def test_call_with_a_changed_digest_is_refused(owner: Owner) -> None:
    request = owner.request("bash", command="touch changed")
    changed = request.call.model_copy(update={"arguments": {"command": "touch other"}})
    reply = await owner.send(request.model_copy(update={"call": changed}))
    assert reply.answer == "refused" and reply.reason
    assert (await owner.bash("ls")).content["stdout"] == ""


async def test_a_request_under_another_tenants_subject_is_refused(owner: Owner) -> None:
    request = owner.request("bash", command="touch effect")
    foreign = subjects.tool_call(owner.runner.id, "othertenant", owner.conversation)
    reply = await owner.bus.request(foreign, request.model_dump_json().encode(), 5)
    assert json.loads(reply)["code"] == "bad_request"
    assert (await owner.bash("ls")).content["stdout"] == ""


async def test_invalid_request_gets_an_error_reply(owner: Owner) -> None:
    subject = subjects.tool_call(owner.runner.id, owner.tenant, owner.conversation)
    for body in (b"", b"{}", b"\xff", b'{"attempt":"a","attempt":"b"}'):
        reply = await owner.bus.request(subject, body, 5)
        assert json.loads(reply)["code"] == "bad_request"


async def test_call_begins_as_soon_as_an_agent_takes_the_report_that_it_waits_for(
    runner: RunnerProcess, runners_nats: SecuredNats
) -> None:
    """P1: after a restart of the broker, runners are connected before agents. The call is not sent again."""
    async with owning(runners_nats, runner, hears_reports=False) as owner:
        request = await owner.accepted(owner.request("bash", command="echo late"))
        await eventually(lambda: f"{owner.conversation}: no process serves it" in runner.log)
        async with handling_reports(owner.bus):
            result = await owner.result(request)
    assert result.content["stdout"] == "late\n"


@pytest.mark.parametrize(
    ("tool", "arguments", "kind"),
    [
        ("no_such_tool", {}, "unknown_tool"),
        ("bash", {"cmd": "true"}, "invalid_arguments"),
        ("bash", {"command": "sleep 60", "timeout_s": 0.2}, "timeout"),
        ("read_file", {"path": "../secret"}, "tool_error"),
        ("web_fetch", {"url": "http://169.254.169.254/"}, "denied"),
    ],
)
async def test_failure_of_a_tool_is_its_result(
    owner: Owner, tool: str, arguments: dict[str, object], kind: str
) -> None:
    request = owner.request("bash", command="")
    call = request.call.model_copy(update={"name": tool, "arguments": arguments})
    request = request.model_copy(update={"call": call, "digest": call.digest})
    result = await owner.result(await owner.accepted(request))
    assert (result.is_error, result.error_kind) == (True, kind)
    assert result.content["success"] is False and result.content["error"]


async def test_call_ends_at_its_own_time_out_or_at_the_time_limit_of_its_run(owner: Owner) -> None:
    by_call = await owner.accepted(owner.request("bash", timeout_s=0.3, command="sleep 50"))
    by_run = await owner.accepted(owner.request("bash", within_s=1.5, command="sleep 50"))
    too_late = await owner.accepted(owner.request("bash", within_s=-1, command="touch effect"))
    for request in (by_call, by_run, too_late):
        assert (await owner.result(request)).error_kind == "timeout"
    assert (await owner.bash("ls")).content["stdout"] == ""


async def test_cancel_kills_the_process_tree_and_returns_partial_output(owner: Owner) -> None:
    """Target: all processes have ended within two seconds."""
    command = "echo early; trap '' TERM; (setsid sleep 7801.5 &); nohup sleep 7802.5 & sleep 7803.5"
    request = await owner.accepted(owner.request("bash", command=command))
    for word in ("7801.5", "7802.5", "7803.5"):
        await wait_for_start(word)
    assert (await owner.cancel(request)).answer == "accepted"
    for word in ("7801.5", "7802.5", "7803.5"):
        await wait_for_end(word, within_s=2)
    result = await owner.result(request)
    assert (result.error_kind, result.content["stdout"]) == ("cancelled", "early\n")
    assert (await owner.cancel(request)).answer == "done"


async def test_long_output_is_stored_completely(owner: Owner, runners_nats: SecuredNats) -> None:
    result = await owner.bash("seq 1 400000")
    assert result.truncated and len(str(result.content["stdout"])) <= 10_000
    assert result.output_ref is not None and result.output_key is not None
    async with await runners_nats.connect(GATEWAY_FILES) as reader:
        stored = await Objects(reader, OUTPUTS).get(result.output_ref)
    assert b"399999" not in stored
    whole = opened(stored, result.output_key, result.output_ref)
    assert whole is not None and whole.decode().splitlines() == [str(number) for number in range(1, 400_001)]


async def test_result_too_large_for_an_event_is_replaced_by_an_error(owner: Owner) -> None:
    """The result contains the refused path, which is too large."""
    result = await owner.call("write_file", path="x" * (MAX_RESULT_BYTES + 1), content="")
    assert (result.error_kind, result.is_error) == ("output_limit", True)
    assert len(result.model_dump_json()) < 1000


async def test_a_written_file_is_named_in_the_result(owner: Owner) -> None:
    result = await owner.call("write_file", path="a/b.txt", content="hello")
    assert [(change.path, change.change) for change in result.changed] == [("a/b.txt", "created")]
    assert (await owner.call("read_file", path="a/b.txt")).content["content"] == "hello"


async def test_progress_reports_the_start_and_pieces_of_output(
    runners_nats: SecuredNats, runner: RunnerProcess
) -> None:
    seen: asyncio.Queue[CallProgress] = asyncio.Queue()
    async with owning(runners_nats, runner) as owner:

        async def received(message: Message) -> None:
            seen.put_nowait(CallProgress.model_validate_json(message.data))

        await owner.gateway.subscribe(subjects.tool_progress(owner.tenant, owner.conversation), received)
        await owner.gateway.ready()
        command = f"printf 'x%.0s' {{1..10000}}; echo end >&2; {WAIT_FOR_GO}"
        request = await owner.accepted(owner.request("bash", command=command))
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            first = await seen.get()
            pieces = [await seen.get() for _ in range(4)]
        await go(owner)
        await owner.result(request)
    assert (first.kind, first.tool_call_id, first.runner) == ("started", request.call.id, runner.id)
    assert all(piece.kind == "output" and len(piece.text) <= 4096 for piece in pieces)
    assert "".join(piece.text for piece in pieces if piece.stream == "stdout") == "x" * 10_000
    assert "".join(piece.text for piece in pieces if piece.stream == "stderr") == "end\n"


async def test_full_runner_replies_busy(runners: Runners, runners_nats: SecuredNats) -> None:
    runner = runners.start(BANKSMAN_TOOL_RUNNER__QUEUE_CAPACITY="1")
    async with owning(runners_nats, runner) as owner:
        first = await owner.accepted(owner.request("bash", command=WAIT_FOR_GO))
        second = owner.request("bash", command="true")
        assert (await owner.send(second)).answer == "busy"
        await go(owner)
        await owner.result(first)
        await owner.result(await owner.accepted(second))
