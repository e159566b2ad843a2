from __future__ import annotations

from pydantic import Field

from banksman.runtime.settings import Section, ServiceSettings


class ModelServerSection(Section):
    """The address of the model server, and the pace of its demo model."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 selects a free port."""
    chunk_delay_s: float = Field(default=0.015, ge=0)
    """Seconds before each chunk that the demo model streams."""


class ModelServerSettings(ServiceSettings):
    model_server: ModelServerSection = ModelServerSection()
