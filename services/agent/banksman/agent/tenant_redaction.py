"""Removes the secrets of tenants from the results of their tool servers.

The Python SDK removes them too. Servers in other languages may not, and results reach models, logs and
clients.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self, cast

from banksman.bus.connection import Bus
from banksman.bus.names import TENANT_SECRETS
from banksman.bus.secrets.sealing import SecretBox
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts.calls import CallFinished
from banksman.contracts.tenant_secrets import StoredSecret
from banksman.contracts.wire import JsonObject
from banksman.runtime.redaction import Redaction

logger = logging.getLogger(__name__)


class TenantRedaction:
    """The secrets of all tenants; as a context manager it follows their changes."""

    def __init__(self, bus: Bus, signing_key: bytes) -> None:
        self._box = SecretBox(signing_key)
        bucket = Bucket(bus, TENANT_SECRETS, StoredSecret)
        self._stored = BucketView(bucket, on_change=self._changed)
        self._by_tenant: dict[str, Redaction] = {}
        """Redactions by tenant, created at the first use after a change of secrets."""

    async def __aenter__(self) -> Self:
        await self._stored.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stored.__aexit__(kind, error, trace)

    def of(self, tenant: str, finished: CallFinished, data: bytes) -> bytes:
        """Return the encoded result of a call without secrets; unchanged `data` if it contains none."""
        redaction = self._of(tenant)
        text = data.decode()
        if redaction.of(text) == text:
            return data
        logger.warning("%s: the tool server returned a secret, which was removed", finished.attempt)
        content = cast(JsonObject, redaction.of_content(finished.result.content))
        result = finished.result.model_copy(update={"content": content})
        return finished.model_copy(update={"result": result}).model_dump_json().encode()

    def _of(self, tenant: str) -> Redaction:
        found = self._by_tenant.get(tenant)
        if found is None:
            entries = self._stored.entries(f"{tenant}.")
            opened = (self._box.open(entry.value.sealed, entry.key) for entry in entries)
            found = self._by_tenant[tenant] = Redaction(value for value in opened if value is not None)
        return found

    def _changed(self, key: str, entry: Entry[StoredSecret] | None) -> None:
        self._by_tenant.pop(key.partition(".")[0], None)
