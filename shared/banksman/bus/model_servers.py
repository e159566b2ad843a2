"""The servers of models that tenants set, in memory: each run reads them without a request to the broker."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

from pydantic import SecretStr

from banksman.bus.connection import Bus
from banksman.bus.names import MODEL_SERVERS
from banksman.bus.secrets import SecretBox
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts.model_servers import ModelServer, StoredModelServer
from banksman.runtime.model_servers import ProviderEntry
from banksman.runtime.scope import Scoped


class TenantModelServers(Scoped):
    """As a context manager it follows the bucket; a change arrives a moment after it is stored."""

    def __init__(self, bus: Bus, box: SecretBox) -> None:
        self.bucket = Bucket(bus, MODEL_SERVERS, StoredModelServer)
        self._view = BucketView(self.bucket, on_change=self._changed)
        self._box = box
        self._opened: dict[str, dict[str, ProviderEntry]] = {}
        """Entries with decrypted keys by tenant, created when first needed after a change."""

    async def _enter(self, scope: AsyncExitStack) -> None:
        await scope.enter_async_context(self._view)

    def stored(self, tenant: str) -> list[StoredModelServer]:
        return [entry.value for entry in self._view.entries(f"{tenant}.")]

    def entries(self, tenant: str) -> Mapping[str, ProviderEntry]:
        """Return a tenant's usable servers by name; one whose key cannot be decrypted is missing."""
        found = self._opened.get(tenant)
        if found is None:
            usable = ((one.name, self.opened(tenant, one)) for one in self.stored(tenant))
            found = self._opened[tenant] = {name: entry for name, entry in usable if entry is not None}
        return found

    def opened(self, tenant: str, server: StoredModelServer) -> ProviderEntry | None:
        """Return a server with its key; None if the key was encrypted with another signing key."""
        key = None
        if server.sealed_key is not None:
            opened = self._box.open(server.sealed_key, sealed_name(tenant, server))
            if opened is None:
                return None
            key = SecretStr(opened)
        return ProviderEntry(api=server.api, base_url=server.base_url, api_key=key)

    def _changed(self, key: str, _entry: Entry[StoredModelServer] | None) -> None:
        self._opened.pop(key.partition(".")[0], None)


def sealed_name(tenant: str, server: ModelServer) -> str:
    """Return the name to which a key is bound: a changed address makes it unreadable."""
    return f"{tenant}.{server.name}.{server.api}.{server.base_url}"
