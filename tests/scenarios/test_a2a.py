"""A2A's official SDK against the whole system."""

from __future__ import annotations

import httpx
from a2a.client import ClientConfig, create_client
from a2a.types.a2a_pb2 import Message, Part, Role, SendMessageRequest, StreamResponse, TaskState

from banksman.contracts.ids import new_id
from tests.scenarios.conftest import Play
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import System
from tests.support.timeouts import WAIT_TIMEOUT_S


def user_message(text: str, context_id: str, task_id: str = "") -> SendMessageRequest:
    message = Message(message_id=new_id("u"), role=Role.ROLE_USER, parts=[Part(text=text)])
    message.context_id, message.task_id = context_id, task_id
    return SendMessageRequest(message=message)


def last_state(updates: list[StreamResponse]) -> str:
    return TaskState.Name(updates[-1].status_update.status.state)


async def test_the_sdk_of_a2a_gives_a_task_and_approves_its_call(system: System, play: Play) -> None:
    """Interfaces, section 8: A2A card and task methods over the same runs."""
    call = ScriptedCall(name="bash", arguments={"command": "echo 42"})
    model = play(
        ScriptedReply(tool_calls=(call,)), ScriptedReply(text="It is 42.", chunk_chars=3, chunk_delay_s=0.01)
    )
    async with httpx.AsyncClient(base_url=system.url, timeout=2 * WAIT_TIMEOUT_S) as http:
        created = await http.post("/context/conversations", json={"model": model})
        context = created.json()["conversation_id"]
        client = await create_client(system.url, ClientConfig(httpx_client=http))
        asked = [update async for update in client.send_message(user_message("What is it?", context))]
        task = asked[0].task
        done = [update async for update in client.send_message(user_message("approve", context, task.id))]
    assert last_state(asked) == "TASK_STATE_INPUT_REQUIRED"
    assert "echo 42" in asked[-1].status_update.status.message.parts[0].text
    assert last_state(done) == "TASK_STATE_COMPLETED"
    pieces = [update.artifact_update for update in done if update.HasField("artifact_update")]
    assert "".join(piece.artifact.parts[0].text for piece in pieces) == "It is 42." and len(pieces) > 1
