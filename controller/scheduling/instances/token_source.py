"""Where the tokens of an instance are read from when nobody reports each."""

from collections.abc import Sequence
from typing import Protocol


class TokenSource(Protocol):
    """Who knows how many tokens an instance has produced, where nobody reports each: an engine model in virtual time."""

    def tokens(self, now_s: float) -> Sequence[tuple[str, int]]:
        """Id and output tokens so far of each request that is past its first token."""
        ...

    def last_step_s(self, now_s: float) -> float:
        """When they had the latest of them."""
        ...

    def generated(self, now_s: float) -> int:
        """Output tokens of all its requests since the start."""
        ...
