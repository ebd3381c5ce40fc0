"""The speed of an instance, learned from the tokens that it produces: it needs no profile and no prediction.

Agents fit how a step grows with the load (`statistics.step_fit`), for loads that have not come yet. The scheduler decides about the next
moment: it needs the pace under the load that there is, within a tick of a change, from tokens and for any engine.
"""

from math import inf

from hmas.controller.core.statistics.quantiles import tracked
from hmas.controller.core.statistics.step_fit import Step
from hmas.controller.scheduling.instances.engine_count import Counted
from hmas.controller.scheduling.instances.foresight import Expectation, Foresight
from hmas.controller.scheduling.instances.pending_prompts import Computed

_LEFT_STEPS = 32.0
"""Steps of the engine in which half of what the line does not explain is replaced, and the most that count of one sample. The line follows
the batch at once, so noise can be smoothed. It has to be by steps: on a slow engine a sample holds one step, and requests that wait ask ten
times a second, so that they would go whenever noise shows a fast pace. In `lab/benchmarks/guard_study.py` a half by sample instead gives 2
points fewer with tight targets, 4 fewer with `--steep`, and 1 more with `--slow`."""
_LINE_DECAY = 0.995
"""What an older sample counts for the line: at ten samples a second it forgets in 20 s."""
_LINE_PRIOR = 1.0
"""Variance of the sequences, in sequences squared, at which the line is half as steep as its samples say: with less, they say little."""
_NEAR_DEVIATIONS, _NEAR_SEQUENCES = 2.0, 1.0
"""The line says what a request alone has while the mean batch is within so many standard deviations and sequences of it. Further away it is
a guess, which `best_ms` believes only where it is better than the floor."""
_NEAR_SAMPLES = 20.0
_STEEPEST = 0.2
"""Largest share of the pace of a request alone that each further sequence is taken to add to it, where that is a guess."""
_RISE_MOST = 0.06
"""Largest share of the pace that a sequence more is taken to add to it. Over 20 s the line takes a machine's slowness for the batch's
doing, since a slow machine has more in flight. Engines that were measured have 0.5 to 10 %."""
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
_UNPREDICTED_MOST = 50
"""Prompts in a row, none with a prediction of what is cached, after which the time of computed tokens alone is forgotten. It is as many as
are remembered by `_PREFILL_DECAY`."""
_STOPS_STEPS, _STOP_SHARE = 128.0, 0.1
"""Steps of the engine in which half of what is known of the share of stops is replaced; and the weight of a new one in their mean."""
_STOPS_MOST_MS = 10_000.0
"""Most of the stops that are remembered until the pace is measured: where it is not, they would grow for ever."""
_COUNTED_STEPS = 200.0
"""Steps in which half of what the counted steps do not explain is replaced: the stops for prompts, which come in lots. With 32, of whole
answers alone 5 points fewer are in time past capacity (`lab/benchmarks/whole_answers.py`)."""
_LEAST_MS = 0.01


class _Line:
    """Time per token over the number of sequences: a least-squares line that does not fall, with exponential forgetting.

    Attributes:
        samples: The weight of the samples, 0 before the first.
    """

    __slots__ = ("_ms", "_product", "_sequences", "_square", "samples")

    def __init__(self) -> None:
        self.samples = self._sequences = self._ms = self._square = self._product = 0.0

    def add(self, sequences: float, ms: float) -> None:
        """Adds a sample."""
        self.samples = _LINE_DECAY * self.samples + 1.0
        # Means and central moments: sums of squares would lose the difference of nearly equal numbers.
        share = 1.0 / self.samples
        off, off_ms = sequences - self._sequences, ms - self._ms
        self._sequences += share * off
        self._ms += share * off_ms
        self._square += share * ((1.0 - share) * off * off - self._square)
        self._product += share * ((1.0 - share) * off * off_ms - self._product)

    def is_near(self, sequences: float) -> bool:
        """Whether recent samples had nearly as few sequences."""
        return self.samples >= _NEAR_SAMPLES and self._sequences - sequences <= _NEAR_DEVIATIONS * self._square**0.5 + _NEAR_SEQUENCES

    def at(self, sequences: float) -> float:
        """The line's time in milliseconds."""
        return self._ms + self.rise_ms * (sequences - self._sequences)

    def alone(self) -> float:
        """The line's time with one sequence, or what the steepest engine would have then if that is more."""
        return max(self.at(1.0), self._ms / (1.0 + _STEEPEST * max(0.0, self._sequences - 1.0)))

    @property
    def rise_ms(self) -> float:
        """What a sequence more adds to it."""
        return max(0.0, self._product / (self._square + _LINE_PRIOR))


