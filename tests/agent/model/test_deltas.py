"""The text of a reply while it is written: batched, and only for clients that receive it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from tests.support.fixtures import connect
from tests.support.nats import Broker
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.agent.model.request import REASONING_CHARS, REPEATED_CHARS, Deltas, UnfinishedTexts
from banksman.agent.protocols import protocol_for
from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.live_output import Delta

PIECES = [f"word{number} " for number in range(200)]


@pytest.fixture
async def sender(nats_server: Broker) -> AsyncGenerator[Bus]:
    async with await connect(nats_server) as connected:
        yield connected


async def confirm() -> None:
    """The run is still owned."""


async def write_all(sender: Bus, other: Bus, tenant: str, conversation: str) -> None:
    empty = Delta(conversation_id=conversation, run_id="r", message_id="m", offset=0, text="")
    with Deltas(sender, tenant, empty, protocol_for("native"), confirm) as deltas:
        for piece in PIECES:
            await deltas.write("message", piece)
            # The event loop runs between two pieces of a model's reply.
            await other.ready()
        await deltas.end(is_final=True)
        assert deltas.streamed == "".join(PIECES)


async def test_a_client_receives_the_whole_text_in_fewer_pieces(
    bus: Bus, sender: Bus, tenant: str, conversation: str
) -> None:
    seen: list[Delta] = []

    async def received(message: Message) -> None:
        seen.append(Delta.model_validate_json(message.data))

    await bus.subscribe(subjects.delta(tenant, conversation), received)
    await bus.ready()
    await write_all(sender, bus, tenant, conversation)
    await eventually(lambda: "".join(delta.text for delta in seen) == "".join(PIECES))
    lengths = [len(delta.text) for delta in seen]
    assert [delta.offset for delta in seen] == [sum(lengths[:number]) for number in range(len(seen))]
    assert len(seen) < len(PIECES)


async def test_the_text_is_not_published_while_no_client_receives_it(
    bus: Bus, sender: Bus, tenant: str, conversation: str
) -> None:
    before = sender.nc.stats["out_msgs"]
    await write_all(sender, bus, tenant, conversation)
    assert sender.nc.stats["out_msgs"] - before < len(PIECES) / 10


async def test_a_late_client_gets_the_text_again_in_bounded_messages_and_order(
    bus: Bus, sender: Bus, tenant: str, conversation: str
) -> None:
    """R36: what follows continues at its end."""
    seen: list[Delta] = []
    texts = UnfinishedTexts()
    empty = Delta(conversation_id=conversation, run_id="r", message_id="m", offset=0, text="")
    long = "x" * (REPEATED_CHARS + 10)

    async def received(message: Message) -> None:
        seen.append(Delta.model_validate_json(message.data))

    def text_of(kind: str) -> str:
        return "".join(delta.text for delta in seen if delta.kind == kind)

    async with texts.served(sender):
        with (
            Deltas(sender, tenant, empty, protocol_for("native"), confirm) as deltas,
            texts.writing(tenant, conversation, deltas),
        ):
            await deltas.write("reasoning", "think ")
            await deltas.write("message", long)
            await deltas.end(is_final=True)
            # The server has passed on the text before the client subscribes.
            await sender.ready()
            await bus.subscribe(subjects.delta(tenant, conversation), received)
            await bus.ready()
            await bus.publish(subjects.delta_wanted(tenant, conversation), b"")
            await eventually(lambda: text_of("message") == long)
            await deltas.write("message", " end")
            await deltas.end(is_final=True)
            await eventually(lambda: text_of("message") == f"{long} end")
    assert text_of("reasoning") == "think "
    assert [len(delta.text) for delta in seen] == [6, REPEATED_CHARS, 10, 4]
    assert [delta.repeated for delta in seen] == [True, True, True, False]


async def test_reasoning_is_stored_up_to_a_limit_with_its_time(sender: Bus, conversation: str) -> None:
    """Reasoning before a restart is of a reply that was discarded."""
    empty = Delta(conversation_id=conversation, run_id="r", message_id="m", offset=0, text="")
    with Deltas(sender, "t", empty, protocol_for("native"), confirm) as deltas:
        assert deltas.reasoning == ()
        await deltas.write("reasoning", "discarded")
        await deltas.restart()
        assert deltas.reasoning == ()
        await deltas.write("reasoning", "a" * REASONING_CHARS)
        await deltas.write("reasoning", "beyond")
        (reasoning,) = deltas.reasoning
    assert (reasoning.message_id, reasoning.text) == ("m", "a" * REASONING_CHARS)
    assert reasoning.characters == REASONING_CHARS + len("beyond")
    assert 0 <= reasoning.duration_s < WAIT_TIMEOUT_S
