"""Compares an agent's answers with the default that they replace, on the newest requests. Pure."""

import math
from collections import deque

WINDOW = 50
"""Requests over which an agent and the default are compared."""
PROOF_LEAST = 20
"""Requests needed before an answer may count as proven."""
LOSS_MOST = 10.0
"""A larger loss, or one that is no number, counts as this value."""


class Contest:
    """Paired losses of an agent and of the default on the same requests.

    The agent is set aside once it is worse over a full window: by more than the margin and by more than one standard error of the paired
    difference. It keeps answering and is still scored, and it is used again once it is no worse than the default over a full window.

    Args:
        margin: How much worse still passes, in the unit of the losses.
        full: Losses needed before a verdict; at most `WINDOW`.

    Attributes:
        aside: Whether the agent is set aside.
    """

    __slots__ = ("_agent", "_default", "_full", "_margin", "aside")

    def __init__(self, margin: float, *, full: int = WINDOW) -> None:
        self.aside = False
        self._margin = margin
        self._full = full
        self._agent: deque[float] = deque(maxlen=WINDOW)
        self._default: deque[float] = deque(maxlen=WINDOW)

    @property
    def scored(self) -> int:
        """Number of requests in the window."""
        return len(self._agent)

    @property
    def agent_loss(self) -> float:
        """Mean loss of the agent over the window; 0 if it is empty."""
        return sum(self._agent) / max(1, len(self._agent))

    @property
    def default_loss(self) -> float:
        """Mean loss of the default over the window; 0 if it is empty."""
        return sum(self._default) / max(1, len(self._default))

    @property
    def proven(self) -> bool:
        """Whether the answers have proven right: on enough requests, and no worse than the default so far."""
        if self.aside or self.scored < PROOF_LEAST:
            return False
        return self.scored >= WINDOW or self.agent_loss <= self.default_loss + self._margin

    def add(self, agent_loss: float, default_loss: float) -> bool:
        """Records both losses on one request, each 0 or more. True if the verdict has changed."""
        self._agent.append(_bounded(agent_loss))
        self._default.append(_bounded(default_loss))
        if len(self._agent) < self._full:
            return False
        worse = self.agent_loss - self.default_loss
        aside = worse > 0.0 if self.aside else worse > max(self._margin, self._standard_error(worse))
        changed = aside is not self.aside
        self.aside = aside
        return changed

    def fail(self) -> bool:
        """Sets the agent aside at once, on evidence that needs no average. True if it was not set aside before."""
        before = self.aside
        self.add(LOSS_MOST, 0.0)
        self.aside = True
        return not before

    def _standard_error(self, mean: float) -> float:
        count = len(self._agent)
        squares = sum((agent - default - mean) ** 2 for agent, default in zip(self._agent, self._default, strict=True))
        return math.sqrt(squares) / count


def _bounded(loss: float) -> float:
    return min(LOSS_MOST, max(0.0, loss)) if math.isfinite(loss) else LOSS_MOST


def pinball(log_true: float, log_predicted: float, level: float) -> float:
    """Pinball loss of a quantile at `level`, both lengths as natural logarithms."""
    away = log_true - log_predicted
    return level * away if away >= 0.0 else (level - 1.0) * away
