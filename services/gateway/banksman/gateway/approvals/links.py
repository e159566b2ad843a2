"""Links to one approval request: signed, for one recipient and for one use.

A link shows the exact calls and decides them after sign-in. It grants nothing: the user who follows it needs
the right to approve. The first decision through it uses it up.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime

from pydantic import ValidationError

from banksman.contracts.errors import BadInput, Conflict, Poison
from banksman.contracts.ids import digest
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.contracts.work import ApprovalRequest, LinkUse
from banksman.gateway.approvals.stored_replies import ReplySlots, open_again

EXPECTED = "a link that this system sent, unchanged"


class ApprovalLink(Stored):
    tenant: Token
    approval_id: Token
    calls: str
    """Digest of the digests of the calls that the message showed."""
    recipient: Token
    """Id of the webhook to which it was sent."""
    expires_at: Timestamp


def signed_link(link: ApprovalLink, key: bytes) -> str:
    """Return a link as the last segment of an address."""
    text = base64.urlsafe_b64encode(link.model_dump_json().encode()).decode().rstrip("=")
    return f"{text}.{_mac(text, key)}"


def digest_of_calls(digests: Sequence[str]) -> str:
    return digest("\n".join(digests).encode())


def read_link(text: str, key: bytes) -> ApprovalLink:
    """Return the content of a link; raise `BadInput` if it has no valid signature."""
    body, _, mac = text.partition(".")
    if not hmac.compare_digest(mac.encode(), _mac(body, key).encode()):
        raise BadInput("link", None, EXPECTED)
    try:
        return ApprovalLink.model_validate_json(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, ValidationError) as error:
        raise BadInput("link", None, EXPECTED) from error


async def use_link(
    slots: ReplySlots,
    text: str,
    request: ApprovalRequest,
    calls: Sequence[str],
    use: LinkUse,
    now: datetime,
    key: bytes,
) -> None:
    """Use a link up for a decision. A repeat of the same client request may use it again.

    `calls` has the digests of the calls as messages show them, before and after a first approval.

    Raises `Conflict` if the link has expired, or another decision used it.
    """
    link = read_link(text, key)
    names_it = (link.tenant, link.approval_id) == (request.tenant, request.approval_id)
    if not names_it or link.calls not in calls:
        raise BadInput("link", None, "the link of this approval request")
    if now > link.expires_at:
        raise Conflict("the link has expired")
    try:
        stored = await slots.use_link(request.tenant, request.approval_id, digest(text.encode())[:32], use)
    except Poison as poison:
        raise open_again(request.approval_id) from poison
    if stored.answer_id != use.answer_id:
        raise Conflict(f"the link was used by {stored.by}: decide in the list of all requests")


def _mac(text: str, key: bytes) -> str:
    return hmac.new(key, f"approval link\n{text}".encode(), hashlib.sha256).hexdigest()
