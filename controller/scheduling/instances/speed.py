"""How fast an instance works, learned from its own tokens: no profile and no prediction is needed."""

_SAMPLE_STEP = 0.8
"""A tick's sample is already a mean over all that decode: smoothing it much would only make the pace lag behind the batch."""
_FLOOR_STEP = 0.05
_PREFILL_DECAY = 0.98


class InstanceSpeed:
    """Speed of one instance as it is loaded now.

    Attributes:
        token_ms: Time per output token over recent samples, None before the first.
        floor_ms: About the 5 % quantile of the samples into which no prompt fell, the instance's pace when it has little to do; None
            before the first of those.
    """

    __slots__ = ("_prefill_ms", "_prefill_tokens", "floor_ms", "token_ms")

    def __init__(self) -> None:
        self.token_ms: float | None = None
        self.floor_ms: float | None = None
        self._prefill_ms = 0.0
        self._prefill_tokens = 0.0

    def decoded(self, ms_per_token: float, *, quiet: bool = True) -> None:
        """Those that decode got their tokens at this pace since the last sample, on average.

        `quiet`: no prompt was being read meanwhile. An instance that is never without prompts shows nothing of its best pace.
        """
        self.token_ms = ms_per_token if self.token_ms is None else self.token_ms + _SAMPLE_STEP * (ms_per_token - self.token_ms)
        # Below what was known, it is a better pace whoever else was there.
        if not quiet and (self.floor_ms is None or ms_per_token >= self.floor_ms):
            return
        if self.floor_ms is None:
            self.floor_ms = ms_per_token
            return
        # A step down for values below it and a 19 times smaller one up for values above: settles at the 5 % quantile.
        self.floor_ms += _FLOOR_STEP * self.floor_ms * (0.05 if ms_per_token > self.floor_ms else -0.95)

    def prefilled(self, ttft_ms: float, prompt_tokens: int) -> None:
        """A request that had the prefill to itself got its first token after so long."""
        self._prefill_ms = _PREFILL_DECAY * self._prefill_ms + ttft_ms
        self._prefill_tokens = _PREFILL_DECAY * self._prefill_tokens + max(1, prompt_tokens)

    def prefill_ms(self, prompt_tokens: int, predicted_ms: float) -> float:
        """How long a prompt holds up those that decode; the prediction where nothing has been learned yet.

        The ratio of the sums, not the mean of the ratios: long prompts, which hold up the most, count the most.
        """
        if self._prefill_tokens <= 0.0:
            return predicted_ms
        return prompt_tokens * self._prefill_ms / self._prefill_tokens
