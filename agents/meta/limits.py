"""What bounds meta's changes in time and number."""

from dataclasses import dataclass

BAN_DWELLS = 8
"""What was rolled back is left alone for so many dwell times."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds unless said otherwise.

    Attributes:
        period_s: Delta T_meta.
        dwell_s: Least time between two switches.
        rollback_window_s: How long a switch is watched. `rollback_ratio`: rho of Eq. 12.
        settle_s: Span of the short view: until then it still holds requests from before the switch.
        keep_alive_s: Longest time without a decision while views come in.
        switches_per_hour: Switches within any hour, rollbacks and bypasses apart.
    """

    period_s: float = 10.0
    dwell_s: float = 30.0
    rollback_window_s: float = 15.0
    rollback_ratio: float = 1.5
    settle_s: float = 5.0
    keep_alive_s: float = 5.0
    switches_per_hour: int = 30

    @property
    def ban_s(self) -> float:
        """How long what was rolled back is left alone."""
        return BAN_DWELLS * self.dwell_s
