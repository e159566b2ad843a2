"""The parameters of a handler, as FastStream passes them and documents them."""

from __future__ import annotations

from typing import Any

from fast_depends.library.serializer import OptionItem, Serializer, SerializerProto


class _Unchanged(Serializer):
    def __init__(self, *, name: str, options: list[OptionItem], response_type: Any) -> None:
        super().__init__(name=name, options=options, response_type=response_type)
        # The AsyncAPI document reads the name of the model only, and builds its own.
        self.model = type(name, (), {})

    def get_aliases(self) -> tuple[str, ...]:
        """Return the names of the parameters in messages: they have no others."""
        return tuple(self.options)

    def __call__(self, call_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call unchanged."""
        return call_kwargs


class DeclaredParameters(SerializerProto):
    """Passes the parameters of each handler on as they are: the decoder of its body has validated them.

    The default builds a Pydantic model for each handler, which takes a third of the CPU time of a gateway's
    start, and validates each body again.
    """

    def __call__(self, *, name: str, options: list[OptionItem], response_type: Any) -> Serializer:
        """Return what passes the parameters of one handler on."""
        return _Unchanged(name=name, options=options, response_type=response_type)
