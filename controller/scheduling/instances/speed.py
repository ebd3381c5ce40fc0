"""The speed of an instance, learned from the tokens that it produces: it needs no profile and no prediction.

Agents fit how a step grows with the load (`statistics.step_fit`), for loads that have not come yet. The scheduler decides about the next
moment: it needs the pace under the load that there is, within a tick of a change, from tokens and for any engine.
"""

from math import inf, log

from hmas.controller.core.statistics.quantiles import tracked

_LEFT_STEPS = 32.0
"""Steps of the engine in which half of what the line does not explain is replaced, and the most that count of one sample. The line follows
the batch at once, so noise can be smoothed. It has to be by steps: on a slow engine a sample holds one step, and requests that wait ask ten
times a second, so that they would go whenever noise shows a fast pace. In `lab/benchmarks/guard_study.py` a half by sample instead gives 2
points fewer with tight targets, 4 fewer with `--steep`, and 1 more with `--slow`."""
_LINE_DECAY = 0.995
"""What an older sample counts for the mean that the line goes through: at ten samples a second it forgets in 20 s."""
_RISE, _RISE_DEVIATION = 0.03, 0.03
"""Share of the pace that a sequence more adds to it, and its standard deviation, before there are samples. vLLM with a tiny model on two
cores has 5 %."""
_RISE_DECAY = 0.999
_NEAR = 0.3
"""What the newest sample counts for the mean of those just before it, with which a sample is compared. Further back, the machine may have
had another speed."""
_JUMP = 0.7
"""Largest difference that counts, as a logarithm: so much comes from a pause, or from a machine that has another speed now."""
_PRIOR_NOISE, _PRIOR_SAMPLES = 0.1, 10.0
"""Variance of a sample's relative difference before there are samples, and how many samples that counts for."""
_NEAR_ALONE = 8.0
"""The line counts for a request alone while so many sequences are in flight in the mean. Further away it would say what it cannot know: an
instance that is flooded would look slow even alone, and be flooded further."""
_FLOOR_LEVEL = 0.05
_FLOOR_STEP = 0.05
"""Level and relative step of the floor."""
_ALONE_STEPS = 32.0
"""Steps of the engine over which the pace of a request alone is a mean. The least of single samples is mostly chance: tokens that the
gateway reads late, in one lot, look fast. In `lab/benchmarks/guard_study.py --flood --seeds 6` a tenant within its share keeps 95 and 93 %
(weights of 4:1 and 1:1) with single samples, 99 and 96 with 32 steps, and a flood has 2.4 and 1.7 times as many requests in time."""
_ALONE_RISE = 1.0 + 2e-5
"""Factor by which the pace of a request alone is forgotten with each sample: at ten samples a second it doubles in an hour."""
_PREFILL_DECAY = 0.98
_PREFILL_KNOWN = 16.0
_PREFILL_MOST = 4.0
"""Once `_PREFILL_KNOWN` prompts are known, one counts at most this many times what it usually takes. A single first token that an engine
holds up for half a minute would otherwise make the instance look many times slower for a hundred prompts, and routers would send it none
that could show otherwise. An engine that has become slower is followed all the same, by a few per cent with each prompt."""
_LEAST_MS = 0.01


