"""Predicts the output length of one request as quantiles, and learns from every completion. Pure, bounded.

Four parts, from what is known before any traffic to what only traffic shows:

1. The expected answer of an average model: the shipped base's quantiles (`base`), which reads the text itself; without a base, the reader's
   own; else the task's historical prior (H-MAS 3.2: an unreadable prompt gets no specialised prediction).
2. Effects in log space (`effects`): the model's verbosity, the tenant, the task, the application (a system prompt with its tools),
   the conversation, earlier answers to the same question; and a linear correction of the expectation by the question's inputs and by the
   distance of the reader's median from it, so that the better of the two gains weight.
3. Scatter around that, and calibration of each level with the outcomes (`calibration`).
4. Bounds: the client's cap, the room that the engine's context leaves after the prompt, and the longest answers of this model and tenant
   (`bounds`).

An answer that ran into its cap is known only to be at least that long, and is learnt as such.
"""

import math
from collections.abc import Hashable
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.model_store.ranges import RangeCounter
from hmas.agents.perception.lengths.base import INPUTS, LengthBase
from hmas.agents.perception.lengths.bounds import LongestAnswers, cap_of
from hmas.agents.perception.lengths.calibration import Calibration, beyond, share_below
from hmas.agents.perception.lengths.demands import demanded_tokens
from hmas.agents.perception.lengths.effects import CLIP, GROUPS, Effects, Membership
from hmas.agents.perception.lengths.groups import LEVELS_OF_EFFECTS, groups_of, noise_share
from hmas.agents.perception.lengths.names import known_offset, model_key
from hmas.agents.perception.lengths.priors import PRIOR
from hmas.agents.perception.reading import PromptView, Reading
from hmas.controller.core.lengths import LEVELS, MEDIAN, P90
from hmas.controller.core.types import TaskType

Floats = NDArray[np.float64]

LONGEST = 16_384.0
"""Bound of answers in tokens before there are any, if no base has its own."""
MAX_LOG = 16.0
"""Largest log length that counts: nine million tokens."""
MODELS = 4096
"""Most model names whose prior is cached."""

KNOWN_MODEL_VARIANCE = 0.06
"""Variance of a known model's verbosity around its known offset."""
REFINEMENT_VARIANCE = 0.20
"""Variance that the linear correction may add to the log length before anything is learnt."""
READER_TRUST = 0.1
READER_VARIANCE = 0.05
"""How far the median moves from the base's towards the reader's before anything is learnt, and the variance of that share."""
DISSENT = 1.5
"""Largest distance of the two, in logs, that counts."""
USUAL, REACH = 5.3, 2.0
"""Log length around which the correction's slope turns (about 200 tokens), and the largest distance from it that counts."""
REPEATS = 8
"""Answers to one question from which the linear correction learns: further ones say nothing new about questions in general."""
DEMAND_SHARE = 0.5
"""How far a demanded length moves the task's prior: models fall short of long demands and exceed short ones."""

_NORMAL_P90 = 1.2815515594
_PRIOR_SHAPE = tuple(
    value / _NORMAL_P90 for value in (-1.2815515594, -0.6744897502, 0.0, 0.6744897502, _NORMAL_P90, 1.644853627, 2.326347874)
)
"""Levels of a normal distribution, as multiples of its 90 % quantile."""
_LEAST_SPREAD = 0.15


class Forecast(msgspec.Struct, frozen=True):
    """The prediction for one request, kept until its completion is learnt from.

    Attributes:
        log_quantiles: Quantiles of the natural log of the output length in tokens at `hmas.controller.core.lengths.LEVELS`; ascending, 0 or
            more, within every bound.
        raw: The same quantiles before the bounds.
        base, shape, inputs, member, calibrated, bounded, cap: For `LengthModel.learn`.
    """

    log_quantiles: tuple[float, ...]
    base: float
    shape: list[float]
    inputs: Floats | None
    member: Membership
    calibrated: tuple[Hashable, ...]
    bounded: tuple[Hashable, ...]
    cap: float
    raw: list[float]

    @property
    def tokens(self) -> tuple[float, ...]:
        """The quantiles in tokens, each at least 1."""
        return tuple(math.exp(value) for value in self.log_quantiles)


