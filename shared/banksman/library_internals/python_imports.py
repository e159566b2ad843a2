"""Imports that skip libraries and packages which a process does not need.

`without` sets entries of `sys.modules` to None, as Python documents it. nats-py imports aiohttp if it is
installed, for a transport that Banksman does not use: 8.5 MiB of the launcher and of each service without a
model.

`defer` runs the `__init__` of a library's packages only if one of their names needs it. Anthropic's SDK
imports 2,000 modules of types that an agent never uses: 0.6 s of CPU at each start of an agent, and 29 MiB.
`importlib.util.LazyLoader` does not help: it runs an `__init__` as soon as a module of the package is
imported, because that import reads `__path__`.

`defer` uses the hooks of `importlib.abc`, and relies on the layout of the SDK: a class is in the module of
its name in snake case, or in one of the modules that the caller names. If the layout changes, the `__init__`
runs, and only the gain is lost.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


@contextmanager
def without(library: str) -> Generator[None]:
    """Hide a library from imports in this context, unless it is already loaded. A later import finds it."""
    if library in sys.modules:
        yield
        return
    # `None` makes an import raise ModuleNotFoundError: https://docs.python.org/3/library/sys.html#sys.modules
    sys.modules[library] = None  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        del sys.modules[library]


def defer(library: str, *modules: str) -> None:
    """Run the `__init__` of a library and of its packages on first need, not on import of a module.

    Before the `__init__` of a package runs, a name is looked up in the package's module of that name in snake
    case. A name of the library is also looked up in `modules`.

    Args:
        library: No effect if it is already imported.
        modules: The modules that define the names that this process uses.
    """
    if library not in sys.modules:
        sys.meta_path.insert(0, _Finder(library, modules))


class _Finder(MetaPathFinder):
    def __init__(self, library: str, modules: Sequence[str]) -> None:
        self._library = library
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self._library:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.submodule_search_locations and isinstance(spec.loader, InspectLoader):
            spec.loader = _DeferredLoader(spec.loader, self._modules if fullname == self._library else ())
        return spec


class _DeferredLoader(Loader):
    def __init__(self, loader: InspectLoader, modules: Sequence[str]) -> None:
        self.loader = loader
        self.modules = modules
        self._running = threading.RLock()
        self._ran = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass

    def run_init(self, package: ModuleType) -> None:
        """Run the `__init__` of the package once. Other threads wait for its end."""
        with self._running:
            if not self._ran:
                self._ran = True
                self.loader.exec_module(package)


class _Deferred(ModuleType):
    """A package whose `__init__` has not run. Python calls `__getattr__` for its missing names."""

    def __getattr__(self, name: str) -> Any:
        # Python and introspecting libraries look up such names in every module.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"{self.__name__}.{name}")
        if self._has(name):
            return import_module(f"{self.__name__}.{name}")
        loader = self.__spec__.loader if self.__spec__ else None
        assert isinstance(loader, _DeferredLoader)
        snake = _WORD.sub("_", name).lower()
        for module in (*((snake,) if self._has(snake) else ()), *loader.modules):
            found = import_module(f"{self.__name__}.{module}")
            if hasattr(found, name):
                # Stored, so that later uses of the name do not reach this method.
                return vars(self).setdefault(name, getattr(found, name))
        loader.run_init(self)
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(f"{self.__name__}.{name}") from None

    def _has(self, module: str) -> bool:
        return PathFinder.find_spec(f"{self.__name__}.{module}", list(self.__path__)) is not None


_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
