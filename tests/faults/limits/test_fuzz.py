"""Malformed input at every interface: each gets a response, and the system works as before (A39).

`make fuzz` does the same for minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.frames import CLIENT_FRAME
from banksman.contracts.ids import new_id
from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.scripted_models import ScriptedReply
from tests.support.system import System
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(1800)

ROUNDS = int(os.environ.get("BANKSMAN_FUZZ_ROUNDS", "1"))
"""The factor of attempts, compared with the whole suite."""
SEED = int(os.environ.get("BANKSMAN_FUZZ_SEED", "1"))
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture)
WORDS = ("Traceback", 'File "', "pydantic", "asyncio.", "nats.errors")
"""Text that no client may receive."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
TYPES = sorted(CLIENT_FRAME.json_schema()["discriminator"]["mapping"])
FIELDS = (
    "id",
    "conversation_id",
    "run_id",
    "content",
    "after_seq",
    "approval_id",
    "decisions",
    "all",
    "resume",
)
FRAMES = st.fixed_dictionaries(
    {"type": st.sampled_from([*TYPES, "nothing"])},
    optional=dict.fromkeys(FIELDS, JSON),
)


def check(text: str) -> None:
    assert not any(word in text for word in WORDS), text[:500]


@settings(
    max_examples=100 * ROUNDS,
    deadline=None,
    derandomize=ROUNDS == 1,
    phases=(Phase.generate,),
    suppress_health_check=SLOW,
)
@given(frames=st.lists(FRAMES, min_size=1, max_size=5), cut=st.integers(0, 40), garbage=st.text(max_size=60))
async def test_any_frame_gets_a_response_or_closes_only_its_connection(
    gateway_url: str, frames: list[dict[str, Any]], cut: int, garbage: str
) -> None:
    """A39: frames of every type with any fields, truncated anywhere, and text that is no frame."""
    async with Client.connected(gateway_url, timeout_s=WAIT_TIMEOUT_S) as client:
        texts = [json.dumps(frame) for frame in frames if frame["type"] != "hello"]
        for text in (*texts, *(text[:cut] for text in texts), garbage):
            await client.connection.send(text)
        pong = await client.request("ping", t="still here")
        assert pong["t"] == "still here"
        for frame in client.frames:
            check(json.dumps(frame))
            assert frame.get("code") != "internal", frame


async def test_any_bytes_on_a_socket_close_only_that_socket(gateway_url: str) -> None:
    """A39: raw frames without a client library, during a session and instead of one."""
    chance = random.Random(SEED)
    host, port = gateway_url.removeprefix("http://").split(":")
    for _ in range(60 * ROUNDS):
        reader, writer = await asyncio.open_connection(host, int(port))
        if chance.random() < 0.7:
            writer.write(_upgrade(host))
            await reader.readuntil(b"\r\n\r\n")
        writer.write(chance.randbytes(chance.randrange(1, 400)))
        writer.write_eof()
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            check((await reader.read(100_000)).decode("latin-1"))
        writer.close()
    async with Client.connected(gateway_url, timeout_s=WAIT_TIMEOUT_S) as client:
        assert (await client.request("ping", t=1))["t"] == 1


def _upgrade(host: str) -> bytes:
    lines = (
        "GET /ws HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "",
        "",
    )
    return "\r\n".join(lines).encode()


DOORS = (
    ("conversation", "create"),
    ("chat", "send", "c1"),
    ("run", "cancel", "c1"),
    ("approval", "reply", "a1"),
    ("workflow", "start", "create_project"),
    ("replay", "c1"),
)


async def test_any_bytes_over_nats_get_an_error(operator: Bus, system: System) -> None:
    """A39: every subject of the API, the registry and the workflows service."""
    chance = random.Random(SEED)
    served = [subjects.api("local", *door) for door in DOORS]
    served += [subjects.registry("tool", action) for action in ("register", "withdraw", "list")]
    served += [subjects.workflow_api(action) for action in ("get", "start")]
    bodies = [b"", b"null", b"[]", b'"x"', b"{}", b"\xff\xfe", b"[" * 10_000, b'{"a":NaN}', b'{"a":1,"a":2}']
    bodies += [chance.randbytes(chance.randrange(1, 2_000)) for _ in range(10 * ROUNDS)]
    for subject in served:
        for body in bodies:
            headers = {"Banksman-Request-Id": new_id("f")} if chance.random() < 0.5 else {}
            response = await operator.request(subject, body, WAIT_TIMEOUT_S, headers=headers)
            check(response.decode("utf-8", "replace"))
            assert json.loads(response or b"{}").get("code") != "internal", (subject, body[:80], response)


async def test_a_run_completes_after_all_malformed_input(client: Client, play: Play) -> None:
    """A39: no input has stopped a service."""
    conversation = await client.create(play(ScriptedReply(text="Here.")))

    assert (await client.run(conversation, "go"))["content"] == "Here."


@pytest.fixture
def gateway_url(system: System) -> str:
    """Return the URL of the gateway."""
    return system.url
