"""`create_project` over NATS: a start is stored, and the log shows its outcome (R15, R112)."""

from __future__ import annotations

import asyncio

import pytest

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message
from banksman.bus.names import RUNS
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.assistants import RunSettings
from banksman.contracts.calls import CallRequest
from banksman.contracts.errors import ErrorCode
from banksman.contracts.events import MessageCompleted, RunStarted, ToolCallCompleted
from banksman.contracts.ids import new_id, run_id_for
from banksman.contracts.subjects import SERVED
from banksman.contracts.work import CancelRun, DeleteConversation, ResumeRun, StartRun
from banksman.contracts.workflows import WorkflowLinked, WorkflowProgress
from banksman.runs.bus_ports import OwnerNotifications, bus_ports
from banksman.runs.claim import accept
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.handlers import on_cancel, on_delete
from banksman.runs.ports import Ports
from banksman.runs.runners.placement import Placements
from banksman.runtime.service import ServiceProcess
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.workflows.playing import (
    Meeting,
    PlayedRunner,
    events_of,
    letters,
    outcome,
    starting,
    store,
    until,
)

pytestmark = pytest.mark.usefixtures("service")

DEMO = {"name": "demo", "template": "empty"}


def agent_ports(bus: Bus) -> Ports:
    """Return the ports of an agent's signal handler."""
    log = ConversationLog(bus)
    clock = BrokerClock(bus)
    notifications = OwnerNotifications(bus, clock)
    return bus_ports(bus, clock, log, Placements(bus, clock), notifications, b"", prefix="workflows-")


def is_write(number: int) -> object:
    """Match the n-th write of template `empty`."""
    paths = ("demo/README.md", "demo/src/.gitkeep", "demo/tests/.gitkeep")

    def matches(phase: str, request: CallRequest) -> bool:
        return phase == "started" and request.call.arguments["path"] == paths[number - 1]

    return matches


async def test_create_project_writes_its_files_and_publishes_progress(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    """R22, R28, R112: a user starts it, it publishes progress, and it ends like any other run."""
    start = starting(tenant, {**DEMO, "description": "Tries things."})
    await store(link, start)

    finished = await outcome(link, start)

    assert finished.status == "completed"
    assert finished.content == (
        "Created project `demo` from template `empty`, 3 files:\n\n"
        "- `demo/README.md`\n- `demo/src/.gitkeep`\n- `demo/tests/.gitkeep`"
    )
    assert finished.model == "workflow:create_project"
    assert [call.tool for call in finished.tool_calls] == ["read_file"] + ["write_file"] * 3
    assert runner.tree(start.conversation_id) == [
        "demo/README.md",
        "demo/src/.gitkeep",
        "demo/tests/.gitkeep",
    ]
    assert runner.files[start.conversation_id, "demo/README.md"] == "# demo\n\nTries things.\n"
    events = await events_of(link, tenant, start.conversation_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.data.type for event in events] == [
        "run.started",
        "iteration.started",
        "message.completed",
        "tool_call.requested",
        "tool_call.completed",
        "iteration.started",
        *["workflow.progress"] * 3,
        "message.completed",
        *["tool_call.requested"] * 3,
        *["tool_call.completed", "workspace.changed"] * 3,
        "iteration.started",
        "message.completed",
        "run.finished",
    ]
    progress = [event.data for event in events if isinstance(event.data, WorkflowProgress)]
    assert [(at.step, at.total, at.message) for at in progress] == [
        (1, 3, "Writing demo/README.md"),
        (2, 3, "Writing demo/src/.gitkeep"),
        (3, 3, "Writing demo/tests/.gitkeep"),
    ]
    opened = events[0].data
    assert isinstance(opened, RunStarted)
    assert opened.settings.assistant_id == "workflow"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            "python",
            [
                "README.md",
                "pyproject.toml",
                "src/my_site/__init__.py",
                "src/my_site/greeting.py",
                "tests/test_greeting.py",
            ],
        ),
        (
            "web",
            ["README.md", "src/greeting.mjs", "src/index.html", "src/style.css", "tests/greeting.test.mjs"],
        ),
    ],
)
async def test_each_template_has_a_readme_sources_and_tests(
    link: Bus, runner: PlayedRunner, tenant: str, template: str, expected: list[str]
) -> None:
    start = starting(tenant, {"name": "my-site", "template": template, "description": "<b>bold</b>"})
    await store(link, start)

    assert (await outcome(link, start)).status == "completed"
    assert runner.tree(start.conversation_id) == [f"my-site/{path}" for path in expected]
    if template == "web":
        assert "&lt;b&gt;" in runner.files[start.conversation_id, "my-site/src/index.html"]


