"""Limits on the timing and number of meta's changes."""

from dataclasses import dataclass

BAN_DWELLS = 8
"""Length of a cooldown after a rollback, in dwell times."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits; times are in seconds.

    Attributes:
        period_s: Delta T_meta.
        dwell_s: Shortest time between two switches.
        rollback_window_s: How long a switch is watched. `rollback_ratio`: rho of Eq. 12.
        settle_s: Span of the short view: for that long it still holds requests from before the switch.
        keep_alive_s: Longest time without a decision while views arrive.
        agree: Evaluations in a row in which the same source must propose the same candidate.
        switches_per_hour: Most switches within any hour, without rollbacks and bypasses.
    """

    period_s: float = 10.0
    dwell_s: float = 30.0
    rollback_window_s: float = 15.0
    rollback_ratio: float = 1.5
    settle_s: float = 5.0
    keep_alive_s: float = 5.0
    switches_per_hour: int = 30
    agree: int = 2

    @property
    def ban_s(self) -> float:
        """How long a rolled-back candidate stays out of use."""
        return BAN_DWELLS * self.dwell_s
