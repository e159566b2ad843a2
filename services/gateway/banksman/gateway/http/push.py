"""Web Push: the devices of a user that receive approval requests while the page is closed."""

from __future__ import annotations

from banksman.contracts.wire import Stored
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.service.dependencies import ApproverDep, ServiceDep
from banksman.gateway.service.routing import StrictBody, router
from banksman.gateway.webhooks.devices import DeviceDescription, PushSubscription, described

routes = router("push")


class PushOffer(Stored):
    """The data that a browser needs to subscribe."""

    public_key: str
    """The `applicationServerKey`, in base64url. It changes with the signing key of approvals."""


@routes.get("/context/push")
async def read_push_offer(gateway: ServiceDep, caller: ApproverDep) -> PushOffer:
    """Read the data that a browser needs to subscribe."""
    return PushOffer(public_key=gateway.webhooks.devices.public_key)


@routes.get("/context/push/devices")
async def list_devices(gateway: ServiceDep, caller: ApproverDep) -> Listing[DeviceDescription]:
    """List the caller's devices, oldest first."""
    devices = await gateway.webhooks.devices.list(caller)
    return Listing[DeviceDescription](items=tuple(described(one) for one in devices))


@routes.put("/context/push/devices")
async def register_device(
    body: StrictBody[PushSubscription], gateway: ServiceDep, caller: ApproverDep
) -> DeviceDescription:
    """Register the caller's device for approval requests, or renew it."""
    return described(await gateway.webhooks.register_device(caller, body))


@routes.delete("/context/push/devices/{device_id}", status_code=204)
async def remove_device(device_id: str, gateway: ServiceDep, caller: ApproverDep) -> None:
    """Remove a device of the caller."""
    await gateway.webhooks.devices.remove(caller, device_id)
