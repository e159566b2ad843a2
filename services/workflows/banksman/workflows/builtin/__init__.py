"""The workflows that the platform provides."""

from __future__ import annotations

from banksman.workflows.builtin.create_project import CREATE_PROJECT
from banksman.workflows.workflow import Workflow

BUILTIN: tuple[Workflow, ...] = (CREATE_PROJECT,)
"""Registered by the service when it starts."""

__all__ = ["BUILTIN"]
