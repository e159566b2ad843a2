"""An OpenID Connect provider for tests: one user, who consents at once; keys that a test may rotate."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote_plus

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from banksman.contracts.ids import new_id
from tests.support.web_server import web_server

AUDIENCE = "banksman"
CLIENT_ID = "banksman-page"
CLIENT_SECRET = "the page never sees this"

Claims = dict[str, Any]
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


@dataclass
class SigningKey:
    """A key of the provider."""

    id: str = field(default_factory=lambda: new_id("key-"))
    private: PrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    algorithm: str = "ES256"
    is_named: bool = True
    """Whether the provider's documents name the algorithm and the key."""

    @property
    def public(self) -> Claims:
        """The public key as a JSON Web Key."""
        found = jwt.get_algorithm_by_name(self.algorithm).to_jwk(self.private.public_key(), as_dict=True)
        named = {"kid": self.id, "use": "sig", "alg": self.algorithm} if self.is_named else {}
        return {**{name: found[name] for name in found if name != "key_ops"}, **named}

    @property
    def header(self) -> Claims:
        return {"kid": self.id} if self.is_named else {}


@dataclass
class Provider:
    """A running provider."""

    issuer: str = ""
    claims: Claims = field(
        default_factory=lambda: {"sub": "ann", "tenant": "acme", "rights": ["chat", "approve"]}
    )
    """The claims in its user's tokens."""
    key: SigningKey = field(default_factory=SigningKey)
    fails: bool = False
    """Whether every request gets 503."""
    endpoints: dict[str, Any] = field(default_factory=dict[str, Any])
    """Other endpoints in its configuration, by name."""
    further_keys: Any = ()
    """Entries before its own key in the document of its keys, or a text in place of that document."""
    key_reads: int = 0
    refreshing: Literal["none", "kept", "rotated"] = "none"
    """Which refresh tokens it gives: none; one that stays valid, without another one at a renewal; or one for
    each renewal, of which a second use ends the whole sign-in."""
    needs_offline_access: bool = False
    """Whether it gives them only for the scope `offline_access`."""
    disabled: bool = False
    """Whether its user may not get tokens."""
    omits_token: bool = False
    """Whether a renewal returns no ID token."""
    lifetime_s: int = 600
    ends: bool = True
    """Whether it revokes tokens and ends sessions."""
    posts: bool = False
    """Whether its client may send the secret only as a field, though its documents name both ways."""
    moved: bool = False
    """Whether its configuration is behind a redirect."""
    hangs: bool = False
    """Whether it does not respond to a revocation."""
    revocations: int = 0
    ended: list[str] = field(default_factory=list[str])
    """The users whose sessions were ended by their browser."""
    renewals: int = 0
    reuses: int = 0
    _codes: dict[str, Claims] = field(default_factory=dict[str, Claims])
    _valid: set[str] = field(default_factory=set[str])
    _used: set[str] = field(default_factory=set[str])

    def token(self, *, key: SigningKey | None = None, kind: str = "JWT", **claims: Any) -> str:
        """Return a signed token with the type `kind`; a claim that is None is left out."""
        signer = key or self.key
        now = int(time.time())
        given = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + self.lifetime_s,
            **self.claims,
            **claims,
        }
        present = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(
            present, signer.private, algorithm=signer.algorithm, headers={**signer.header, "typ": kind}
        )

    async def configuration(self, _: web.Request) -> web.Response:
        names = {
            "authorization_endpoint": "authorize",
            "token_endpoint": "token",
            "jwks_uri": "keys",
            **({"revocation_endpoint": "revoke", "end_session_endpoint": "logout"} if self.ends else {}),
        }
        endpoints = {name: f"{self.issuer}/{path}" for name, path in names.items()}
        if self.moved:
            raise web.HTTPFound(f"{self.issuer}/moved")
        return web.json_response({"issuer": self.issuer, **endpoints, **self.endpoints})

    async def revoke(self, request: web.Request) -> web.Response:
        """RFC 7009: the client authenticates as for tokens; an unknown token is no error."""
        form = await request.post()
        if not self._is_client(request, form):
            return web.json_response({"error": "invalid_client"}, status=401)
        if not form.get("token"):
            return web.json_response({"error": "invalid_request"}, status=400)
        if self.hangs:
            await asyncio.Event().wait()
        self._valid.discard(str(form["token"]))
        self.revocations += 1
        return web.Response()

    async def logout(self, request: web.Request) -> web.Response:
        """RP-Initiated Logout: another client's token, or an address that is not registered, is refused."""
        asked = dict(request.query)
        hint = jwt.decode(
            asked["id_token_hint"],
            self.key.private.public_key(),
            ["ES256"],
            audience=asked["client_id"],
            # It may have expired.
            options={"verify_exp": False},
        )
        if asked["client_id"] != CLIENT_ID or "post_logout_redirect_uri" in asked:
            return web.Response(status=400, text="invalid_request")
        self.ended.append(str(hint["sub"]))
        return web.Response(text="You are signed out.", content_type="text/html")

    async def keys(self, _: web.Request) -> web.Response:
        self.key_reads += 1
        if isinstance(self.further_keys, str):
            return web.Response(text=self.further_keys)
        return web.json_response({"keys": [*self.further_keys, self.key.public]})

    async def authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        raise web.HTTPFound(f"{asked['redirect_uri']}?code={code}&state={asked['state']}")

    async def exchange(self, request: web.Request) -> web.Response:
        """Check client and grant as RFC 6749 and RFC 7636 require; return a token of the page's client."""
        form = await request.post()
        if not self._is_client(request, form):
            return web.json_response({"error": "invalid_client"}, status=401)
        if form["grant_type"] == "refresh_token":
            return self._renewed(str(form["refresh_token"]))
        asked = self._codes.pop(str(form["code"]), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(str(form["code_verifier"]).encode()).digest())
        valid = (
            asked is not None
            and asked["code_challenge_method"] == "S256"
            and asked["code_challenge"] == challenge.rstrip(b"=").decode()
            and asked["redirect_uri"] == form["redirect_uri"]
            and asked["client_id"] == CLIENT_ID
        )
        if not valid or asked is None:
            return web.json_response({"error": "invalid_grant"}, status=400)
        offline = "offline_access" in asked.get("scope", "").split()
        gives = self.refreshing != "none" and (offline or not self.needs_offline_access)
        return web.json_response(self._granted(refresh=gives))

    def _is_client(self, request: web.Request, form: Mapping[str, Any]) -> bool:
        """As Okta, refuse a client that is named in the header and in the form."""
        basic = base64.b64encode(f"{CLIENT_ID}:{quote_plus(CLIENT_SECRET)}".encode()).decode()
        header = None if self.posts else f"Basic {basic}"
        fields = (CLIENT_ID, CLIENT_SECRET) if self.posts else (None, None)
        found = (form.get("client_id"), form.get("client_secret"))
        return request.headers.get("authorization") == header and found == fields

    def _renewed(self, refresh_token: str) -> web.Response:
        if refresh_token in self._used:
            self.reuses += 1
            self._valid.clear()
        if self.disabled or refresh_token not in self._valid:
            return web.json_response({"error": "invalid_grant"}, status=400)
        self.renewals += 1
        if self.refreshing == "rotated":
            self._valid.remove(refresh_token)
            self._used.add(refresh_token)
        found = self._granted(refresh=self.refreshing == "rotated")
        return web.json_response({**found, **({"id_token": None} if self.omits_token else {})})

    def _granted(self, *, refresh: bool) -> Claims:
        granted: Claims = {"id_token": self.token(aud=CLIENT_ID), "token_type": "Bearer"}
        if refresh:
            granted["refresh_token"] = secrets.token_urlsafe(24)
            self._valid.add(granted["refresh_token"])
        return granted

    @web.middleware
    async def failing(self, request: web.Request, handler: Any) -> web.StreamResponse:
        return web.Response(status=503) if self.fails else await handler(request)


@asynccontextmanager
async def running_provider() -> AsyncGenerator[Provider]:
    """Serve a provider on a free port."""
    provider = Provider()
    app = web.Application(middlewares=[provider.failing])
    app.add_routes(
        [
            web.get("/.well-known/openid-configuration", provider.configuration),
            web.get("/moved/.well-known/openid-configuration", provider.configuration),
            web.get("/keys", provider.keys),
            web.get("/authorize", provider.authorize),
            web.post("/token", provider.exchange),
            web.post("/revoke", provider.revoke),
            web.get("/logout", provider.logout),
        ]
    )
    async with web_server(app) as port:
        provider.issuer = f"http://127.0.0.1:{port}"
        yield provider
