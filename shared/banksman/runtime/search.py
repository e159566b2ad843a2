"""The provider of `web_search` for each tenant. Without one, the tool is not offered."""

from __future__ import annotations

from pydantic import Field, SecretStr, model_validator

from banksman.contracts.tools import SearchApi, SearchChoice, SecretName, ToolDefinition
from banksman.contracts.urls import HttpUrl
from banksman.contracts.wire import Token
from banksman.contracts.workspace_tools import WEB_SEARCH, WORKSPACE_TOOLS
from banksman.runtime.settings import Section


class SearchProvider(Section):
    """A provider of web searches, and the key with which it is called."""

    provider: SearchApi
    url: HttpUrl | None = None
    """Address of the search API. None means that of the vendor; `searxng` has none."""
    key: SecretStr | None = None
    """The operator's key, used for all tenants of this provider."""
    secret: SecretName | None = None
    """Name of the tenant's secret with its key, in place of `key`."""

    @model_validator(mode="after")
    def _is_complete(self) -> SearchProvider:
        if self.provider == "searxng" and self.url is None:
            raise ValueError("searxng needs url, such as https://search.example.org/search")
        if (self.key and self.secret) or (self.provider != "searxng" and not (self.key or self.secret)):
            raise ValueError(f"{self.provider} needs either key or secret")
        return self


class SearchSettings(Section):
    """Section `search`: who searches the web for models."""

    default: SearchProvider | None = None
    """The provider of all tenants that `named` does not contain. None lets their administrators choose."""
    named: dict[Token, SearchProvider | None] = Field(default_factory=dict[str, SearchProvider | None])
    """Providers by tenant; null offers that tenant no search, and lets it choose none."""

    def of(self, tenant: str, chosen: SearchChoice | None = None) -> SearchProvider | None:
        """Return the provider of a tenant: that of the settings, otherwise the one that the tenant chose."""
        if chosen is None or self.setting_of(tenant) is not None:
            return self.named.get(tenant, self.default)
        return SearchProvider(provider=chosen.provider, url=chosen.url, secret=chosen.secret)

    def setting_of(self, tenant: str) -> str | None:
        """Return the setting that decides for a tenant; None if the tenant may choose."""
        if tenant in self.named:
            return "BANKSMAN_SEARCH__NAMED"
        return None if self.default is None else "BANKSMAN_SEARCH__DEFAULT"

    def tools(self, tenant: str, chosen: SearchChoice | None = None) -> tuple[ToolDefinition, ...]:
        """Return the tools that runners execute for a tenant."""
        return (*WORKSPACE_TOOLS, WEB_SEARCH) if self.of(tenant, chosen) else WORKSPACE_TOOLS
