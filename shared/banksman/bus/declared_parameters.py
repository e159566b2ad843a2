"""A FastStream serializer that passes the parameters of a handler on without validation."""

from __future__ import annotations

from typing import Any

from fast_depends.library.serializer import OptionItem, Serializer, SerializerProto


class _Unchanged(Serializer):
    def __init__(self, *, name: str, options: list[OptionItem], response_type: Any) -> None:
        super().__init__(name=name, options=options, response_type=response_type)
        # FastStream's AsyncAPI generator reads only the name of this model, and builds its own.
        self.model = type(name, (), {})

    def get_aliases(self) -> tuple[str, ...]:
        """Return the names of the parameters in messages; no parameter has an alias."""
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
        """Return the serializer of one handler."""
        return _Unchanged(name=name, options=options, response_type=response_type)
