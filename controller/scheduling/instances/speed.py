"""The speed of an instance, learned from the tokens that it produces: it needs no profile and no prediction.

Agents fit how a step grows with the load (`statistics.step_fit`), for loads that have not come yet. The scheduler decides about the next
moment: it needs the pace under the load that there is, within a tick of a change, from tokens and for any engine.
"""

from hmas.controller.core.statistics.quantiles import tracked

_SAMPLE_STEP = 0.8
"""A tick's sample is already a mean over all decoding requests; more smoothing would only make the pace lag behind the batch."""
_FLOOR_LEVEL = 0.05
_FLOOR_STEP = 0.05
"""Level and relative step of the floor."""
_ALONE_RISE = 1.0 + 2e-5
"""Factor by which the pace of a request alone is forgotten with each sample: at ten samples a second it doubles in an hour."""
_PREFILL_DECAY = 0.98


class InstanceSpeed:
    """Speed of one instance under its current load.

    Attributes:
        token_ms: Time per output token over recent samples, None before the first.
        floor_ms: About the 5 % quantile of the samples without any prefill: the instance's pace under little load. None before the first
            such sample.
        alone_ms: The least sample, forgotten within hours: about the pace of a request alone. The floor rises within minutes of a lasting
            load, and what follows from it would then allow the load to grow further. None before the first sample.
    """

    __slots__ = ("_prefill_ms", "_prefill_tokens", "alone_ms", "floor_ms", "token_ms")

    def __init__(self) -> None:
        self.token_ms: float | None = None
        self.floor_ms: float | None = None
        self.alone_ms: float | None = None
        self._prefill_ms = 0.0
        self._prefill_tokens = 0.0

    def decoded(self, ms_per_token: float, *, quiet: bool = True) -> None:
        """Records the mean time per token of the decoding requests since the last sample.

        `quiet`: no prompt was prefilled meanwhile. An instance that always has prompts to prefill does not show its best pace.
        """
        self.token_ms = ms_per_token if self.token_ms is None else self.token_ms + _SAMPLE_STEP * (ms_per_token - self.token_ms)
        self.alone_ms = ms_per_token if self.alone_ms is None else min(ms_per_token, self.alone_ms * _ALONE_RISE)
        # A value below the known floor is a better pace even if prompts were prefilled.
        if not quiet and (self.floor_ms is None or ms_per_token >= self.floor_ms):
            return
        if self.floor_ms is None:
            self.floor_ms = ms_per_token
            return
        below = 1.0 if ms_per_token <= self.floor_ms else 0.0
        self.floor_ms = tracked(self.floor_ms, _FLOOR_LEVEL, _FLOOR_STEP * self.floor_ms, below)

    def prefilled(self, ttft_ms: float, prompt_tokens: int) -> None:
        """Records the time to first token of a request that had the prefill to itself."""
        self._prefill_ms = _PREFILL_DECAY * self._prefill_ms + ttft_ms
        self._prefill_tokens = _PREFILL_DECAY * self._prefill_tokens + max(1, prompt_tokens)

    def prefill_ms(self, prompt_tokens: int, predicted_ms: float) -> float:
        """How long a prompt's prefill delays the decoding requests; the prediction if nothing has been learned yet.

        It uses the ratio of the sums, not the mean of the ratios, so that long prompts, which delay the most, count the most.
        """
        if self._prefill_tokens <= 0.0:
            return predicted_ms
        return prompt_tokens * self._prefill_ms / self._prefill_tokens
