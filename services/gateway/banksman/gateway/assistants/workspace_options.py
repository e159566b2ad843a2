"""What the operators of runners let the workspaces of a tenant use."""

from __future__ import annotations

from typing import Annotated

from banksman.contracts.errors import BadInput
from banksman.contracts.wire import Stored, Token
from banksman.contracts.workspaces import Patterns, RepositorySource, WorkspaceOffer, is_allowed
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.runs.runners.placement import Placements

operations = Operations("assistants")


class WorkspaceOptions(Stored):
    """What workspaces of the tenant can use; empty while no runner is live."""

    toolchains: tuple[Token, ...]
    """Names that an assistant can choose in `tools.toolchain`."""
    repositories: Patterns
    """Addresses of git repositories from which a workspace may start, with `*` for any characters."""
    registries: Patterns
    """Hosts of package registries that the tenant's policy may permit."""


Live = Annotated[Placements, provided(Placements)]


@operations.add("workspace.options", "GET /context/workspace-options")
async def read_options(placements: Live, caller: CallerDep) -> WorkspaceOptions:
    """Read which toolchains, repositories and registries the operator offers to workspaces."""
    offers = [offer for offer in _offers(placements) if offer is not None]
    return WorkspaceOptions(
        toolchains=tuple(sorted({name for offer in offers for name in offer.toolchains})),
        repositories=tuple(sorted({one for offer in offers for one in offer.repositories_of(caller.tenant)})),
        registries=tuple(sorted({host for offer in offers for host in offer.registries})),
    )


def check_repository(placements: Placements, tenant: str, source: RepositorySource | None) -> None:
    """Refuse a repository that no live runner allows; its runner checks it again when it fetches it."""
    offers = _offers(placements)
    if source is None or not offers or None in offers:
        return
    patterns = tuple(one for offer in offers if offer for one in offer.repositories_of(tenant))
    if not is_allowed(source.repository, patterns):
        allowed = ", ".join(patterns) or "no repository"
        raise BadInput("source.repository", source.repository, f"what the operator allows: {allowed}")


def _offers(placements: Placements) -> list[WorkspaceOffer | None]:
    return [lease.offer for lease in placements.leases() if lease.workspaces]
