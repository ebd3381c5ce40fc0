"""Where the token counts of an instance are read from if they are not reported one by one."""

from collections.abc import Sequence
from typing import Protocol


class TokenSource(Protocol):
    """A source of an instance's token counts for cases where tokens are not reported one by one: an engine model in virtual time."""

    def tokens(self, now_s: float) -> Sequence[tuple[str, int]]:
        """Id and output tokens so far of each request that has its first token."""
        ...

    def last_step_s(self, now_s: float) -> float:
        """Time of the latest token of these requests."""
        ...

    def generated(self, now_s: float) -> int:
        """Output tokens of all requests since the start."""
        ...
