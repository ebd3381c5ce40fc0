"""The speed of one instance: three figures in milliseconds, learnt from its completions. Pure.

Because of these figures a model that was trained on some engines can serve another.
An engine step with n decoding sequences takes about base + per_seq * n; a prompt token adds about per_prompt_token. Both are fitted with
exponential forgetting, and shrunk towards ratios that engines have in common, so that a few completions already give usable figures.
"""

import msgspec

from hmas.controller.core.messages import Completion

MEMORY = 300.0
"""Completions after which an old one counts 1/e."""
PRIOR_WEIGHT = 3.0
"""Completions that the prior counts for."""
_PER_SEQ_RATIO = 0.02
_PROMPT_RATIO = 0.006
_MAX_TOKENS_WEIGHT = 64.0
_PRIOR_LOADS = (1.0, 8.0, 32.0)
_PRIOR_PROMPT = 500.0


class Speed(msgspec.Struct, frozen=True):
    """An instance's figures in milliseconds.

    Attributes:
        base_ms: A decode step of an almost empty batch.
        per_seq_ms: Added by each sequence in the batch.
        per_prompt_token_ms: Added by each prompt token computed in the step.
        samples: Completions behind these figures.
    """

    base_ms: float = 25.0
    per_seq_ms: float = 0.5
    per_prompt_token_ms: float = 0.15
    samples: int = 0

    def step_ms(self, sequences: float) -> float:
        """Returns the time of a decode step of a batch."""
        return self.base_ms + self.per_seq_ms * sequences


class SpeedFit:
    """Weighted least squares of TPOT on load, and of the rest of TTFT on prompt length, both with forgetting.

    Args:
        prior: A known speed from a profile, which completions outweigh over time; None starts from common ratios of engines.
    """

    def __init__(self, prior: Speed | None = None) -> None:
        self._w = self._n = self._nn = self._y = self._ny = 0.0
        self._ll = self._lz = 0.0
        self._samples = 0
        self._speed = prior or Speed()
        self._per_seq_ratio = _PER_SEQ_RATIO
        self._prompt_ratio = _PROMPT_RATIO
        if prior is not None:
            self._per_seq_ratio = prior.per_seq_ms / prior.base_ms
            self._prompt_ratio = prior.per_prompt_token_ms / prior.base_ms
            for load in _PRIOR_LOADS:
                self._add(prior.step_ms(load), load, PRIOR_WEIGHT / prior.step_ms(load) ** 2)
            self._ll = PRIOR_WEIGHT * _PRIOR_PROMPT
            self._lz = self._ll * prior.per_prompt_token_ms

    @property
    def speed(self) -> Speed:
        """The present figures."""
        return self._speed

    def learn(self, completion: Completion, load: float) -> None:
        """Takes a completion during whose decoding `load` requests were in flight on average, itself included."""
        if completion.tpot_ms > 0 and completion.output_tokens > 1:
            self._learn_decode(completion.tpot_ms, load, min(completion.output_tokens - 1, _MAX_TOKENS_WEIGHT) / _MAX_TOKENS_WEIGHT)
        if completion.service_ttft_ms > 0 and completion.prompt_tokens > 0:
            self._learn_prefill(completion.service_ttft_ms, completion.prompt_tokens, load)

    def _learn_decode(self, tpot_ms: float, load: float, weight: float) -> None:
        # Relative errors count: a slow step is not measured better than a fast one.
        self._add(tpot_ms, load, weight / (tpot_ms * tpot_ms))
        self._samples += 1
        # Prior: per_seq = ratio * base at the observed level. The prior fixes the slope until the loads spread enough to outweigh it.
        mean_n, mean_y = self._n / self._w, self._y / self._w
        spread = self._nn / self._w - mean_n * mean_n
        covariance = self._ny / self._w - mean_n * mean_y
        prior_slope = self._per_seq_ratio * mean_y / (1.0 + self._per_seq_ratio * mean_n)
        trust = PRIOR_WEIGHT / min(self._samples, MEMORY) * (1.0 + mean_n)
        slope = (covariance + trust * prior_slope) / (spread + trust)
        slope = min(max(slope, 0.0), 0.95 * mean_y / max(mean_n, 1.0))
        base = max(mean_y - slope * mean_n, 0.05 * mean_y)
        self._speed = msgspec.structs.replace(self._speed, base_ms=base, per_seq_ms=slope, samples=self._samples)

    def _add(self, tpot_ms: float, load: float, weight: float) -> None:
        keep = 1.0 - 1.0 / MEMORY
        self._w = keep * self._w + weight
        self._n = keep * self._n + weight * load
        self._nn = keep * self._nn + weight * load * load
        self._y = keep * self._y + weight * tpot_ms
        self._ny = keep * self._ny + weight * load * tpot_ms

    def _learn_prefill(self, ttft_ms: float, prompt_tokens: int, load: float) -> None:
        keep = 1.0 - 1.0 / MEMORY
        rest_ms = max(0.0, ttft_ms - 1.5 * self._speed.step_ms(load))
        length = float(prompt_tokens)
        # Long prompts determine the cost of a token best; weights of 1/length keep the longest from deciding alone.
        self._ll = keep * self._ll + length
        self._lz = keep * self._lz + rest_ms
        prior = self._prompt_ratio * self._speed.base_ms
        shrink = PRIOR_WEIGHT * 100.0
        per_token = (self._lz + shrink * prior) / (self._ll + shrink)
        self._speed = msgspec.structs.replace(self._speed, per_prompt_token_ms=max(per_token, 1e-4))
