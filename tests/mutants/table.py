"""All mutants, in the order of the requirements."""

from __future__ import annotations

from tests.mutants import design, generation, json_calls, registry, shape, workspace_tools
from tests.mutants.mutant import Mutant

_GROUPS = (json_calls, design, registry, workspace_tools, generation, shape)

MUTANTS: tuple[Mutant, ...] = tuple(
    sorted(
        (mutant for group in _GROUPS for mutant in group.MUTANTS),
        key=lambda mutant: int(mutant.requirement[1:]),
    )
)
