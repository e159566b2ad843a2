"""The ids of client requests: a repeated request gets those of the first one."""

from __future__ import annotations

from collections.abc import Mapping

from banksman.contracts.frames import ApprovalDecision, ChatSend, Envelope, InputReply, RunCancel
from banksman.contracts.ids import digest, new_id
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.idempotency import RequestIds
from banksman.gateway.service.request_checks import Request

_UNREPEATED = new_id("own-")
"""Begins the ids that this process gives to requests. No client can guess it."""


def unrepeated_id() -> str:
    """Return the id of a request that came without one, so no client can repeat it."""
    return new_id(f"{_UNREPEATED}-")


async def ids_once(
    requests: RequestIds, caller: Caller, request: Request, ids: Mapping[str, str]
) -> Mapping[str, str]:
    """Return `ids` for a new request, those of the first one for a repeated request.

    Raises:
        Conflict: The request's id was used with another body.
    """
    if request.id.startswith(_UNREPEATED):
        # Two durable writes less for a message in a new conversation.
        return ids
    key = request_key(caller, request)
    exclude = {"id", "conversation_id"} if isinstance(request, Envelope) else {"id"}
    return await requests.once(caller.tenant, key, request, ids, exclude=exclude)


def request_key(caller: Caller, request: Request) -> str:
    """Return the idempotency key of a request within its tenant.

    The key includes the conversation, run or approval: a client may number its frames per conversation.
    """
    match request:
        case ChatSend():
            scope = request.conversation_id
        case RunCancel():
            scope = request.run_id
        case ApprovalDecision():
            scope = request.approval_id
        case InputReply():
            scope = request.request_id
        case _:
            scope = ""
    return digest(f"{caller.user}\n{scope}\n{request.id}".encode())
