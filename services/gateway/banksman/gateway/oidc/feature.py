"""Builds the sign-in through an OpenID Connect provider, which works before NATS is connected."""

from __future__ import annotations

from banksman.gateway.feature import Feature, Groundwork
from banksman.gateway.oidc.operations import operations
from banksman.gateway.oidc.sign_ins import ProviderSignIns


async def start(base: Groundwork) -> None:
    """Let the HTTP server accept the tokens of the provider, if the settings name one."""
    settings, tokens = base.settings.gateway.oidc, None
    if settings is not None:
        # The import of PyJWT costs 0.15 s of CPU and 15 MiB.
        from banksman.gateway.oidc.tokens import oidc_tokens

        tokens = await base.stack.enter_async_context(oidc_tokens(settings, base.background))
        base.keys.tokens = tokens
    base.services.add(ProviderSignIns(settings, tokens, base.dispatcher))


FEATURE = Feature(operations, open=start)
