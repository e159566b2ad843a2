"""A2A's push notification configurations with the official SDK: signed, durable, of one task."""

from __future__ import annotations

import json
from typing import Any

import pytest
from a2a.types.a2a_pb2 import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from standardwebhooks import Webhook as Verifier
from tests.gateway.a2a.test_a2a import client_of, started, user_message
from tests.gateway.conftest import Agent, Receiver, Served

from banksman.bus.connection import Bus
from banksman.bus.names import WEBHOOKS
from banksman.bus.storage.kv import Bucket
from banksman.gateway.webhooks.store import Webhook

TOKEN, CREDENTIALS = "token-of-the-client", "credentials-of-the-client"


def config_of(receiver: Receiver, task_id: str = "", **more: Any) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(task_id=task_id, id="mine", url=receiver.url, token=TOKEN, **more)


def state_of(body: str) -> tuple[str, str]:
    update = json.loads(body)["statusUpdate"]
    return update["taskId"], update["status"]["state"]


async def test_a_receiver_gets_the_states_of_its_task_signed_and_with_the_clients_headers(
    sending: Served, receiver: Receiver, agent: Agent, bus: Bus
) -> None:
    """Interfaces, section 8: the task methods of A2A."""
    wanted = AuthenticationInfo(scheme="Bearer", credentials=CREDENTIALS)
    async with client_of(sending) as client:
        _, start = await started(client, sending, agent)
        _, other = await started(client, sending, agent)
        config = config_of(receiver, start.run_id, authentication=wanted)
        created = await client.create_task_push_notification_config(config)
        bucket = Bucket(bus, WEBHOOKS, Webhook)
        [entry] = [entry async for entry in bucket.entries(sending.tenant)]
        await agent.finish(other)
        await agent.request_approval(start)
        headers, body = await receiver.message(1)
        await agent.finish(start)
        _, ended = await receiver.message(2)

    assert created.authentication.scheme == "standard-webhooks"
    Verifier(created.authentication.credentials).verify(body, headers)
    assert headers["x-a2a-notification-token"] == TOKEN
    assert headers["authorization"] == f"Bearer {CREDENTIALS}"
    assert state_of(body) == (start.run_id, "TASK_STATE_INPUT_REQUIRED")
    assert state_of(ended) == (start.run_id, "TASK_STATE_COMPLETED")
    stored = entry.value.model_dump_json()
    assert TOKEN not in stored and CREDENTIALS not in stored


async def test_configurations_are_read_listed_and_deleted_without_their_secrets(
    sending: Served, receiver: Receiver, agent: Agent
) -> None:
    async with client_of(sending) as client, sending.http as http:
        _, start = await started(client, sending, agent)
        ids = {"task_id": start.run_id, "id": "mine"}
        await client.create_task_push_notification_config(config_of(receiver, start.run_id))
        read = await client.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(**ids))
        of_task = ListTaskPushNotificationConfigsRequest(task_id=start.run_id)
        listed = await client.list_task_push_notification_configs(of_task)
        webhooks = (await http.get("/context/webhooks")).json()["items"]
        await client.delete_task_push_notification_config(DeleteTaskPushNotificationConfigRequest(**ids))
        with pytest.raises(TaskNotFoundError):
            await client.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(**ids))
        with pytest.raises(TaskNotFoundError):
            await client.create_task_push_notification_config(config_of(receiver, "c1-otherotherot"))
        for url in (
            "http://10.0.0.1/hook",
            "https://\uff11\uff12\uff17.0.0.1/hook",
            "https://a\\@127.0.0.1/",
        ):
            with pytest.raises(InvalidParamsError):
                refused = TaskPushNotificationConfig(task_id=start.run_id, url=url)
                await client.create_task_push_notification_config(refused)

    assert (read.task_id, read.id, read.url, read.token) == (start.run_id, "mine", receiver.url, "")
    assert list(listed.configs) == [read] and webhooks == []


async def test_a_receiver_in_a_message_and_one_added_after_the_end_both_get_the_end(
    sending: Served, receiver: Receiver, agent: Agent
) -> None:
    request = user_message("hi")
    request.configuration.task_push_notification_config.CopyFrom(config_of(receiver))
    async with client_of(sending) as client:
        _, start = await started(client, sending, agent, request)
        await agent.finish(start)
        _, first = await receiver.message(1)
        await client.create_task_push_notification_config(config_of(receiver, start.run_id))
        _, again = await receiver.message(2)

    assert state_of(first) == state_of(again) == (start.run_id, "TASK_STATE_COMPLETED")
