"""Output length as quantiles, for one request at a time, learnt further from every completion. Pure, bounded, about 50 us a request.

Four parts, from what is known before any traffic to what only traffic shows:

1. What the prompt leads one to expect of an average model: the net's quantiles (`length_net`), their middle moved part of the way to the
   reader's; one of the two alone where there is no other; else the task's historical prior (H-MAS 3.2: what could not be read is not
   specialised on).
2. Effects in log space (`length_effects`): the model's verbosity, the tenant, the task, the prompt's length bucket, the conversation, the
   same prompt or opening seen before; and a linear correction of what prompts lead one to expect, learnt on the net's last hidden layer,
   on how far the reader is from it, so that the better of the two comes to be believed, and on whether the model is a stranger.
   And a slope per model (`length_slopes`): some are terse in everything, some in small talk alone.
3. The spread around that, by how far lengths of the model and the task have scattered (`length_scales`).
4. Calibration of each stated level against what came (`length_calibration`), for prompts that were seen before and for new ones apart. An
   answer to a known prompt also teaches what would have been said had it been new: where prompts repeat, new ones are rare, and those that
   are rare are not like the rest.

The client's cap bounds every quantile. An answer that ran into its cap is known only to be at least that long, and is learnt as such.
"""

import math
from collections.abc import Hashable
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray

from agents.perception.length_calibration import Calibration
from agents.perception.length_demands import demanded_tokens
from agents.perception.length_effects import CLIP, GROUPS, Effects, Level, Membership
from agents.perception.length_names import known_offset, model_key
from agents.perception.length_net import PromptNet
from agents.perception.length_scales import Scales
from agents.perception.length_slopes import Slopes, distance
from agents.perception.length_statistics import PRIOR, bucket
from agents.perception.reading import PromptView, Reading
from controller.core.lengths import LEVELS, MEDIAN, P90
from controller.core.types import TaskType

Floats = NDArray[np.float64]

MAX_LOG = math.log(16_384.0)
"""No forecast exceeds this many tokens: of the answers in training, fewer than one in 200 is longer."""
MODELS = 4096
"""Models' names remembered with what is known of them."""
OPENING_CHARS = 96
"""Characters in which prompts of one template are alike."""

LEVELS_OF_EFFECTS: tuple[Level, ...] = (
    Level("model", 0.40, 0.002),
    Level("everything", 0.10, 0.001),
    Level("task", 0.10, 0.001),
    Level("model and task", 0.08, 0.002),
    Level("tenant", 0.10, 0.002),
    Level("tenant and task", 0.10, 0.002),
    Level("task and prompt bucket", 0.03, 0.001),
    Level("conversation", 0.0, 0.02, of_spread=0.20),
    Level("opening", 0.0, 0.003, of_spread=0.12),
    Level("prompt", 0.0, 0.003, of_spread=0.45),
)
_PROMPTS_OWN = 2
"""Last levels that a prompt shares with prompts like it alone: unknown for a new one."""
_SCALED = (0, 1, 2)
"""Levels by whose groups lengths scatter differently: model, everything, task."""
_OF_SPREAD = tuple(level.of_spread for level in LEVELS_OF_EFFECTS[-3:])
NOISE = 0.4
"""Least share of the reader's squared spread that no memory explains: another answer to the same prompt differs too."""
KNOWN_MODEL_VARIANCE = 0.06
"""Variance of a known model's verbosity around what is known of it."""
REFINEMENT_VARIANCE = 0.20
"""Variance that the linear correction may add to the log length before anything is learnt."""
READER_TRUST = 0.1
READER_VARIANCE = 0.05
"""How far the middle goes from the net's towards the reader's before anything is learnt, and the variance of that share."""
NEWCOMER_VARIANCE = 0.20
"""Variance around what the net was short of, on average, for models that it had never heard of; this and the model's own variance were
chosen by leaving collections out."""
_NEWCOMER, _READER = -2, -1
"""Places of what is not the net's among the inputs of the linear correction."""
DISSENT = 1.5
"""Distance of the two, in logs, beyond which it counts no more."""
REPEATS = 8
"""Answers to one prompt from which the linear correction learns: more say nothing new of prompts."""
HALF_NEW = 32.0
"""Answers to one prompt after which another counts half for the calibration of new prompts. Leaving collections out does not tell 8 from 32
apart; a smaller one learns slowly where few prompts are asked of many models."""
DEMAND_SHARE = 0.5
"""How far a demanded length moves the task's prior: models fall short of long demands and overshoot short ones."""

