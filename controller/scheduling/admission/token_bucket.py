"""The token bucket of a rate with a burst (Turner, New Directions in Communications, 1986)."""


class TokenBucket:
    """A bucket that fills at a steady rate up to its capacity and is emptied by what is taken.

    The bucket may be overdrawn: a predicted charge is corrected later, and a claim above the capacity is admitted when the bucket is full.
    The deficit is filled at the same rate, so the long-run rate holds in every case.

    Attributes:
        capacity: What the bucket holds when full: the burst.
        per_s: Rate at which it fills, more than 0.
    """

    __slots__ = ("_at_s", "_level", "capacity", "per_s")

    def __init__(self, capacity: float, per_s: float, now_s: float) -> None:
        """Starts full."""
        self.capacity = capacity
        self.per_s = per_s
        self._level = capacity
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        """The current fill level; less than 0 while the bucket is overdrawn."""
        if now_s > self._at_s:
            self._level = min(self.capacity, self._level + (now_s - self._at_s) * self.per_s)
            self._at_s = now_s
        return self._level

    def take(self, amount: float, now_s: float) -> None:
        """Takes an amount out, whatever the bucket holds; a negative amount is given back, up to the capacity."""
        self._level = min(self.capacity, self.level(now_s) - amount)

    def resize(self, capacity: float, per_s: float, now_s: float) -> None:
        """Sets another capacity and rate. The bucket stays as full, in proportion; a deficit stays as it is."""
        level = self.level(now_s)
        self._level = level * capacity / self.capacity if level > 0.0 else level
        self.capacity = capacity
        self.per_s = per_s

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until the bucket holds the amount, or is full if the amount exceeds its capacity; 0 if it does so now."""
        missing = min(amount, self.capacity) - self.level(now_s)
        return missing / self.per_s if missing > 1e-9 else 0.0