class _PromptTime:
    """Time per prompt token, with exponential forgetting.

    It uses the ratio of the sums, not the mean of the ratios, so that long prompts, which delay the most, count the most.
    """

    __slots__ = ("_ms", "_prompts", "_tokens")

    def __init__(self) -> None:
        self._ms = self._prompts = self._tokens = 0.0

    def add(self, ms: float, tokens: int, prompts: int = 1) -> None:
        """Adds a time in which so many tokens were computed, and at most `prompts` prompts."""
        if self._prompts >= _PREFILL_KNOWN:
            # A short prompt takes a step's time, which is more than that of its tokens. Of several in one step the first shows all of it.
            ms = min(ms, prompts * _PREFILL_MOST * max(_LEAST_MS, self._ms / self._prompts, tokens * self._ms / self._tokens))
        self._ms = _PREFILL_DECAY * self._ms + ms
        self._tokens = _PREFILL_DECAY * self._tokens + max(1, tokens)
        self._prompts = _PREFILL_DECAY * self._prompts + 1.0

    def of(self, tokens: int) -> float | None:
        """The time that so many tokens take, None before the first prompt."""
        return tokens * self._ms / self._tokens if self._tokens > 0.0 else None


class Stops:
    """The stops of those that decode while prompts are computed, which the pace holds already: it is a mean over all time.

    Attributes:
        ms: What a stop takes in the mean.
        share: Share of the time that stops take.
    """

    __slots__ = ("_since_ms", "ms", "share")

    def __init__(self) -> None:
        self.ms = self.share = self._since_ms = 0.0

    def stopped(self, ms: float) -> None:
        """Records that a prompt was computed which took so long."""
        self._since_ms = min(self._since_ms + ms, _STOPS_MOST_MS)
        self.ms += _STOP_SHARE * (ms - self.ms)

    def passed(self, ms: float, steps: float) -> None:
        """Records that so much time has passed, with so many decode steps."""
        stopped_ms = min(ms, self._since_ms)
        self._since_ms -= stopped_ms
        self.share += (1.0 - 0.5 ** (steps / _STOPS_STEPS)) * (stopped_ms / max(ms, _LEAST_MS) - self.share)


