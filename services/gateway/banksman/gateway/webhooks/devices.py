"""The devices of users that receive approval requests by Web Push, stored with their tenant's webhooks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import Field

from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.ids import check_token, digest
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.gateway.identity.auth import Keys
from banksman.gateway.operation.caller import APPROVE, Caller
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestBody, StrictBody, provided
from banksman.gateway.webhooks.queueing import WebhookQueue
from banksman.gateway.webhooks.sending import PushSigner, Sender, encrypted_for
from banksman.gateway.webhooks.store import DEVICE_PREFIX, Device, PushKeys, Webhook, WebhookStore
from banksman.runs.ports import Clock

MAX_DEVICES_PER_USER = 10
"""Maximum devices of one user; a further one replaces the least recently used one."""
MAX_DEVICES = 200
"""Maximum devices of one tenant."""
LIFETIME = timedelta(days=30)
"""Time after the last visit with an API key for which a device receives messages."""
LIFETIME_WITHOUT_KEY = timedelta(days=7)
"""The same for users of an OIDC provider, which does not report when a user loses access."""


class PushSubscription(RequestBody):
    """The address and keys of a browser, as in its `PushSubscription`."""

    endpoint: str = Field(max_length=1000)
    """The https address at the browser's push service."""
    keys: PushKeys
    origin: str = Field(default="", max_length=300, pattern=r"^(https?://[^\s/<>|]+)?$")
    """The origin of the page, which push services receive as the sender's contact."""


class DeviceDescription(Stored):
    """A device that receives the approval requests of its user."""

    id: Token
    created_at: Timestamp
    expires_at: Timestamp
    """When it stops receiving messages, unless the page is opened on it before."""


OF_A_BROWSER = "a device is the browser of one user, who is unknown over NATS"

operations = Operations("push", right=APPROVE)


class PushOffer(Stored):
    """The data that a browser needs to subscribe."""

    public_key: str
    """The `applicationServerKey`, in base64url. It changes with the signing key of approvals."""


@operations.add("push.read", "GET /context/push", not_over_nats=OF_A_BROWSER)
async def read_push_offer(signer: Annotated[PushSigner, provided(PushSigner)]) -> PushOffer:
    """Read the data that a browser needs to subscribe."""
    return PushOffer(public_key=signer.public_key)


@dataclass(frozen=True, slots=True)
class Devices:
    """Registers devices, and decides which events each of them gets."""

    store: WebhookStore
    sender: Sender
    queue: WebhookQueue
    keys: Keys
    clock: Clock

    @operations.add("device.list", "GET /context/push/devices", not_over_nats=OF_A_BROWSER)
    async def list_devices(self: Service, caller: CallerDep) -> Listing[DeviceDescription]:
        """List the caller's devices, oldest first."""
        found = await self._of(caller)
        return Listing[DeviceDescription](items=tuple(_described(one) for one in found))

    @operations.add("device.register", "PUT /context/push/devices", not_over_nats=OF_A_BROWSER)
    async def register_device(
        self: Service, body: StrictBody[PushSubscription], caller: CallerDep
    ) -> DeviceDescription:
        """Register the caller's device for approval requests, or renew it."""
        self.sender.check("push", body.endpoint)
        encrypted_for(body.keys, b"")
        now = self.clock.now()
        others = await self.store.devices(caller.tenant)
        # A browser has one address: if another user signs in there, the device becomes that user's.
        device_id = f"{DEVICE_PREFIX}{digest(body.endpoint.encode())[:32]}"
        known = next((one for one in others if (one.id, one.created_by) == (device_id, caller.user)), None)
        device = Webhook(
            id=device_id,
            tenant=caller.tenant,
            url=body.endpoint,
            events=("approval.requested", "approval.escalated"),
            format="push",
            created_at=known.created_at if known else now,
            created_by=caller.user,
            device=Device(
                keys=body.keys,
                origin=body.origin,
                api_key=caller.key,
                expires_at=now + (LIFETIME if caller.key else LIFETIME_WITHOUT_KEY),
            ),
        )
        await self._make_room([one for one in others if one.id != device_id], caller.user, now)
        await self.store.put(device)
        await self.queue.follow()
        return _described(device)

    async def _of(self, caller: Caller) -> list[Webhook]:
        return [one for one in await self.store.devices(caller.tenant) if one.created_by == caller.user]

    @operations.add("device.remove", "DELETE /context/push/devices/{device_id}", not_over_nats=OF_A_BROWSER)
    async def remove_device(self: Service, device_id: str, caller: CallerDep) -> None:
        """Remove a device of the caller."""
        check_token(device_id, "device_id")
        found = [one for one in await self._of(caller) if one.id == device_id]
        if not found:
            raise NotFound("device", device_id)
        await self.store.remove(found[0])

    def reaches(self, device: Webhook, now: datetime) -> bool:
        """Return whether a device may receive messages: its user may still approve, and used it recently."""
        assert device.device is not None
        may_approve = self.keys.may_approve(device.device.api_key, device.tenant)
        return now < device.device.expires_at and may_approve

    async def _make_room(self, others: list[Webhook], user: str, now: datetime) -> None:
        ended = [one for one in others if _expiry(one) <= now]
        valid = [one for one in others if _expiry(one) > now]
        own = sorted((one for one in valid if one.created_by == user), key=_expiry)
        replaced = own[: max(0, len(own) + 1 - MAX_DEVICES_PER_USER)]
        if len(valid) - len(replaced) >= MAX_DEVICES:
            raise Conflict(f"the tenant has {MAX_DEVICES} devices with notifications")
        for one in (*ended, *replaced):
            await self.store.remove(one)


Service = Annotated[Devices, provided(Devices)]


def _described(device: Webhook) -> DeviceDescription:
    return DeviceDescription(id=device.id, created_at=device.created_at, expires_at=_expiry(device))


def _expiry(device: Webhook) -> datetime:
    assert device.device is not None
    return device.device.expires_at
