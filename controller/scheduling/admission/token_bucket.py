"""The token bucket of a rate with a burst (Turner, New Directions in Communications, 1986)."""


class TokenBucket:
    """Fills at a steady rate up to its capacity; what is taken empties it.

    It may be overdrawn: a charge that was predicted is put right by the truth, and a claim above the capacity is let in when the
    bucket is full. What is overdrawn is filled up again at the same rate, so the long-run rate holds in every case.

    Attributes:
        capacity: What it holds when full: the burst.
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
        """What it holds; less than 0 where it is overdrawn."""
        if now_s > self._at_s:
            self._level = min(self.capacity, self._level + (now_s - self._at_s) * self.per_s)
            self._at_s = now_s
        return self._level

    def take(self, amount: float, now_s: float) -> None:
        """Takes an amount out, whatever it holds; an amount below 0 is given back, up to the capacity."""
        self._level = min(self.capacity, self.level(now_s) - amount)

    def resize(self, capacity: float, per_s: float, now_s: float) -> None:
        """Takes another capacity and rate. It stays as full as it was, a full one full; what is overdrawn stays owed as it is."""
        level = self.level(now_s)
        self._level = level * capacity / self.capacity if level > 0.0 else level
        self.capacity = capacity
        self.per_s = per_s

    def wait_s(self, amount: float, now_s: float) -> float:
        """How long until it holds the amount, or is full where the amount passes its capacity; 0 where it does now."""
        missing = min(amount, self.capacity) - self.level(now_s)
        return missing / self.per_s if missing > 1e-9 else 0.0