_NORMAL_P90 = 1.2815515594
_PRIOR_SHAPE = tuple(
    value / _NORMAL_P90 for value in (-1.2815515594, -0.6744897502, 0.0, 0.6744897502, _NORMAL_P90, 1.644853627, 2.326347874)
)
"""Levels of a normal distribution, as multiples of its 90 % quantile."""
_LEAST_SPREAD = 0.15


class Forecast(msgspec.Struct, frozen=True):
    """What is said of one request, kept until its completion is learnt from.

    Attributes:
        log_quantiles: Quantiles of the natural log of the output length in tokens at `controller.core.lengths.LEVELS`; ascending, bounded
            by the cap.
        source: Where the expectation came from: `net and reader`, `net`, `reader` or `prior`.
        raw: The same quantiles before the cap.
        base, shape, inputs, member, calibrated, cap: For `LengthModel.learn`.
    """

    log_quantiles: tuple[float, ...]
    source: str
    base: float
    shape: list[float]
    inputs: Floats | None
    member: Membership
    calibrated: tuple[bool, tuple[bool, Hashable], tuple[bool, Hashable]]
    cap: float
    raw: list[float]

    @property
    def tokens(self) -> tuple[float, ...]:
        """The quantiles in tokens, each at least 1."""
        return tuple(math.exp(value) for value in self.log_quantiles)


