"""Finds an engine that answers its health check and computes nothing. Pure.

A hung engine fails no request: each of them waits. So the engine's own report is watched, and the time until it begins an answer.
"""

from hmas.engines.base import EngineSnapshot

PREFILL_S_PER_TOKEN = 0.002
"""Further patience for each prompt token that has to be read before the first token: an engine may count a long prompt only at its end."""
PROBE_S = 10.0
"""Most seconds, beside those for prompts, that an engine that is probed may compute nothing: one request waits for the outcome."""


class StallWatch:
    """Measures for how long an engine has reported running requests and token totals that do not move."""

    __slots__ = ("_since_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = -1
        self._since_s = 0.0

    def stalled_s(self, snapshot: EngineSnapshot) -> float:
        """Takes a reading; seconds since the totals last moved, 0 while nothing runs or the engine does not answer."""
        tokens = snapshot.prompt_tokens_total + snapshot.generation_tokens_total
        if tokens != self._tokens or snapshot.running == 0 or not snapshot.healthy:
            self._tokens = tokens
            self.restart(snapshot.taken_s)
        return snapshot.taken_s - self._since_s

    def restart(self, now_s: float) -> None:
        """Measures from now on."""
        self._since_s = now_s


def patience_s(limit_s: float, prompt_tokens: int) -> float:
    """How long an engine may show no progress, if `limit_s` is the configured time and `prompt_tokens` its longest unanswered prompt."""
    return limit_s + PREFILL_S_PER_TOKEN * prompt_tokens
