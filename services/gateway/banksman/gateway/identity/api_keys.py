"""API keys that clients create. The bucket `keys` stores their digests under `{tenant}.{id}`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Query
from pydantic import Field

from banksman.bus.connection import Bus
from banksman.bus.names import KEYS
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts.errors import BanksmanError, Conflict, Forbidden, NotFound
from banksman.contracts.ids import check_token, digest, new_id
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.gateway.identity.auth import Keys
from banksman.gateway.operation.caller import ADMIN, ALL_MODES, PUBLIC, Caller
from banksman.gateway.operation.declaration import CONFLICT, FORBIDDEN, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestBody, StrictBody, provided
from banksman.gateway.settings import ApiKey, Mode, Right
from banksman.runs.ports import Clock

KEY_BYTES = 32
MAX_KEYS = 200
"""Maximum keys of one tenant."""

SEEN_WITHIN_S = 2.0
"""Seconds that a response waits until this gateway has received its own change from the broker."""


class NewKey(RequestBody):
    """A key to create."""

    user: str = Field(min_length=1, max_length=200)
    """The user who acts with the key; decisions show this name."""
    name: str = Field(default="", max_length=200)
    rights: tuple[Right, ...] = Field(default=("chat", "approve"), min_length=1, max_length=4)
    modes: tuple[Mode, ...] = Field(default=tuple(sorted(ALL_MODES)), min_length=1, max_length=2)
    """The endpoints that the key opens."""
    expires_at: Timestamp | None = None
    """Null for a key that never expires."""
    claim_by: Timestamp | None = None
    """If set, an invitation is created instead: its text opens nothing, and is exchanged once for the key by
    the person who opens `/#/invitation/{text}` on the page until then."""


class KeyDescription(Stored):
    """A key, without the key itself."""

    id: Token
    tenant: Token
    user: str
    name: str
    rights: tuple[Right, ...]
    modes: tuple[Mode, ...]
    created_at: Timestamp
    created_by: str
    expires_at: Timestamp | None
    """Null for a key that never expires."""
    claim_by: Timestamp | None = Field(default=None, exclude_if=lambda claim_by: claim_by is None)
    """Until then an invitation can be exchanged for the key; missing once the key exists."""


class CreatedKey(KeyDescription):
    """A new key, or an invitation."""

    key: str
    """The text of the key or of the invitation. It is stored nowhere and shown only here."""


class Invitation(RequestBody):
    """An invitation to exchange for its key."""

    text: str = Field(min_length=8, max_length=200, repr=False)


class StoredKey(KeyDescription):
    sha256: str
    name: str = ""
    expires_at: Timestamp | None = None
    in_file: bool = Field(default=False, exclude_if=lambda in_file: not in_file)
    """True for a key of the gateway's file of keys: the entry only lists the key, and the file decides
    whether it is accepted."""


TenantQuery = Annotated[
    Token | None, Query(description="Another tenant than that of the key; needs the right `operator`.")
]


key_operations = Operations("keys", right=ADMIN)


class ApiKeys:
    """Creates, lists and revokes the keys of tenants, and adds the stored keys to `Keys`."""

    def __init__(self, bus: Bus, keys: Keys, clock: Clock) -> None:
        self._bucket = Bucket(bus, KEYS, StoredKey)
        self.view = BucketView(self._bucket, on_change=self._changed)
        """Reads the keys once it is opened. A change takes effect in milliseconds, or within 20 s if its
        message was lost."""
        self._keys = keys
        self._clock = clock
        self.on_revoked: Callable[[str], None] | None = None
        """Called with the SHA-256 of a key that was revoked."""
        self.on_last_revoked: Callable[[str, str], Awaitable[None]] | None = None
        """Called with the tenant and the user of a revoked key if the user has no other way to sign in."""
        self._by_digest: dict[str, ApiKey] = {}
        keys.created = self._by_digest
        self._invitations: dict[str, str] = {}
        """Keys of the bucket's entries by the digest of an invitation's text."""
        self._digests: dict[str, str] = {}
        """Digests by key of the bucket's entry."""

    @key_operations.add("key.list", "GET /context/keys", errors=(FORBIDDEN,))
    async def list_keys(
        self: Service, caller: CallerDep, tenant: TenantQuery = None
    ) -> Listing[KeyDescription]:
        """List the API keys that were created here, oldest first."""
        owner = _tenant(caller, tenant)
        found = [entry.value async for entry in self._bucket.entries(owner) if self._accepted(entry.value)]
        found.sort(key=lambda key: (key.created_at, key.id))
        return Listing[KeyDescription](items=tuple(found))

    @key_operations.add("key.read", "GET /context/keys/{key_id}", errors=(FORBIDDEN, MISSING))
    async def read_key(
        self: Service, key_id: str, caller: CallerDep, tenant: TenantQuery = None
    ) -> KeyDescription:
        """Read an API key."""
        return (await self._entry(caller, key_id, tenant)).value

    @key_operations.add(
        "key.create",
        "POST /context/keys",
        errors=(FORBIDDEN, CONFLICT),
        audit=("user", "name", "rights", "expires_at"),
    )
    async def create_key(
        self: Service, body: StrictBody[NewKey], caller: CallerDep, tenant: TenantQuery = None
    ) -> CreatedKey:
        """Create an API key. Its text is in this response only."""
        # The first key of a gateway that serves without one is written to its file of keys too: from then on
        # each request needs a key.
        owner = _tenant(caller, tenant)
        if "operator" in body.rights and "operator" not in caller.rights:
            raise Forbidden("only an operator grants the right operator")
        keyless = self._keys.keyless
        if keyless and body.claim_by is not None:
            raise Conflict("this gateway needs no key yet: create a key with the right admin first")
        if keyless:
            # The first key closes the gateway to requests without a key, which concerns all tenants.
            caller.need("operator")
        if keyless and "admin" not in body.rights:
            raise Conflict(
                "this gateway needs no key yet: the first key needs the right admin, which creates others"
            )
        if len(await self._bucket.keys(owner)) >= MAX_KEYS:
            raise Conflict(f"the tenant has {MAX_KEYS} keys; revoke some first")
        text = _new_text("bk" if body.claim_by is None else "bi")
        key = StoredKey(
            id=new_id("key-"),
            sha256=digest(text.encode()),
            tenant=owner,
            created_at=self._clock.now(),
            created_by=caller.user,
            in_file=keyless,
            **dict(body),
        )
        entry_key = f"{owner}.{key.id}"
        await self._bucket.create(entry_key, key)
        if keyless:
            try:
                await asyncio.to_thread(self._keys.write_first, _configured(key))
            except BanksmanError:
                # No client received the key, so its entry can be removed.
                await self._bucket.delete(entry_key)
                raise
        await self._wait_until(lambda view: view.get(entry_key) is not None)
        return CreatedKey(**dict(key), key=text)

    @key_operations.add(
        "key.revoke", "DELETE /context/keys/{key_id}", errors=(FORBIDDEN, MISSING, CONFLICT), audit=()
    )
    async def revoke_key(self: Service, key_id: str, caller: CallerDep, tenant: TenantQuery = None) -> None:
        """Revoke an API key: requests with it are refused at once, and its websockets are closed."""
        entry = await self._entry(caller, key_id, tenant)
        if entry.value.in_file:
            raise Conflict("this key is in the gateway's file of keys: `banksman keys rm` removes it there")
        await self._bucket.delete(entry.key)
        await self._wait_until(lambda view: view.get(entry.key) is None)
        tenant, user = entry.value.tenant, entry.value.user
        if self.on_last_revoked is not None and not self._keys.may_return(tenant, user):
            await self.on_last_revoked(tenant, user)

    @key_operations.add(
        "invitation.claim",
        "POST /v1/invitations",
        right=PUBLIC,
        confidential=True,
        not_over_nats="browsers of people without a key",
        include_in_schema=False,
        errors=(MISSING,),
    )
    async def claim_invitation(self: Service, body: StrictBody[Invitation]) -> CreatedKey:
        """Exchange an invitation for its key, once and until its `claim_by`."""
        invited = self._invitations.get(digest(body.text.encode()))
        entry = await self._bucket.get(invited) if invited else None
        claim_by = entry.value.claim_by if entry else None
        if entry is None or claim_by is None or claim_by <= self._clock.now():
            raise NotFound("invitation", "of this text: it was used, revoked, or has expired")
        text = _new_text("bk")
        key = entry.value.model_copy(update={"sha256": digest(text.encode()), "claim_by": None})
        if await self._bucket.update(entry.key, key, entry.revision) is None:
            raise NotFound("invitation", "of this text: it was used, revoked, or has expired")
        await self._wait_until(
            lambda view: (found := view.get(entry.key)) is not None and found.value.claim_by is None
        )
        return CreatedKey(**dict(key), key=text)

    async def _wait_until(self, holds: Callable[[BucketView[StoredKey]], bool]) -> None:
        """Wait until this gateway has received a change, so that the client's next request shows it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_WITHIN_S):
                await self.view.wait_for(holds)

    async def _entry(self, caller: Caller, key_id: str, tenant: str | None) -> Entry[StoredKey]:
        entry = await self._bucket.get(f"{_tenant(caller, tenant)}.{check_token(key_id, 'key_id')}")
        if entry is None or not self._accepted(entry.value):
            raise NotFound("key", key_id)
        return entry

    def _accepted(self, key: StoredKey) -> bool:
        """Return whether this gateway accepts a key: a key of the file may have been removed from it."""
        return not key.in_file or self._keys.is_configured(key.sha256)

    def _changed(self, entry_key: str, entry: Entry[StoredKey] | None) -> None:
        old = self._digests.pop(entry_key, None)
        if old is not None:
            self._by_digest.pop(old, None)
            self._invitations.pop(old, None)
        if entry is not None and not entry.value.in_file:
            key = entry.value
            self._digests[entry_key] = key.sha256
            if key.claim_by is not None:
                self._invitations[key.sha256] = entry_key
            else:
                self._by_digest[key.sha256] = _configured(key)
        elif old is not None and self.on_revoked is not None:
            self.on_revoked(old)


def _new_text(prefix: str) -> str:
    return f"{prefix}-{secrets.token_urlsafe(KEY_BYTES)}"


Service = Annotated[ApiKeys, provided(ApiKeys)]


def _tenant(caller: Caller, named: str | None) -> str:
    if named is None or named == caller.tenant:
        return caller.tenant
    caller.need("operator")
    return check_token(named, "tenant")


def _configured(key: StoredKey) -> ApiKey:
    return ApiKey(**key.model_dump(include=set(ApiKey.model_fields)))
