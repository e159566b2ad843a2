"""The workflows that the platform provides."""

from __future__ import annotations

from banksman.sdk.workflows import Workflow
from banksman.workflows.builtin.create_project import create_project

BUILTIN: tuple[Workflow, ...] = (create_project,)
"""Registered by the service when it starts."""

__all__ = ["BUILTIN"]