class LengthModel:
    """Tells and learns output lengths. Not thread-safe.

    Args:
        net: The shipped net or one that an operator trained; None to do without.
        groups: Groups of effects remembered.
    """

    def __init__(self, net: PromptNet | None = None, *, groups: int = GROUPS) -> None:
        self._net = net
        self._effects = Effects(LEVELS_OF_EFFECTS, groups)
        self._slopes = Slopes()
        self._scales = Scales()
        self._calibration = Calibration()
        self._models: dict[str, tuple[str, tuple[float, float], float]] = {}
        width = net.width + 2 if net is not None else 2
        self._weights: Floats = np.zeros(width)
        self._weights[_READER] = READER_TRUST
        self._weights[_NEWCOMER] = net.newcomers if net is not None else 0.0
        self._covariance: Floats = np.eye(width) * (REFINEMENT_VARIANCE / width)
        self._covariance[_READER, _READER] = READER_VARIANCE
        self._covariance[_NEWCOMER, _NEWCOMER] = NEWCOMER_VARIANCE

    @property
    def groups(self) -> int:
        """Groups of effects that are remembered."""
        return len(self._effects)

    def quantiles(
        self, view: PromptView, reading: Reading, *, task: TaskType, tenant: str, model: str, session: str = ""
    ) -> tuple[float, ...]:
        """Log quantiles at `LEVELS`, for those who will not learn from the completion."""
        return self.forecast(view, reading, task=task, tenant=tenant, model=model, session=session).log_quantiles

    def forecast(self, view: PromptView, reading: Reading, *, task: TaskType, tenant: str, model: str, session: str = "") -> Forecast:
        """What is to be expected of a request.

        Args:
            view: Its prompt; the excerpt may be empty.
            reading: What the reader made of it; an empty one gives the prior of `task`.
            task: Its type as everyone is told it, `unknown` where in doubt.
            tenant: Who asks.
            model: Whom, by the name that clients use.
            session: Conversation, empty where not known.
        """
        base, inputs, source = self._expected(view, reading, task)
        middle = base[MEDIAN]
        spread = max(_LEAST_SPREAD, (base[P90] - base[0]) / (2.0 * _NORMAL_P90))
        key, start, stranger = self._known(model)
        if inputs is not None:
            inputs[_NEWCOMER] = stranger
        groups = _groups(view, task, key, tenant, session)
        variance = spread * spread * self._scales.factor(_scaled(groups))
        member = Membership(groups, variance, _noise(groups) * variance, start)
        fresh = member.groups[-1] is None or self._effects.find(member.groups[-1]) is None
        calibrated = (fresh, (fresh, task), (fresh, key))
        shape = [(value - middle) / spread for value in base]
        raw = self._quantiles(self._centre(middle, inputs, member), shape, calibrated)
        cap = math.log(view.max_output_tokens) if view.max_output_tokens > 0 else math.inf
        highest = min(cap, MAX_LOG)
        stated = tuple([min(highest, max(0.0, value)) for value in raw])
        return Forecast(stated, source, middle, shape, inputs, member, calibrated, cap, raw)

    def learn(self, forecast: Forecast, output_tokens: int) -> None:
        """Learns from how long the answer was; each forecast is to be learnt from once.

        Args:
            forecast: What was said of the request.
            output_tokens: Tokens of its answer, which ended by itself or at the cap; less than 1 teaches nothing.
        """
        if output_tokens < 1:
            return
        length = min(math.log(output_tokens), MAX_LOG)
        now = self._centre(forecast.base, forecast.inputs, forecast.member)
        centre, total, away = now
        censored = length >= forecast.cap - 1e-9
        surprise, informed = length - centre, 1.0
        if censored:
            mean, informed = _beyond(surprise / math.sqrt(total))
            surprise = mean * math.sqrt(total)
        # Levels are held to what would be said now: hundreds that were answered before the first of them completed made one mistake, not
        # hundreds, and the effects have learnt most of it by now.
        stated = self._quantiles(now, forecast.shape, forecast.calibrated)
        self._calibration.learn(forecast.calibrated, _below(stated, length, censored=censored))
        self._learn_as_new(forecast, length, censored=censored)
        self._scales.learn(_scaled(forecast.member.groups), 1.0 + informed * (surprise * surprise / total - 1.0))
        if forecast.inputs is not None:
            self._refine(forecast.inputs, surprise, total, forecast.member.groups[-1])
        bound = CLIP * math.sqrt(total)
        self._slopes.learn(forecast.member.groups[0], away, min(bound, max(-bound, surprise)) / total, total, informed)
        self._effects.learn(forecast.member, surprise, total, informed)

    def _learn_as_new(self, forecast: Forecast, length: float, *, censored: bool) -> None:
        """Calibrates what would have been said of a known prompt had it been new; the less, the more often it was answered."""
        fresh, (_, task), (_, key) = forecast.calibrated
        own = self._effects.find(forecast.member.groups[-1])
        if fresh or own is None:
            return
        groups = (True, (True, task), (True, key))
        stated = self._quantiles(self._centre(forecast.base, forecast.inputs, forecast.member, as_new=True), forecast.shape, groups)
        self._calibration.learn(groups, _below(stated, length, censored=censored), HALF_NEW / (HALF_NEW + own.count))

    def _expected(self, view: PromptView, reading: Reading, task: TaskType) -> tuple[list[float], Floats | None, str]:
        """Quantiles for an average model, inputs of the linear correction, and whose they are."""
        stated = len(reading.log_lengths) == len(LEVELS)
        read = stated or bool(reading.probabilities)
        if self._net is not None and read:
            told = self._net.tell_of(view)
            dissent = reading.log_lengths[MEDIAN] - told.log_lengths[MEDIAN] if stated else 0.0
            inputs: Floats = np.empty(len(told.hidden) + 2)
            inputs[:_NEWCOMER] = told.hidden
            inputs[_READER] = min(DISSENT, max(-DISSENT, dissent))
            return told.log_lengths, inputs, "net and reader" if stated else "net"
        if stated:
            return list(accumulate(reading.log_lengths, max)), None, "reader"
        prior = PRIOR[task]
        middle = math.log(prior.p50)
        demanded = demanded_tokens(view.excerpt) if read else 0.0
        shift = DEMAND_SHARE * (math.log(demanded) - middle) if demanded > 0.0 else 0.0
        return [middle + shift + share * (math.log(prior.p90) - middle) for share in _PRIOR_SHAPE], None, "prior"

    def _known(self, model: str) -> tuple[str, tuple[float, float], float]:
        """A model's key, the prior of its verbosity, and how much of a stranger it is, from 0 to 1."""
        found = self._models.get(model)
        if found is None:
            key = model_key(model)
            mean, certainty = known_offset(key, self._net.offsets) if self._net is not None else (0.0, 0.0)
            unknown = LEVELS_OF_EFFECTS[0].variance
            if len(self._models) >= MODELS:
                self._models.clear()
            found = self._models[model] = key, (mean, unknown + certainty * (KNOWN_MODEL_VARIANCE - unknown)), 1.0 - certainty
        return found

    def _centre(self, base: float, inputs: Floats | None, member: Membership, *, as_new: bool = False) -> tuple[float, float, float]:
        """Expected log length with all that was learnt, the variance around it, and how far from the usual an average model's would be.

        With `as_new` nothing is known of the prompt itself.
        """
        mean, variance = self._effects.sum(member)
        own = None if as_new else self._effects.find(member.groups[-1])
        if as_new:
            more, doubt = self._effects.unseen(member, _PROMPTS_OWN)
            mean, variance = mean - more, variance - doubt
        average = base + own.mean if own is not None else base
        if inputs is not None:
            refinement = float(self._weights @ inputs)
            average += refinement
            mean += refinement
            strange = float(inputs[_NEWCOMER])
            if strange:
                variance += strange * strange * float(self._covariance[_NEWCOMER, _NEWCOMER])
        away = distance(average)
        slope, doubt = self._slopes.of(member.groups[0])
        return base + mean + slope * away, member.noise + variance + doubt * away * away, away

    def _quantiles(self, centre: tuple[float, float, float], shape: list[float], calibrated: tuple[Hashable, ...]) -> list[float]:
        """Quantiles of the log length around a centre with its variance, in the reader's shape, each level corrected; not capped yet."""
        middle, scale = centre[0], math.sqrt(centre[1])
        corrections = self._calibration.correction(calibrated)
        return list(accumulate([middle + (step + move) * scale for step, move in zip(shape, corrections, strict=True)], max))

    def _refine(self, inputs: Floats, surprise: float, total: float, prompt: Hashable) -> None:
        """One step of recursive least squares. Repeats of a prompt count less and less: they show the prompt, not prompts."""
        known = self._effects.find(prompt) if prompt is not None else None
        seen = known.count if known is not None else 0
        if seen >= REPEATS:
            return
        noise = total * (1.0 + seen) * (1.0 + seen)
        carried = self._covariance @ inputs
        gain = carried / (float(inputs @ carried) + noise)
        bound = CLIP * math.sqrt(total)
        self._weights += gain * min(bound, max(-bound, surprise))
        self._covariance -= np.multiply.outer(gain, carried)


