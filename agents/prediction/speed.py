"""The speed of one instance, learnt from its completions alone. Pure.

Because of these figures a model that was trained on some engines can serve another. A request's TPOT is a step of the batch in which it was
decoded; what its TTFT took beyond the steps that it waits for is its own prompt. This includes the prefills beside it, in a step's base: a
prediction wants the time that a request will see, and knows no engine's counters. The twin, which replays the prefills themselves, takes
them out by the counters (`agents/meta/twin/plant.py`); both use the same fit.
"""

from msgspec.structs import replace

from hmas.controller.core.messages import Completion
from hmas.controller.core.statistics.step_fit import COMMON, MEMORY, Step, StepFit

UNKNOWN_SPEED = Step(base_ms=25.0, seq_ms=0.5, prompt_ms=0.15)
"""The speed of an instance of which nothing is known."""
AHEAD = 1.5
"""Steps that a first token takes beside its prompt: half of the running one on average, and its own."""
PROMPTS = 3.0
"""Prompts of `PROMPT` tokens that a profile's time per prompt token counts for; without a profile a fifth of that."""
PROMPT = 500.0
TOKENS_FULL = 64
"""Output tokens after the first from which on an answer counts fully."""
LEAST_PROMPT_MS = 1e-4


class SpeedFit:
    """Fits steps to TPOT by load, and the time per prompt token to the rest of TTFT, both with forgetting.

    Args:
        prior: A known speed from a profile, which completions outweigh over time; None starts from common ratios of engines.

    Attributes:
        speed: The present figures.
    """

    def __init__(self, prior: Step | None = None) -> None:
        self._fit = StepFit(prior)
        ratios = prior or COMMON
        self._prompt_ratio = ratios.prompt_ms / ratios.base_ms
        self._tokens = PROMPTS * PROMPT if prior is not None else 0.0
        self._rest_ms = self._tokens * prior.prompt_ms if prior is not None else 0.0
        self.speed = prior or UNKNOWN_SPEED

    def learn(self, completion: Completion, load: float) -> None:
        """Takes a completion during whose decoding `load` requests were in flight on average, itself included."""
        # The time per token of several answers is that of their mean length, and the longest takes the time.
        if completion.tpot_ms > 0 and completion.output_tokens > 1 and completion.sequences == 1:
            self._fit.add_answer(1.0, load, 0.0, completion.tpot_ms, min(completion.output_tokens - 1, TOKENS_FULL) / TOKENS_FULL)
            step = self._fit.step or self.speed
            self.speed = replace(step, prompt_ms=self.speed.prompt_ms)
        if completion.service_ttft_ms > 0 and completion.prompt_tokens > 0:
            self._learn_prompt(completion.service_ttft_ms, completion.prompt_tokens, load)

    def _learn_prompt(self, ttft_ms: float, prompt_tokens: int, load: float) -> None:
        keep = 1.0 - 1.0 / MEMORY
        # Sums, not the mean of ratios: long prompts determine the cost of a token best.
        self._tokens = keep * self._tokens + prompt_tokens
        self._rest_ms = keep * self._rest_ms + max(0.0, ttft_ms - AHEAD * self.speed.decode_ms(load))
        shrink = 0.2 * PROMPTS * PROMPT
        per_token_ms = (self._rest_ms + shrink * self._prompt_ratio * self.speed.base_ms) / (self._tokens + shrink)
        self.speed = replace(self.speed, prompt_ms=max(LEAST_PROMPT_MS, per_token_ms))