class _Line:
    """Time per token over the number of sequences: through the mean of recent samples, with a rise that is learned apart.

    A line through samples of some time would mistake the machine's speed for the batch's doing: while other processes slow an engine down,
    its answers take longer, and so it has more of them in flight. So each sample is compared with those just before it, relative to them:
    a ridge regression with a prior (`_RISE`). Only samples count in which no prompt was read: prompts come with the sequences that they
    begin.

    Attributes:
        samples, sequences: The weight of the samples, 0 before the first, and their mean number of sequences.
        rise: Share of the mean time that a sequence more adds to it, 0 or more.
    """

    __slots__ = (
        "_before_ms",
        "_before_sequences",
        "_differences",
        "_ms",
        "_product",
        "_square",
        "_variance",
        "rise",
        "samples",
        "sequences",
    )

    def __init__(self) -> None:
        self.samples = self.sequences = self._ms = 0.0
        self.rise = _RISE
        self._before_ms = self._before_sequences = 0.0
        self._differences = self._square = self._product = self._variance = 0.0

    def add(self, sequences: float, ms: float) -> None:
        """Adds a sample."""
        self.samples = _LINE_DECAY * self.samples + 1.0
        share = 1.0 / self.samples
        self.sequences += share * (sequences - self.sequences)
        self._ms += share * (ms - self._ms)

    def compare(self, sequences: float, ms: float) -> None:
        """Learns the rise from a sample without prompts."""
        if self._before_ms <= 0.0 or ms <= 0.0:
            self._before_ms, self._before_sequences = ms, sequences
            return
        more, slower = sequences - self._before_sequences, log(ms / self._before_ms)
        self._before_sequences += _NEAR * more
        self._before_ms += _NEAR * (ms - self._before_ms)
        if abs(slower) > _JUMP:
            return
        self._differences = _RISE_DECAY * self._differences + 1.0
        self._square = _RISE_DECAY * self._square + more * more
        self._product = _RISE_DECAY * self._product + more * slower
        self._variance = _RISE_DECAY * self._variance + slower * slower
        noise = (self._variance + _PRIOR_SAMPLES * _PRIOR_NOISE) / (self._differences + _PRIOR_SAMPLES)
        prior = noise / (_RISE_DEVIATION * _RISE_DEVIATION)
        self.rise = max(0.0, (self._product + prior * _RISE) / (self._square + prior))

    def at(self, sequences: float) -> float:
        """The line's time in milliseconds."""
        return self._ms * (1.0 + self.rise * (sequences - self.sequences))


class _PromptTime:
    """Time per prompt token, with exponential forgetting.

    It uses the ratio of the sums, not the mean of the ratios, so that long prompts, which delay the most, count the most.
    """

    __slots__ = ("_ms", "_prompts", "_tokens")

    def __init__(self) -> None:
        self._ms = self._prompts = self._tokens = 0.0

    def add(self, ms: float, tokens: int) -> None:
        """Adds a prompt."""
        if self._prompts >= _PREFILL_KNOWN:
            # A short prompt takes a step's time, which is more than that of its tokens.
            ms = min(ms, _PREFILL_MOST * max(_LEAST_MS, self._ms / self._prompts, tokens * self._ms / self._tokens))
        self._ms = _PREFILL_DECAY * self._ms + ms
        self._tokens = _PREFILL_DECAY * self._tokens + max(1, tokens)
        self._prompts = _PREFILL_DECAY * self._prompts + 1.0

    def of(self, tokens: int) -> float | None:
        """The time that so many tokens take, None before the first prompt."""
        return tokens * self._ms / self._tokens if self._tokens > 0.0 else None


