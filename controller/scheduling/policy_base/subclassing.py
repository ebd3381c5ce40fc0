"""Permits a user's own classes to derive from compiled ones: without it mypyc refuses an interpreted subclass."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["mypyc_attr"]

T = TypeVar("T")

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_: Any) -> Callable[[T], T]:
        """Does nothing; the attribute only concerns the compiler, and this keeps its package from being a dependency."""
        return lambda decorated: decorated