class InstanceSpeed:
    """Speed of one instance under its current load.

    The pace is a line over the sequences in flight, fitted to recent samples of streams, plus what the last samples have beyond it. While
    no stream shows it, it is a step of the engine, fitted to its counters, plus what the last counts have beyond that.

    Attributes:
        floor_ms: About the 5 % quantile of the samples without any prefill: the instance's pace under little load. None before the first
            such sample.
        alone_ms: The least mean over some steps, forgotten within hours: about the pace of a request alone. The floor rises within minutes
            of a lasting load, and what follows from it would then allow the load to grow further. None before the first sample.
        foresight: How well the pace foretells what a request gets.
        stops: What of the pace is not decoding.
    """

    __slots__ = (
        "_beyond_ms",
        "_computed",
        "_counted_ms",
        "_least_ms",
        "_line",
        "_mean_ms",
        "_mean_steps",
        "_prefill",
        "_step",
        "_unpredicted",
        "alone_ms",
        "floor_ms",
        "foresight",
        "stops",
    )

    def __init__(self) -> None:
        self._line = _Line()
        self._beyond_ms = self._counted_ms = 0.0
        self._step: Step | None = None
        self.floor_ms: float | None = None
        self.alone_ms: float | None = None
        self.foresight = Foresight()
        self.stops = Stops()
        self._least_ms = inf
        self._mean_ms = self._mean_steps = 0.0
        self._prefill = _PromptTime()
        self._computed = _PromptTime()
        self._unpredicted = 0

    def token_ms(self, sequences: float) -> float | None:
        """Time per output token with so many sequences in flight, None before the first sample."""
        if self._step is not None:
            return max(_LEAST_MS, self._step.decode_ms(sequences) + self._counted_ms)
        return max(_LEAST_MS, self._line.at(sequences) + self._beyond_ms) if self._line.samples else None

    def rise_ms(self, token_ms: float) -> float:
        """What a sequence more adds to a pace of `token_ms`, by the line of the pace: `_RISE_MOST` of it at most."""
        return min(self.sequence_ms, _RISE_MOST * token_ms)

    @property
    def sequence_ms(self) -> float:
        """What a sequence more adds to the pace, as measured: also what a machine's own slowness seems to add, where it has many then."""
        return self._line.rise_ms if self._step is None else self._step.seq_ms

    def expectation(self, sequences: float) -> Expectation | None:
        """What is expected of a request that has its first token now; None before the first sample."""
        token_ms = self.token_ms(sequences)
        return None if token_ms is None else self.foresight.expect(token_ms, self.sequence_ms, sequences)

    def best_ms(self) -> float | None:
        """The best pace that waiting can bring: the floor, or what a request alone has now by the line; None before a floor.

        The floor is what the quickest samples show. Where the machine has other work, a few are quick at any load, and a request that
        waits for such a pace waits for chance: the line counts if it is slower. Where no batch was small lately, it counts if it is faster.
        An engine that is flooded at its start has no quick samples, would look too slow for all targets, and be flooded further: 8 instead
        of 22 % of chats are in time at 7/s (`lab/benchmarks/steep_engines.py`).
        """
        if self._step is not None:
            return self._step.decode_ms(1.0)
        if self.floor_ms is None:
            return None
        if self._line.is_near(1.0):
            return max(self.floor_ms, self._line.at(1.0) + self._beyond_ms)
        return min(self.floor_ms, max(_LEAST_MS, self._line.alone() + self._beyond_ms))

    def decoded(self, ms_per_token: float, sequences: float = 1.0, steps: float = _ALONE_STEPS, *, quiet: bool = True) -> None:
        """Records the mean time per token of the decoding requests since the last sample.

        Args:
            ms_per_token: The time.
            sequences: How many were in the batch, in the mean.
            steps: How many tokens each of those that decoded got.
            quiet: Whether no prompt was prefilled meanwhile. An instance that always has prompts to prefill does not show its best pace.
        """
        self._step = None
        self.foresight.stepped(steps, sequences)
        self.stops.passed(ms_per_token * steps, steps)
        if self._line.samples:
            share = 1.0 - 0.5 ** (min(steps, _LEFT_STEPS) / _LEFT_STEPS)
            self._beyond_ms += share * (ms_per_token - self._line.at(sequences) - self._beyond_ms)
        self._line.add(sequences, ms_per_token)
        self._learn_alone(ms_per_token, steps)
        # A value below the known floor is a better pace even if prompts were prefilled.
        if not quiet and (self.floor_ms is None or ms_per_token >= self.floor_ms):
            return
        if self.floor_ms is None:
            self.floor_ms = ms_per_token
            return
        below = 1.0 if ms_per_token <= self.floor_ms else 0.0
        self.floor_ms = tracked(self.floor_ms, _FLOOR_LEVEL, _FLOOR_STEP * self.floor_ms, below)

    def counted(self, counted: Counted) -> None:
        """Records what the engine's own counters say while no stream shows its pace. The next sample of streams takes their place."""
        step, steps = counted.step, counted.steps
        self._step = step
        self.foresight.stepped(steps, counted.sequences)
        self.stops.passed(counted.token_ms * steps, steps)
        share = 1.0 - 0.5 ** (steps / _COUNTED_STEPS)
        self._counted_ms += share * (counted.token_ms - step.decode_ms(counted.sequences) - self._counted_ms)
        if not self._line.samples:
            self.alone_ms = step.decode_ms(1.0)
        if counted.prompt_tokens and step.prompt_ms > 0.0:
            self._prefill.add(step.prompt_ms * counted.prompt_tokens, counted.prompt_tokens)

    def _learn_alone(self, ms_per_token: float, steps: float) -> None:
        self._mean_steps += steps
        self._mean_ms += steps / self._mean_steps * (ms_per_token - self._mean_ms)
        self._least_ms *= _ALONE_RISE
        self.alone_ms = self._mean_ms if self._least_ms == inf else self._least_ms
        if self._mean_steps >= _ALONE_STEPS:
            self.alone_ms = self._least_ms = min(self._mean_ms, self._least_ms)
            self._mean_ms = self._mean_steps = 0.0

    def prefilled(
        self, own_ms: float, prompt_tokens: int, cached_tokens: int | None = None, *, alone: bool = True, shown: Computed | None = None
    ) -> None:
        """Records how long the prompt of a request took.

        Args:
            own_ms: The time until its first token, as in `Computed`.
            prompt_tokens: Its prompt.
            cached_tokens: How many of them were expected to be cached, None if nothing was known about it.
            alone: Whether it had the prefill to itself. If not, only the time of computed tokens is learned: an engine that is flooded from
                the start has none that is alone, or only some that are cached, and would seem to compute any prompt at once.
            shown: What its first token shows of all prompts; None for its own tokens alone.
        """
        if alone:
            self._prefill.add(own_ms, prompt_tokens)
        if cached_tokens is None:
            self._unpredicted += alone
            if self._unpredicted >= _UNPREDICTED_MOST:
                # No router predicts what is cached any more, so nothing would ever correct it.
                self._computed = _PromptTime()
            return
        self._unpredicted = 0
        # As `Running.is_computed`.
        if 2 * cached_tokens <= prompt_tokens:
            shown = shown or Computed(own_ms, prompt_tokens - cached_tokens, 1)
            self._computed.add(shown.ms, shown.tokens, shown.prompts)

    def prefill_ms(self, prompt_tokens: int, predicted_ms: float) -> float:
        """How long a prompt's prefill delays the decoding requests; the prediction if nothing has been learned yet."""
        learned_ms = self._prefill.of(prompt_tokens)
        return predicted_ms if learned_ms is None else learned_ms

    def computed_ms(self, prompt_tokens: int, cached_tokens: int, predicted_ms: float) -> float:
        """How long the prefill of a prompt takes of which so many tokens are cached, as `prefill_ms`, which has the usual share cached."""
        computed = max(1, prompt_tokens - cached_tokens)
        learned_ms = self._computed.of(computed)
        return self.prefill_ms(prompt_tokens, predicted_ms) * computed / max(1, prompt_tokens) if learned_ms is None else learned_ms