def _groups(view: PromptView, task: TaskType, key: str, tenant: str, session: str) -> tuple[Hashable, ...]:
    """Groups of a request, in the order of `LEVELS_OF_EFFECTS`. What is unknown has no group of its own: it follows everything."""
    text = view.excerpt
    typed = None if task is TaskType.UNKNOWN else task
    return (
        ("m", key),
        ("",),
        typed and ("t", typed),
        typed and ("mt", key, typed),
        ("n", tenant),
        typed and ("nt", tenant, typed),
        ("b", task, bucket(view.prompt_tokens)),
        ("s", tenant, session) if session else None,
        ("o", hash(text[:OPENING_CHARS])) if len(text) > OPENING_CHARS else None,
        ("p", hash(text), view.prompt_chars) if text else None,
    )


def _scaled(groups: tuple[Hashable, ...]) -> list[Hashable]:
    """Groups of a request by which lengths scatter differently."""
    return [groups[place] for place in _SCALED]


def _noise(groups: tuple[Hashable, ...]) -> float:
    """Share of the open spread that none of a request's groups holds."""
    left = 1.0
    for share, group in zip(_OF_SPREAD, groups[-len(_OF_SPREAD) :], strict=True):
        if group is not None:
            left -= share
    return max(NOISE, left)


def _below(stated: list[float], length: float, *, censored: bool) -> list[float]:
    """By level, whether the length was at most the stated quantile; behind a cap, how probable that is by what was stated."""
    if not censored:
        return [1.0 if length <= value else 0.0 for value in stated]
    passed = float(np.interp(length, stated, LEVELS, left=0.0))
    return [max(0.0, (level - passed) / (1.0 - passed)) if length <= value else 0.0 for level, value in zip(LEVELS, stated, strict=True)]


def _beyond(standing: float) -> tuple[float, float]:
    """Mean of a standard normal beyond `standing`, and the share of its variance that knowing so takes away (Tobit)."""
    if standing > 6.0:
        return standing, 1.0
    density = math.exp(-0.5 * standing * standing) / math.sqrt(2.0 * math.pi)
    tail = 0.5 * math.erfc(standing / math.sqrt(2.0))
    mean = density / max(tail, 1e-300)
    return mean, min(1.0, max(0.0, mean * (mean - standing)))
