"""Tells an agent that hears nothing but the past, or the future, from one to which nobody speaks. Pure.

Every process counts its time from the wall clock at its own start. Where the machine's clock is set in between, what one process says is
old to another that was started later: all of it is dropped, and the agent falls silent as if nobody were there.
"""

SPAN_S = 10.0
"""How long there has to be nothing else."""
AHEAD_S = 5.0
"""What was sent so much later than now comes from another clock."""
AGAIN_S = 60.0
"""Least time between two warnings."""


class StaleWatch:
    """Follows the ages of messages that may be too old."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._told_s = float("-inf")

    def observe(self, ages_s: list[float], fresh: int, now_s: float) -> str:
        """Takes a batch in.

        Args:
            ages_s: Of the messages that have an age limit.
            fresh: How many of those are within it.
            now_s: By this process's clock.

        Returns:
            What to warn of; empty where there is nothing new to say.
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
