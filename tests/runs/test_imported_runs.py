"""The messages of an imported conversation in the log of a new one."""

from __future__ import annotations

from banksman.contracts.assistants import Branch, RunSettings
from banksman.contracts.work import ImportConversation, ImportedMessage, ImportedRun
from tests.runs.plans import Plan
from tests.runs.scenario import Scenario


def _run(number: int, after: str | None = None) -> ImportedRun:
    return ImportedRun(
        run_id=f"c-00000000000{number}",
        message=ImportedMessage(message_id=f"u{number}", content=f"Request {number}"),
        replies=(ImportedMessage(message_id=f"a{number}", content=f"Reply {number}"),),
        status="completed",
        model="openai:gpt",
        branch=None if after is None else Branch(after=after),
    )


def test_imported_runs_are_appended_once_and_the_conversation_continues_after_them() -> None:
    """An agent that ends halfway leaves the rest to the next one; the model reads the newest branch."""
    scenario = Scenario()
    settings = RunSettings(assistant_id="default", model="demo:demo")
    runs = (_run(1), _run(2), _run(3, after="a1"))
    signal = ImportConversation(tenant="acme", conversation_id="c", settings=settings, runs=runs)
    scenario.signal("import", signal)
    first = scenario.run_to("append")
    first.process.crash()
    scenario.run(seconds=60)
    scenario.broker.queues["signals"].messages[0].acked = False
    scenario.run(seconds=60)
    assert scenario.story().count("run.finished") == 3
    assert [str(getattr(one, "content", None)) for one in scenario.state.history] == [
        "Request 1",
        "Reply 1",
        "Request 3",
        "Reply 3",
    ]
    assert scenario.state.run is None and scenario.executed() == 0
    scenario.start(Plan())
    scenario.run(seconds=60)
    assert scenario.outcomes()[-1] == "completed"
    scenario.end()
