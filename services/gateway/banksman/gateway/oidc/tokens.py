"""Bearer tokens of an OpenID Connect provider: JSON Web Tokens with claims for tenant, user and rights.

Imported only where a provider is configured: the import of PyJWT costs 0.15 s of CPU and 15 MiB.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import jwt
from jwt.algorithms import AllowedPublicKeys

from banksman.contracts.errors import BadInput, BanksmanError, Forbidden, Unauthorized, Unavailable
from banksman.contracts.ids import check_token, digest
from banksman.gateway.oidc.provider import (
    RETRY_AFTER_S,
    TIMEOUT_S,
    OidcProvider,
    ProviderEndpoints,
    SignInCode,
    TokenGrant,
)
from banksman.gateway.operation.caller import Caller
from banksman.gateway.settings import OidcSettings, Right
from banksman.runtime.background import Background

logger = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms with a public key. If HMAC were accepted, a client could sign tokens with the public key."""
INVALID = (jwt.InvalidTokenError, ArithmeticError, RecursionError, TypeError, ValueError)
"""Errors of the library for an invalid token: it does not expect every number or depth that JSON permits."""
TYPES = ("jwt", "at+jwt", "application/at+jwt")
"""Types of ID tokens and access tokens. Others, such as logout tokens, are not for their bearer."""
REFRESH_S = 300.0
"""Seconds after which the provider's keys are fetched again."""
LEEWAY_S = 30
"""Seconds by which the clocks of provider and gateway may differ."""
MAX_TOKEN_CHARS = 16 * 1024
MAX_KEYS = 100
MAX_REMEMBERED = 2_000
"""Maximum cached tokens, so that each token is verified once."""
USER_CHARS = 200


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key of the provider."""

    id: str | None
    verifies: jwt.PyJWK | AllowedPublicKeys
    """With its algorithm, unless the provider names none: then it is for each that fits its type."""


class OidcTokens:
    """Verifies the tokens of one provider with its public keys.

    The keys are fetched at the start, every five minutes, and when a token names an unknown key.
    """

    def __init__(self, settings: OidcSettings, provider: OidcProvider) -> None:
        self._settings = settings
        self._provider = provider
        self._endpoints: ProviderEndpoints | None = None
        self._keys: tuple[SigningKey, ...] = ()
        self._verified: OrderedDict[str, Caller] = OrderedDict()
        self._refreshing = asyncio.Lock()
        """Lets requests that wait for the same keys read them once."""
        self._refreshed_at = float("-inf")

    async def refresh(self) -> None:
        """Fetch the provider's documents; after `Unavailable`, the earlier keys remain valid."""
        self._refreshed_at = asyncio.get_running_loop().time()
        self._endpoints = await self._provider.endpoints()
        found = await self._provider.key_set(self._endpoints)
        self._keys = _signing_keys(found)
        self._verified.clear()

    async def prepare(self, token: str | None) -> None:
        """Fetch the provider's keys if a token names an unknown one. Never raises an error."""
        if token is None or not _is_jwt(token) or digest(token.encode()) in self._verified:
            return
        async with self._refreshing:
            due = asyncio.get_running_loop().time() - self._refreshed_at >= self._settings.key_pause_s
            if due and not self._candidates(token):
                await self.refresh_or_log()

    async def refresh_or_log(self) -> None:
        """Fetch the provider's documents; if it does not respond, log that, and use the earlier ones."""
        try:
            await self.refresh()
        except BanksmanError as error:
            logger.warning("the keys of the OIDC provider were not read: %s", error)

    def known(self, token: str) -> bool:
        try:
            self.caller(token)
        except BanksmanError:
            return False
        return True

    def caller(self, token: str) -> Caller | None:
        """Return the caller of a token; None if it is not a JSON Web Token.

        Raises:
            Unauthorized: The token is not of this provider, not for this gateway, or has expired.
            Forbidden: The token names no tenant.
            Unavailable: The provider's keys have not been read yet.
        """
        if not _is_jwt(token):
            return None
        key = digest(token.encode())
        caller = self._verified.get(key)
        if caller is None:
            caller = self._caller_of(self._claims(token))
            self._verified[key] = caller
            if len(self._verified) > MAX_REMEMBERED:
                self._verified.popitem(last=False)
        return caller.unexpired()

    async def authorization_endpoint(self) -> str:
        return str((await self._known_endpoints()).authorization)

    async def sign_in(self, code: SignInCode) -> tuple[TokenGrant, Caller]:
        """Exchange a code for a token; return the grant and its caller. Raises as `caller`."""
        grant = await self._provider.exchange(await self._known_endpoints(), code)
        checked = await self._checked(grant)
        nonce = jwt.decode(grant.token, options={"verify_signature": False}).get("nonce")
        if nonce is not None and nonce != code.challenge:
            raise Unauthorized("the token is of another sign-in: it has not the 'nonce' that was sent")
        return checked

    async def renew(self, refresh_token: str) -> tuple[TokenGrant, Caller]:
        """Exchange a refresh token for another token; returns and raises as `sign_in`."""
        return await self._checked(await self._provider.renew(await self._known_endpoints(), refresh_token))

    async def end(self, refresh_token: str | None) -> str | None:
        """Revoke a refresh token; return where a browser ends the session at the provider, if it is there.

        Takes at most `TIMEOUT_S` seconds, and never raises an error: the browser has forgotten the sign-in.
        """
        with suppress(BanksmanError, TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                endpoints = await self._known_endpoints()
                if refresh_token is not None:
                    await self._provider.revoke(endpoints, refresh_token)
                ends = endpoints.end_session is not None and self._settings.end_session
                return str(endpoints.end_session) if ends else None
        return None

    async def _checked(self, grant: TokenGrant) -> tuple[TokenGrant, Caller]:
        await self.prepare(grant.token)
        caller = self.caller(grant.token)
        if caller is None:
            raise Unauthorized(f"the provider's {self._settings.token} is no JSON Web Token")
        return grant, caller

    async def _known_endpoints(self) -> ProviderEndpoints:
        if self._endpoints is None:
            async with self._refreshing:
                await self.refresh()
        assert self._endpoints is not None
        return self._endpoints

    def _candidates(self, token: str) -> list[SigningKey]:
        """Return the keys that may have signed a token: the one that it names, or all if it names none."""
        try:
            name = jwt.get_unverified_header(token).get("kid")
        except INVALID:
            return list(self._keys)
        return [key for key in self._keys if name is None or key.id == name]

    def _claims(self, token: str) -> Mapping[str, Any]:
        if not self._keys:
            raise Unavailable("the keys of the OIDC provider are not known yet", retry_after_s=RETRY_AFTER_S)
        problem: Exception | None = None
        for key in self._candidates(token):
            try:
                found = jwt.decode_complete(
                    token,
                    key.verifies,
                    algorithms=ALGORITHMS,
                    audience=self._settings.audiences,
                    issuer=self._settings.issuer,
                    leeway=LEEWAY_S,
                    options={"require": ["exp", "iss", "aud"]},
                )
            except INVALID as error:
                problem = error
            else:
                return _of_bearer(found["header"], found["payload"])
        raise Unauthorized(f"the token is not valid: {problem or 'its key is unknown'}")

    def _caller_of(self, claims: Mapping[str, Any]) -> Caller:
        settings = self._settings
        user = _claim(claims, settings.user_claim)
        if not isinstance(user, str) or not 0 < len(user) <= USER_CHARS:
            raise Unauthorized(f"the token has no claim {settings.user_claim!r} with the name of a user")
        if settings.user_claim == "email" and claims.get("email_verified") in (False, "false"):
            raise Forbidden(f"the address of the account {user} is not verified at the provider")
        for name in (settings.tenant_claim, settings.rights_claim):
            _check_complete(claims, name)
        tenant = self._tenant(claims, user)
        return Caller(tenant, user, rights=self._rights(claims), expires_at=_expiry(claims))

    def _tenant(self, claims: Mapping[str, Any], user: str) -> str:
        settings = self._settings
        value = _claim(claims, settings.tenant_claim)
        tenant = settings.tenants.get(str(value)) if settings.tenants and value else value
        tenant = tenant if value else settings.default_tenant
        try:
            return check_token(tenant if isinstance(tenant, str) else "", "tenant")
        except BadInput as error:
            raise Forbidden(
                f"the account {user} belongs to no tenant: "
                f"its claim {settings.tenant_claim!r} is {value!r}, not the name of a tenant"
            ) from error

    def _rights(self, claims: Mapping[str, Any]) -> frozenset[Right]:
        found = _claim(claims, self._settings.rights_claim)
        if found is None:
            return frozenset(self._settings.default_rights)
        # Providers send a list, or one string with spaces as in `scope`.
        values = found.split() if isinstance(found, str) else found
        granted: set[Right] = set()
        for value in cast(list[object], values) if isinstance(values, list) else ():
            granted.update(self._settings.roles.get(str(value), ()))
        return frozenset(granted)


@asynccontextmanager
async def oidc_tokens(settings: OidcSettings, background: Background) -> AsyncGenerator[OidcTokens]:
    """Verify the tokens of a provider while the context is open.

    A provider that does not respond delays nothing: its tokens are refused with 503 until its keys are
    fetched.
    """
    tokens = OidcTokens(settings, OidcProvider(settings))

    async def follow() -> None:
        while True:
            await tokens.refresh_or_log()
            await asyncio.sleep(REFRESH_S)

    async with background.running("oidc", follow):
        yield tokens


def _of_bearer(header: Mapping[str, Any], claims: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the claims of a token that any bearer may use; refuse other tokens of the provider."""
    kind = str(header.get("typ", "JWT"))
    if kind.lower() not in TYPES:
        raise Unauthorized(f"the token is not valid: its type is {kind!r}, not JWT or at+jwt")
    if "cnf" in claims:
        raise Unauthorized("the token is not valid: it is bound to a key of its client (claim 'cnf')")
    return claims


def _check_complete(claims: Mapping[str, Any], name: str) -> None:
    """Raise `Forbidden` if the token only says where to read a claim, as Entra ID does for many groups."""
    elsewhere = claims.get("_claim_names")
    if isinstance(elsewhere, Mapping) and name in elsewhere:
        raise Forbidden(f"the token has no claim {name!r}, since it was too long: let the provider name less")


def _expiry(claims: Mapping[str, Any]) -> datetime:
    try:
        return datetime.fromtimestamp(int(claims["exp"]) + LEEWAY_S, UTC)
    except (ArithmeticError, OSError, ValueError) as error:
        raise Unauthorized(
            "the token is not valid: its claim 'exp' is not a time before the year 10000"
        ) from error


def _is_jwt(token: str) -> bool:
    return token.count(".") == 2 and len(token) <= MAX_TOKEN_CHARS


def _signing_keys(key_set: Mapping[str, Any]) -> tuple[SigningKey, ...]:
    """Return the public keys of a set that sign tokens, without other keys, such as those for encryption."""
    found: list[SigningKey] = []
    listed = key_set.get("keys")
    for one in cast(list[Any], listed)[:MAX_KEYS] if isinstance(listed, list) else ():
        try:
            if one.get("use", "sig") == "sig" and one.get("kty") != "oct":
                key = jwt.PyJWK(one)
                found.append(SigningKey(key.key_id, key if "alg" in one else key.key))
        except Exception as error:
            # The library raises any error for a value of another type.
            logger.warning("a key of the OIDC provider cannot be used: %s", error)
    return tuple(found)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim; `a.b` names a member of the claim `a`, unless the token has a claim `a.b`."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = cast(Mapping[str, Any], found).get(part) if isinstance(found, Mapping) else None
    return found
