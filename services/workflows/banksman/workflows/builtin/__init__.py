"""The workflows that the platform provides."""

from __future__ import annotations

from banksman.sdk.workflows import Workflow
from banksman.workflows.builtin.code import refactor_component, run_tests, search_code
from banksman.workflows.builtin.create_project import create_project
from banksman.workflows.builtin.reports import research_report, summarize_conversation

BUILTIN: tuple[Workflow, ...] = (
    create_project,
    refactor_component,
    research_report,
    run_tests,
    search_code,
    summarize_conversation,
)
"""Registered by the service when it starts."""

__all__ = ["BUILTIN"]
