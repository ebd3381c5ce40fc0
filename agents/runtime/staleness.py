"""Detects that an agent receives only messages that are too old, or dated in the future, because clocks differ. Pure.

Every process derives its time from the wall clock at its own start. If the machine's clock is set between two starts, messages of one
process look too old to the other. The agent then drops all of them and posts nothing, as if it received no messages.
"""

SPAN_S = 10.0
"""How long all messages must be outside their limits before a warning."""
AHEAD_S = 5.0
"""A message sent more than this later than now comes from another clock."""
AGAIN_S = 60.0
"""Shortest time between two warnings."""


class StaleWatch:
    """Tracks the ages of messages that have an age limit."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._told_s = float("-inf")

    def observe(self, ages_s: list[float], fresh: int, now_s: float) -> str:
        """Takes the ages of a batch's messages that have an age limit; `fresh` of them are within theirs.

        Returns the warning; empty if there is nothing new to report.
        """
        if not ages_s:
            return ""
        ahead_s = -min(ages_s)
        if fresh and ahead_s <= AHEAD_S:
            self._since_s = None
            return ""
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s < SPAN_S or now_s - self._told_s < AGAIN_S:
            return ""
        self._told_s = now_s
        what = f"{ahead_s:.1f} s ahead of" if ahead_s > AHEAD_S else f"{min(ages_s):.1f} s behind"
        return (
            f"for {now_s - self._since_s:.0f} s all messages are {what} this process's clock; unless it is still catching up, the "
            "machine's clock was set between the starts of the two: restart gateway and agents"
        )
