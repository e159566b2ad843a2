"""A client that openapi-python-client generates from our OpenAPI document works, and its results parse."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.gateway.conftest import TOKENS, Agent, Served

REQUIREMENTS = Path(__file__).with_name("openapi-client.txt")
UV = Path(sys.executable).with_name("uv")

Operation = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generator in its own virtual environment, because its pin of typer conflicts with ours."""
    home = tmp_path_factory.mktemp("openapi-python-client")
    python = home / "bin" / "python"
    _run(UV, "venv", "--quiet", "--python", sys.executable, "--clear", home)
    _run(
        UV, "pip", "install", "--quiet", "--python", python, "--require-hashes", "--requirement", REQUIREMENTS
    )
    return home / "bin" / "openapi-python-client"


class Generated:
    """The generated package."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.models = importlib.import_module(f"{package}.models")

    def client(self, url: str, token: str) -> Any:
        return importlib.import_module(self._package).AuthenticatedClient(base_url=url, token=token)

    def operation(self, path: str) -> Operation:
        return cast(Operation, importlib.import_module(f"{self._package}.api.{path}").asyncio)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the generated package, which all gateways share: their documents are equal."""
    return tmp_path_factory.mktemp("generated")


@pytest.fixture
async def generated(
    guarded: Served, generator: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Generated:
    target = folder / "banksman_generated_client"
    if not target.exists():
        document = folder / "openapi.json"
        async with guarded.http as http:
            document.write_bytes((await http.get("/openapi.json")).content)
        # A warning means that the generator omits a part of the document from the client.
        _run(
            generator,
            *("generate", "--path", document, "--output-path", target, "--meta", "none", "--fail-on-warning"),
        )
    monkeypatch.syspath_prepend(folder)
    return Generated(target.name)


async def test_a_generated_client_starts_a_run_decides_an_approval_and_reads_the_events(
    generated: Generated, guarded: Served, agent: Agent
) -> None:
    models = generated.models
    async with generated.client(guarded.url, TOKENS["alice"]) as client:
        created = await generated.operation("conversations.create_conversation")(
            client=client, body=models.NewConversation(title="Cranes")
        )
        conversation = created.conversation_id
        started = await generated.operation("runs.start_run")(
            conversation, client=client, body=models.NewRun(content="list"), idempotency_key="first"
        )
        start = await agent.started(conversation)
        await agent.begin(start)
        request = await agent.request_approval(start)
        listed = await generated.operation("approvals.list_approvals")(client=client)
        decided = await generated.operation("approvals.decide_approval")(
            listed.items[0].approval_id,
            client=client,
            body=models.DecisionBody(all_=models.DecisionBodyAllType0.REJECT),
        )
        late = await generated.operation("approvals.decide_approval")(
            request.approval_id,
            client=client,
            body=models.DecisionBody(all_=models.DecisionBodyAllType0.APPROVE),
        )
        open_run = await generated.operation("runs.read_run")(started.run_id, client=client)
        await agent.finish(start, "Done.")
        run = await generated.operation("runs.read_run")(started.run_id, client=client)
        page = await generated.operation("conversations.list_events")(
            conversation, client=client, after_seq=1
        )
        missing = await generated.operation("runs.read_run")(f"{conversation}-0123456789ab", client=client)
    assert isinstance(created, models.ConversationRecord)
    assert isinstance(started, models.AcceptedRun)
    assert started.run_id == start.run_id
    assert [item.approval_id for item in listed.items] == [request.approval_id]
    assert listed.items[0].items[0].digest == request.items[0].digest
    assert isinstance(decided, models.Resolution)
    assert (decided.outcome, decided.already_resolved) == ("rejected", False)
    assert isinstance(late, models.LateDecision)
    assert (late.outcome, late.error.code) == ("rejected", "conflict")
    assert type(open_run) is models.Run
    assert open_run.status == "awaiting_approval"
    assert isinstance(run, models.EndedRun)
    assert (run.status, run.content) == ("completed", "Done.")
    assert isinstance(page, models.EventPage)
    assert [event.seq for event in page.items] == list(range(2, page.head_seq + 1))
    assert page.items[-1].type_ == "run.finished"
    assert isinstance(missing, models.ErrorBody)
    assert missing.error.code == "not_found"


async def test_a_generated_client_parses_every_list_and_the_error_of_a_wrong_key(
    generated: Generated, guarded: Served
) -> None:
    models = generated.models
    async with generated.client(guarded.url, TOKENS["alice"]) as client:
        conversations = await generated.operation("conversations.list_conversations")(client=client)
        assistants = await generated.operation("assistants.list_assistants")(client=client)
        prompts = await generated.operation("system_prompts.list_prompts")(client=client)
        enhanced = await generated.operation("system_prompts.read_enhanced_prompt")("default", client=client)
        usage = await generated.operation("assistants.read_usage")(client=client)
        available = await generated.operation("passthrough.list_models")(client=client)
        workflows = await generated.operation("workflows.list_workflows")(client=client)
    async with generated.client(guarded.url, "a wrong key") as client:
        refused = await generated.operation("conversations.list_conversations")(client=client)
    assert isinstance(conversations, models.ConversationPage)
    assert [one.id for one in assistants.items] == ["default"]
    assert [one.id for one in prompts.items] == ["default"]
    assert "bash" in enhanced.tools
    assert {window.window for window in usage.windows} == {"day", "month"}
    assert isinstance(available, models.ModelList)
    assert isinstance(workflows, models.ErrorBody)
    assert workflows.error.code == "unavailable"
    assert (type(refused), refused.error.code) == (models.ErrorBody, "unauthorized")


async def test_openapi_describes_security_errors_idempotency_and_event_streams(gateway: Served) -> None:
    async with gateway.http as http:
        document = (await http.get("/openapi.json")).json()
    start = document["paths"]["/context/conversations/{conversation_id}/runs"]["post"]
    forwarded = document["paths"]["/v1/messages"]["post"]
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert document["components"]["securitySchemes"]["x-api-key"]["name"] == "x-api-key"
    assert start["security"] == [{"bearer": []}]
    assert {"bearer": []} in forwarded["security"] and {"x-api-key": []} in forwarded["security"]
    assert "Idempotency-Key" in {parameter["name"] for parameter in start["parameters"]}
    assert set(start["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    for status in ("400", "401", "403", "404", "409", "413", "429", "503"):
        schema = start["responses"][status]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/ErrorBody"}
    assert "text/event-stream" in forwarded["responses"]["200"]["content"]


def _run(program: Path, *arguments: str | Path) -> None:
    # The generator formats its output with the ruff of its own environment.
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    done = subprocess.run(
        [program, *arguments],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{program.name}: {done.stdout}{done.stderr}"