async def test_missing_template_parameter_gets_its_default(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    start = starting(tenant, {"name": "demo"})
    await store(link, start)

    assert "template `python`" in (await outcome(link, start)).content
    assert (start.conversation_id, "demo/pyproject.toml") in runner.files


async def test_workflow_started_in_a_conversation_records_one_link_and_writes_to_its_workspace(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    chat = new_id("c")
    start = starting(tenant, DEMO, in_conversation=chat)
    await store(link, start)
    await store(link, start, msg_id="again")

    assert (await outcome(link, start)).status == "completed"
    await until(lambda: _queue_is_empty(link, SERVED))
    links = [event.data for event in await events_of(link, tenant, chat)]
    assert links == [
        WorkflowLinked(
            workflow="create_project",
            workflow_run_id=start.run_id,
            workflow_conversation_id=start.conversation_id,
        )
    ]
    assert runner.tree(chat) == ["demo/README.md", "demo/src/.gitkeep", "demo/tests/.gitkeep"]
    assert runner.tree(start.conversation_id) == []


async def test_workflow_started_in_a_deleted_conversation_fails_and_writes_nothing(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    chat = new_id("c")
    deletion = DeleteConversation(tenant=tenant, conversation_id=chat, by="ada")
    assert await on_delete(agent_ports(link), deletion)
    start = starting(tenant, DEMO, in_conversation=chat)
    await store(link, start)

    finished = await outcome(link, start)

    assert finished.error is not None
    assert "deleted" in finished.error.message
    assert runner.tree(chat) == []


async def test_same_workflow_start_stored_twice_runs_once(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    start = starting(tenant, DEMO)
    await store(link, start)
    await store(link, start, msg_id="the same again")

    await outcome(link, start)
    await until(lambda: _queue_is_empty(link, SERVED))

    kinds = [event.data.type for event in await events_of(link, tenant, start.conversation_id)]
    assert kinds.count("run.finished") == 1
    assert set(runner.writes.values()) == {1}


async def test_an_existing_project_is_not_changed(link: Bus, runner: PlayedRunner, tenant: str) -> None:
    chat = new_id("c")
    runner.files[chat, "demo/README.md"] = "# mine\n"
    start = starting(tenant, DEMO, in_conversation=chat)
    await store(link, start)

    finished = await outcome(link, start)

    assert finished.status == "failed"
    assert finished.error is not None
    assert finished.error.code == ErrorCode.WORKFLOW_ERROR
    assert "already has a project 'demo'" in finished.error.message
    assert runner.files[chat, "demo/README.md"] == "# mine\n"


async def test_failed_write_ends_the_workflow_run_with_its_reason(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    runner.refuses.add("demo/src/.gitkeep")
    start = starting(tenant, DEMO)
    await store(link, start)

    finished = await outcome(link, start)

    assert (finished.status, finished.content) == (
        "failed",
        "demo/src/.gitkeep could not be written: the disk is full",
    )


async def test_invalid_parameters_end_an_accepted_run_before_any_call(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    """A start that was not checked also gets its terminal event, which names the parameter."""
    start = starting(tenant, {"name": "Bad Name", "template": "empty"})
    await store(link, start)

    finished = await outcome(link, start)

    assert finished.status == "failed"
    assert "name must match" in finished.content
    assert finished.tool_calls == ()
    assert not runner.writes


async def test_cancelling_a_workflow_run_ends_its_call_and_writes_nothing_more(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    meeting = runner.meet = Meeting(at=is_write(2))  # pyright: ignore[reportArgumentType] - a predicate
    start = starting(tenant, DEMO)
    await store(link, start)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await meeting.arrived.wait()

    await on_cancel(agent_ports(link), _cancel(start.tenant, start.conversation_id, start.run_id))
    finished = await outcome(link, start)

    assert finished.status == "cancelled"
    assert runner.cancelled.is_set()
    assert "demo/src/.gitkeep" not in runner.tree(start.conversation_id)
    results = [
        event.data.result
        for event in await events_of(link, tenant, start.conversation_id)
        if isinstance(event.data, ToolCallCompleted)
    ]
    assert [result.error_kind for result in results].count("cancelled") == 1


async def test_workflow_run_cancelled_before_its_start_calls_no_tool(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    start = starting(tenant, DEMO)
    await on_cancel(agent_ports(link), _cancel(start.tenant, start.conversation_id, start.run_id))
    await store(link, start)

    assert (await outcome(link, start)).status == "cancelled"
    assert not runner.writes


async def test_chat_run_queued_after_a_workflow_run_is_started_by_an_agent(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    meeting = runner.meet = Meeting(at=is_write(1))  # pyright: ignore[reportArgumentType] - a predicate
    start = starting(tenant, DEMO)
    await store(link, start)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await meeting.arrived.wait()
    chat = StartRun(
        tenant=tenant,
        conversation_id=start.conversation_id,
        run_id=run_id_for(start.conversation_id),
        message_id=new_id("m"),
        content="thanks",
        settings=RunSettings(assistant_id="default", model="demo:demo"),
        user="ada",
    )
    assert await accept(agent_ports(link), chat, 1) is None

    meeting.go.set()
    assert (await outcome(link, start)).status == "completed"

    async def resume_stored() -> bool:
        subject = subjects.run_work(tenant, start.conversation_id)
        return await last_message(link, RUNS, subject) is not None

    await until(resume_stored)
    message = await last_message(link, RUNS, subjects.run_work(tenant, start.conversation_id))
    assert message is not None
    assert ResumeRun.model_validate_json(message.data).run_id == chat.run_id


async def test_workflow_waits_for_a_chat_run_that_is_open_in_its_log(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    start = starting(tenant, DEMO)
    ports = agent_ports(link)
    chat = StartRun(
        tenant=tenant,
        conversation_id=start.conversation_id,
        run_id=run_id_for(start.conversation_id),
        message_id=new_id("m"),
        content="hello",
        settings=RunSettings(assistant_id="default", model="demo:demo"),
        user="ada",
    )
    owned = await accept(ports, chat, 1)
    assert owned is not None
    await store(link, start)
    await until(lambda: _everything_is_delivered(link, SERVED))

    await owned.commit(lambda _: (MessageCompleted(message_id="m1", role="assistant", content="hi"),))

    assert (await outcome(link, start)).status == "completed"
    kinds = [event.data.type for event in await events_of(link, tenant, start.conversation_id)]
    assert "run.queued" not in kinds


async def test_bytes_that_are_no_workflow_start_are_dead_lettered(link: Bus, tenant: str) -> None:
    subject = subjects.workflow_run(SERVED, tenant, new_id("c"))
    await durable(link, subject, b"\xffnot a start", msg_id=new_id("x"))

    async def dead_lettered() -> bool:
        return bool(await letters(link, subject))

    await until(dead_lettered)
    [(reason, payload)] = await letters(link, subject)
    assert payload == b"\xffnot a start"
    assert "Invalid JSON" in reason


async def test_workflow_start_on_another_subject_is_not_executed(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    start = starting(tenant, DEMO)
    subject = subjects.workflow_run(SERVED, "mallory", start.conversation_id)
    await durable(link, subject, start.model_dump_json().encode(), msg_id=new_id("x"))

    async def dead_lettered() -> bool:
        return bool(await letters(link, subject))

    await until(dead_lettered)
    assert await events_of(link, tenant, start.conversation_id) == []


async def test_workflows_service_reports_ready(service: ServiceProcess) -> None:
    assert await service.health.problems() == {}


def _cancel(tenant: str, conversation_id: str, run_id: str) -> CancelRun:
    return CancelRun(tenant=tenant, conversation_id=conversation_id, run_id=run_id, by="ada")


async def _queue_is_empty(bus: Bus, workflow: str) -> bool:
    info = await bus.nc.jetstream().consumer_info("WORKFLOWS", f"workflow-{workflow}")
    return not info.num_pending and not info.num_ack_pending


async def _everything_is_delivered(bus: Bus, workflow: str) -> bool:
    return not (await bus.nc.jetstream().consumer_info("WORKFLOWS", f"workflow-{workflow}")).num_pending
