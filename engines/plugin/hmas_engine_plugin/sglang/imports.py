"""Calls a function when a module has been imported, without importing the module.

SGLang loads its plugins in every process, and a process that only turns tokens into text must not load a scheduler and a web server for
the sake of a plugin.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _Watch(importlib.abc.MetaPathFinder):
    """An import finder for one module, which removes itself when that module is imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the protocol's parameters
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the module's own spec, whose loader calls `then` after it has run the module."""
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute, then = loader.exec_module, self._then

        def exec_module(module: ModuleType) -> None:
            execute(module)
            then(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]  # this one loader's, not its class's
        return spec


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Calls `then` with the module: at once if it is imported already, else as soon as it is."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _Watch(name, then))