class LengthModel:
    """Forecasts and learns output lengths. Not thread-safe.

    Args:
        base: The shipped base or one that an operator trained; None for none.
        groups: Groups of effects remembered.

    Attributes:
        base: As given.
        calibration: How far earlier forecasts were off, by group; bounded.
        longest: The longest answers, by group; bounded.
        models: The usual length of each model's answers and its uncertainty, by name; at most `MODELS`.
    """

    def __init__(self, base: LengthBase | None = None, *, groups: int = GROUPS) -> None:
        self.base = base
        # Several models may share one base, and each counts its own inputs.
        self._teller = None if base is None else base.apart()
        self._effects = Effects(LEVELS_OF_EFFECTS, groups)
        self.calibration = Calibration()
        self.longest = LongestAnswers(LONGEST if base is None else base.longest)
        self.models: dict[str, tuple[str, tuple[float, float]]] = {}
        # The question's inputs, the distance from the usual length, the reader's distance from the base.
        width = len(INPUTS) + 2
        self._weights: Floats = np.zeros(width)
        self._weights[-1] = READER_TRUST
        self._covariance: Floats = np.eye(width) * (REFINEMENT_VARIANCE / width)
        self._covariance[-1, -1] = READER_VARIANCE

    @property
    def ranges(self) -> RangeCounter | None:
        """Counts of this model's inputs outside the base's training ranges; None without a base."""
        return None if self._teller is None else self._teller.ranges

    @property
    def groups(self) -> int:
        """Number of remembered groups of effects."""
        return len(self._effects)

    def forecast(self, view: PromptView, reading: Reading, *, task: TaskType, tenant: str, model: str, session: str = "") -> Forecast:
        """Predicts the output length of a request.

        Args:
            view: Its prompt; the texts may be empty.
            reading: The reader's result; if it is empty, and there is no base or no text, the prior of `task` counts.
            task: Its published type, `unknown` if in doubt.
            tenant: Tenant of the request.
            model: The model that answers, by the name that clients use.
            session: Conversation; empty if not known.
        """
        base, inputs = self._expected(view, reading, task)
        middle = base[MEDIAN]
        spread = max(_LEAST_SPREAD, (base[P90] - base[0]) / (2.0 * _NORMAL_P90))
        key, start = self._known(model)
        groups = groups_of(view, task, key, tenant, session)
        calibrated = tuple(group for group in groups[:3] if group is not None)
        variance = spread * spread * self.calibration.scatter(calibrated)
        member = Membership(groups, variance, noise_share(groups) * variance, start)
        shape = [(value - middle) / spread for value in base]
        raw = self._quantiles(self._centre(middle, inputs, member), shape, calibrated)
        cap = cap_of(view)
        bounded = (groups[0], groups[4])
        highest = min(cap, self.longest.bound(bounded))
        stated = tuple([min(highest, max(0.0, value)) for value in raw])
        return Forecast(stated, middle, shape, inputs, member, calibrated, bounded, cap, raw)

    def learn(self, forecast: Forecast, output_tokens: int) -> None:
        """Learns from the length of the answer; each forecast must be used once.

        Args:
            forecast: The prediction for the request.
            output_tokens: Tokens of its answer, which ended by itself or at the cap; less than 1 is ignored.
        """
        if output_tokens < 1:
            return
        length = min(math.log(output_tokens), MAX_LOG)
        centre, total = now = self._centre(forecast.base, forecast.inputs, forecast.member)
        censored = length >= forecast.cap - 1e-9
        surprise, informed = length - centre, 1.0
        if censored:
            mean, informed = beyond(surprise / math.sqrt(total))
            surprise = mean * math.sqrt(total)
        # Levels are compared with the forecast as of now: hundreds of forecasts made before the first completion share one mistake, and
        # the effects have corrected most of it by now.
        stated = self._quantiles(now, forecast.shape, forecast.calibrated)
        squared = 1.0 + informed * (surprise * surprise / total - 1.0)
        self.calibration.learn(forecast.calibrated, share_below(stated, length, censored=censored), squared)
        if forecast.inputs is not None:
            self._refine(forecast.inputs, surprise, total, forecast.member.groups[-1])
        self._effects.learn(forecast.member, surprise, total, informed)
        self.longest.learn(forecast.bounded, length, censored=censored)

    def learn_told(self, forecast: Forecast, output_tokens: int) -> None:
        """Learns from an answer whose prompt is not known here; `forecast` was made without it.

        With a base only the bounds learn. The effects are deviations from what the base expects of a question; here only the task's prior
        is known, and the difference of the two would be learnt as an effect of the model, the task and the tenant.
        """
        if self.base is None:
            self.learn(forecast, output_tokens)
        elif output_tokens >= 1:
            length = min(math.log(output_tokens), MAX_LOG)
            self.longest.learn(forecast.bounded, length, censored=length >= forecast.cap - 1e-9)

    def _expected(self, view: PromptView, reading: Reading, task: TaskType) -> tuple[list[float], Floats | None]:
        """Returns the quantiles for an average model, and the inputs of the linear correction."""
        stated = len(reading.log_lengths) == len(LEVELS)
        read = stated or bool(reading.probabilities)
        # Without a reader's word the base reads the text all the same: effects are learnt as deviations from the base, and answers judged
        # beside the prior would be learnt as an effect of the model and of the tenant.
        if self._teller is not None and (read or view.excerpt):
            told = self._teller.tell_of(view)
            middle = told.log_lengths[MEDIAN]
            inputs: Floats = np.empty(len(INPUTS) + 2)
            inputs[:-2] = told.inputs
            inputs[-2] = _within(middle - USUAL, REACH) / REACH
            inputs[-1] = _within(reading.log_lengths[MEDIAN] - middle, DISSENT) if stated else 0.0
            return told.log_lengths, inputs
        if stated:
            return list(accumulate(reading.log_lengths, max)), None
        prior = PRIOR[task]
        middle = math.log(prior.p50)
        demanded = demanded_tokens(view.excerpt.lower()) if read else 0.0
        shift = DEMAND_SHARE * (math.log(demanded) - middle) if demanded > 0.0 else 0.0
        return [middle + shift + share * (math.log(prior.p90) - middle) for share in _PRIOR_SHAPE], None

    def _known(self, model: str) -> tuple[str, tuple[float, float]]:
        """Returns a model's key and the prior of its verbosity: from training if the name is known, else the variance among models."""
        found = self.models.get(model)
        if found is None:
            key = model_key(model)
            mean, certainty = known_offset(key, self.base.offsets) if self.base is not None else (0.0, 0.0)
            unknown = LEVELS_OF_EFFECTS[0].variance
            if len(self.models) >= MODELS:
                self.models.clear()
            found = self.models[model] = key, (mean, unknown + certainty * (KNOWN_MODEL_VARIANCE - unknown))
        return found

    def _centre(self, base: float, inputs: Floats | None, member: Membership) -> tuple[float, float]:
        """Returns the expected log length with all that was learnt, and the variance around it."""
        mean, variance = self._effects.sum(member)
        if inputs is not None:
            mean += float(self._weights @ inputs)
        return base + mean, member.noise + variance

    def _quantiles(self, centre: tuple[float, float], shape: list[float], calibrated: tuple[Hashable, ...]) -> list[float]:
        """Returns the unbounded quantiles of the log length: the base's shape around a centre and its variance, each level corrected."""
        middle, scale = centre[0], math.sqrt(centre[1])
        corrections = self.calibration.correction(calibrated)
        return list(accumulate([middle + (step + move) * scale for step, move in zip(shape, corrections, strict=True)], max))

    def _refine(self, inputs: Floats, surprise: float, total: float, question: Hashable) -> None:
        """Runs one step of recursive least squares. Repeats of a question count less and less: they say little about other questions."""
        seen = self._effects.count(question)
        if seen >= REPEATS:
            return
        noise = total * (1.0 + seen) * (1.0 + seen)
        carried = self._covariance @ inputs
        gain = carried / (float(inputs @ carried) + noise)
        self._weights += gain * _within(surprise, CLIP * math.sqrt(total))
        self._covariance -= np.multiply.outer(gain, carried)


def _within(value: float, bound: float) -> float:
    return min(bound, max(-bound, value))
