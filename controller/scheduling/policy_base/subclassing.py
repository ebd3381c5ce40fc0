"""Leave for a user's own classes to derive from ours where ours are compiled: without it mypyc refuses an interpreted subclass."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["mypyc_attr"]

T = TypeVar("T")

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_: Any) -> Callable[[T], T]:
        """Says something to the compiler; nothing to the interpreter, which has no need of its package then."""
        return lambda decorated: decorated