class InstanceSpeed:
    """Speed of one instance under its current load.

    The pace is a line over the sequences in flight, learned from recent samples, plus what the last samples have beyond it.

    Attributes:
        floor_ms: About the 5 % quantile of the samples without any prefill: the instance's pace under little load. None before the first
            such sample.
        alone_ms: The least mean over some steps, forgotten within hours: about the pace of a request alone. The floor rises within minutes
            of a lasting load, and what follows from it would then allow the load to grow further. None before the first sample.
    """

    __slots__ = (
        "_beyond_ms",
        "_computed",
        "_least_ms",
        "_line",
        "_mean_ms",
        "_mean_steps",
        "_prefill",
        "alone_ms",
        "floor_ms",
    )

    def __init__(self) -> None:
        self._line = _Line()
        self._beyond_ms = 0.0
        self.floor_ms: float | None = None
        self.alone_ms: float | None = None
        self._least_ms = inf
        self._mean_ms = self._mean_steps = 0.0
        self._prefill = _PromptTime()
        self._computed = _PromptTime()

    def token_ms(self, sequences: float) -> float | None:
        """Time per output token with so many sequences in flight, None before the first sample."""
        return max(_LEAST_MS, self._line.at(sequences) + self._beyond_ms) if self._line.samples else None

    def best_ms(self) -> float | None:
        """The best pace that waiting can bring: the floor, or what a request alone has now if that is more; None before a floor.

        The floor is what the quickest samples show. Where the machine has other work, a few are quick at any load, and a request that
        waits for such a pace waits for chance.
        """
        alone_ms = self.token_ms(1.0)
        if self.floor_ms is None or alone_ms is None or self._line.sequences > _NEAR_ALONE:
            return self.floor_ms
        return max(self.floor_ms, alone_ms)

    def decoded(self, ms_per_token: float, sequences: float = 1.0, steps: float = _ALONE_STEPS, *, quiet: bool = True) -> None:
        """Records the mean time per token of the decoding requests since the last sample.

        Args:
            ms_per_token: The time.
            sequences: How many were in the batch, in the mean.
            steps: How many tokens each of those that decoded got.
            quiet: Whether no prompt was prefilled meanwhile. An instance that always has prompts to prefill does not show its best pace.
        """
        if self._line.samples:
            share = 1.0 - 0.5 ** (min(steps, _LEFT_STEPS) / _LEFT_STEPS)
            self._beyond_ms += share * (ms_per_token - self._line.at(sequences) - self._beyond_ms)
        self._line.add(sequences, ms_per_token)
        if quiet:
            self._line.compare(sequences, ms_per_token)
        self._learn_alone(ms_per_token, steps)
        # A value below the known floor is a better pace even if prompts were prefilled.
        if not quiet and (self.floor_ms is None or ms_per_token >= self.floor_ms):
            return
        if self.floor_ms is None:
            self.floor_ms = ms_per_token
            return
        below = 1.0 if ms_per_token <= self.floor_ms else 0.0
        self.floor_ms = tracked(self.floor_ms, _FLOOR_LEVEL, _FLOOR_STEP * self.floor_ms, below)

    def _learn_alone(self, ms_per_token: float, steps: float) -> None:
        self._mean_steps += steps
        self._mean_ms += steps / self._mean_steps * (ms_per_token - self._mean_ms)
        self._least_ms *= _ALONE_RISE
        self.alone_ms = self._mean_ms if self._least_ms == inf else self._least_ms
        if self._mean_steps >= _ALONE_STEPS:
            self.alone_ms = self._least_ms = min(self._mean_ms, self._least_ms)
            self._mean_ms = self._mean_steps = 0.0

    def prefilled(self, ttft_ms: float, prompt_tokens: int, cached_tokens: int | None = None) -> None:
        """Records the time to first token of a request that had the prefill to itself.

        Args:
            ttft_ms: The time.
            prompt_tokens: Its prompt.
            cached_tokens: How many of them were expected to be cached, None if nothing was known about it.
        """
        self._prefill.add(ttft_ms, prompt_tokens)
        # A prompt of which little is computed shows the time of a step rather than that of its tokens.
        if cached_tokens is not None and 2 * cached_tokens <= prompt_tokens:
            self._computed.add(ttft_ms, prompt_tokens - cached_tokens)

    def prefill_ms(self, prompt_tokens: int, predicted_ms: float) -> float:
        """How long a prompt's prefill delays the decoding requests; the prediction if nothing has been learned yet."""
        learned_ms = self._prefill.of(prompt_tokens)
        return predicted_ms if learned_ms is None else learned_ms

    def computed_ms(self, prompt_tokens: int, cached_tokens: int, predicted_ms: float) -> float:
        """How long the prefill of a prompt takes of which so many tokens are cached, as `prefill_ms`, which has the usual share cached."""
        computed = max(1, prompt_tokens - cached_tokens)
        learned_ms = self._computed.of(computed)
        return self.prefill_ms(prompt_tokens, predicted_ms) * computed / max(1, prompt_tokens) if learned_ms is None else learned_ms
