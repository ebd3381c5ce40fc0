"""Output lengths as distributions: the common levels of their quantiles."""

LEVELS: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Levels of the quantiles of output lengths, ascending."""
MEDIAN = LEVELS.index(0.5)
P90 = LEVELS.index(0.9)
