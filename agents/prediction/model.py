"""Predicts a request's cost on each instance: the analytic formula, corrected by a regressor and by live residuals. Pure.

H-MAS 3.2: features to (ttft, tpot), from which T_tot = ttft + tpot * l_pred follows. If the regressor's live error leaves its band, only
the formula with its own residual answers until the error is back in the band.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hmas.agents.prediction.asking import TARGETS, Asked, Numbers, Regressor
from hmas.agents.prediction.calibration import DriftWatch, Path, Residual, Scoreboard
from hmas.agents.prediction.experience import Experience, Labelled
from hmas.agents.prediction.features import CATEGORIES, FEATURES, UNKNOWN, Fleet, InstanceState, categories
from hmas.agents.prediction.speed import SpeedFit
from hmas.controller.core.messages import Completion, InstanceView, RequestCost, RequestFeatures, SystemSnapshot
from hmas.controller.core.statistics.cumulative_trace import CumulativeTrace
from hmas.controller.core.statistics.recent_ids import RecentIds
from hmas.controller.core.statistics.step_fit import LEAST_STEP_MS, Step
from hmas.controller.core.types import OutcomeKind, are_other_models

REMEMBERED = 20_000
"""Most answered requests that await their outcome, and most completion ids kept."""
REMEMBERED_PAIRS = 200_000
"""Most pairs of request and instance that await an outcome: 20 MB."""
INSTANCES = 1_024
"""Most instances tracked; above it the one longest without a snapshot is dropped."""
FORGET_S = 600.0
"""An instance that no snapshot has named for this long is forgotten; one that is back sooner has the speed and the errors that it had,
unless its profile or its models are others by then."""
NAMED = 64
"""Most instances in an answer; of more, those on which the request would end soonest."""
ROWS_AT_ONCE = 16_384
"""Most rows in one call of the regressor: a few MB; more requests take more calls."""
LEAST_MS = 0.1
MOST_MS = 3_600_000.0
STALE_S = 15.0
"""Without a snapshot for this long nothing is predicted, because the gateway's own history is then as good."""
_TREND_S = 2.0
_PREFILL_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Drift:
    """A change of path: the model of an instance and target is no longer used, or is used again."""

    instance: str
    target: str
    path: Path
    error: float
    limit: float


@dataclass(slots=True)
class Track:
    """The live errors of one target on one instance: of the model's and of the formula's predictions."""

    name: str
    watch: DriftWatch
    model: Residual = field(default_factory=Residual)
    formula: Residual = field(default_factory=Residual)

    @property
    def shift(self) -> float:
        """Logarithm of the live correction factor of the active path."""
        return (self.model if self.watch.path == "model" else self.formula).mean

    def learn(self, actual: float, said: "Said", board: Scoreboard) -> tuple[bool, Path | None]:
        """Takes an outcome; returns whether it counted, and the path if it changed."""
        if not (actual > 0 and math.isfinite(actual)):
            return False, None
        errors = math.log(actual / said.model_ms) - self.model.mean, math.log(actual / said.formula_ms) - self.formula.mean
        error = errors[0] if self.watch.path == "model" else errors[1]
        board.add(self.name, abs(math.expm1(-error)))
        self.model.learn(actual, said.model_ms)
        self.formula.learn(actual, said.formula_ms)
        return True, self.watch.learn(*errors)


@dataclass(frozen=True, slots=True)
class Said:
    """A prediction of one target before live corrections, in milliseconds."""

    formula_ms: float
    model_ms: float


@dataclass(frozen=True, slots=True)
class _Answer:
    """One request with its regressor input and results; arrays are by named instance."""

    named: tuple[str, ...]
    rows: NDArray[np.float32]
    names: tuple[tuple[bytes, ...], ...]
    formula: NDArray[np.float32]
    log_ratios: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Corrections:
    """Live corrections of candidates (`of`), shape (instances, targets): see `Track`. They are valid until one of them learns."""

    of: Sequence[str]
    shift: Numbers
    modelled: Numbers


class _Instance:
    """The state of one instance."""

    def __init__(self, profile: str, prior: Step | None, hardware: str, accepted: Mapping[str, float]) -> None:
        self.view: InstanceView | None = None
        self.profile = profile
        self.models: list[str] = []
        self.seen_s = float("-inf")
        self.load = CumulativeTrace()
        self.fit = SpeedFit(prior)
        self.hardware = hardware
        self.tracks = {target: Track(target, DriftWatch(accepted.get(target, 0.0))) for target in TARGETS}
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=512)

    def observe(self, view: InstanceView, at_s: float) -> None:
        self.view, self.seen_s = view, at_s
        # An engine that restarts may name no model for a while; the ones from before are what the next are compared with.
        self.models = view.models or self.models
        self.load.hold(at_s, view.in_flight)
        # The counters of an engine that did not answer are 0. Of what it has counted since it started nothing happened just now.
        prompt_total = view.engine.prompt_tokens_total if view.engine is not None and view.engine.healthy else -1
        self._recent.append((at_s, view.in_flight, prompt_total))
        while self._recent and at_s - self._recent[0][0] > _PREFILL_WINDOW_S:
            self._recent.popleft()

    def is_like(self, view: InstanceView) -> bool:
        """Whether what was learnt holds for the instance of this view: its profile is the same, and so is one of its models at least."""
        return self.profile == view.profile and not are_other_models(self.models, view.models)

    def serves(self, model: str) -> bool:
        """Whether it serves a model, as far as is known."""
        return self.view is None or not self.view.models or model in self.view.models

    def state(self, view: InstanceView) -> InstanceState:
        speed = self.fit.speed
        trend = prefill_load = math.nan
        if len(self._recent) > 1:
            now_s, in_flight, total = self._recent[-1]
            earlier = next((point for point in self._recent if now_s - point[0] <= _TREND_S), self._recent[-1])
            trend = float(in_flight - earlier[1])
            first_s, _, first_total = self._recent[0]
            # A total below the earlier one means that the engine restarted: there is no rate until the window has passed the restart.
            if 0 <= first_total <= total and now_s > first_s:
                prefill_load = (total - first_total) / (now_s - first_s) * speed.prompt_ms / 1000.0
        return InstanceState(view, speed, prefill_load, trend, self.hardware)


class PredictionModel:
    """Follows the instances and predicts costs in batches.

    Args:
        regressor: The learnt correction; None leaves the analytic formula and the residuals.
        prior_named: The initial speed and the GPUs that a configured profile stands for.

    Attributes:
        regressor: The active learnt correction.
        instances: What is known of each instance, by name, the one longest without a snapshot first; at most `INSTANCES`.
        open_answers: Predictions that wait for their completion, by request id; bounded by requests and by pairs.
        open_pairs: Pairs of a request and an instance in `open_answers`.
        learnt: Ids of the completions that it has learnt from.
    """

    def __init__(
        self, regressor: Regressor | None, *, prior_named: Callable[[str], tuple[Step | None, str]] = lambda _profile: (None, UNKNOWN)
    ) -> None:
        self.regressor = regressor
        self._prior_named = prior_named
        self.instances: OrderedDict[str, _Instance] = OrderedDict()
        self._present: list[str] = []
        self._usable: frozenset[str] = frozenset()
        # By model, and by the names of its candidates: models of the same instances share one.
        self._fleets: dict[str, Fleet | None] = {}
        self._fleets_of: dict[tuple[str, ...], Fleet] = {}
        self._alone = False
        self._corrections: _Corrections | None = None
        self._seen_s = float("-inf")
        self.open_answers: OrderedDict[str, _Answer] = OrderedDict()
        self.open_pairs = 0
        self.learnt = RecentIds(REMEMBERED)
        self._drifts: list[Drift] = []
        self.experience = Experience()
        self.unscored: deque[Labelled] = deque(maxlen=512)
        self.board = Scoreboard()
        self.answered = 0
        self.scored = 0

    def adopt(self, regressor: Regressor | None) -> None:
        """Activates another learnt correction; the previous one's live errors do not count against it."""
        self.regressor = regressor
        self.open_answers.clear()
        self.open_pairs = 0
        for instance in self.instances.values():
            for target, track in instance.tracks.items():
                instance.tracks[target] = Track(target, DriftWatch(self._accepted.get(target, 0.0)), formula=track.formula)
        self._corrections = None
        self.board = Scoreboard()
        self.answered = self.scored = 0

    def observe(self, snapshot: SystemSnapshot) -> None:
        """Takes the instances' state. Draining and unhealthy ones are no candidates, unless no others serve the model."""
        self._seen_s = max(self._seen_s, snapshot.sent_s)
        for view in snapshot.instances:
            known = self.instances.get(view.name)
            if known is None or not known.is_like(view):
                self.instances[view.name] = _Instance(view.profile, *self._prior_named(view.profile), self._accepted)
            self.instances.move_to_end(view.name)
            self.instances[view.name].observe(view, snapshot.sent_s)
        while self.instances:
            oldest, instance = next(iter(self.instances.items()))
            # Requests that were asked about before a jump of the clock may still need those of the snapshot before.
            if len(self.instances) <= INSTANCES and (oldest in self._present or snapshot.sent_s - instance.seen_s <= FORGET_S):
                break
            self.instances.popitem(last=False)
        self._present = [view.name for view in snapshot.instances if view.name in self.instances]
        self._usable = frozenset(view.name for view in snapshot.instances if view.usable)
        self._alone = snapshot.wants_times_alone
        self._fleets, self._fleets_of, self._corrections = {}, {}, None

    def learn(self, completion: Completion) -> None:
        """Learns from a completion, once per request: the instance's speed, and the error of the prediction for it."""
        instance = self.instances.get(completion.instance)
        if completion.outcome is not OutcomeKind.COMPLETED or instance is None or not self.learnt.add(completion.request_id):
            return
        first_s = completion.arrival_s + completion.ttft_ms / 1000.0
        end_s = completion.arrival_s + completion.total_ms / 1000.0
        load = instance.load.mean(first_s, end_s)
        instance.fit.learn(completion, max(1.0, load if load is not None else completion.running + 1.0))
        answer = self.open_answers.pop(completion.request_id, None)
        if answer is None:
            return
        self.open_pairs -= len(answer.named)
        if completion.instance in answer.named:
            self._score(completion, instance, answer, answer.named.index(completion.instance))

    def predict(self, batch: Sequence[RequestFeatures], now_s: float) -> list[RequestCost]:
        """Returns costs of each request on each candidate of its model, with as few regressor calls as fit; [] without a fresh snapshot.

        A request that no instance serves has none. Those of one model are in their order.
        """
        return [cost for asked in self.ask(batch, now_s) for cost in self.answer(asked, asked.log_ratios(), now_s)]

    def ask(self, batch: Sequence[RequestFeatures], now_s: float) -> list[Asked]:
        """Runs the first half of `predict`: returns the regressor's input, in as few pieces as fit; [] without a fresh snapshot."""
        if now_s - self._seen_s > STALE_S:
            return []
        parts: dict[Fleet, list[RequestFeatures]] = {}
        for features in batch:
            if (fleet := self.fleet(features.model)) is not None:
                parts.setdefault(fleet, []).append(features)
        asked = []
        for fleet, part in parts.items():
            each = max(1, ROWS_AT_ONCE // len(fleet))
            asked += [self._ask(part[start : start + each], fleet) for start in range(0, len(part), each)]
        return asked

    def fleet(self, model: str) -> Fleet | None:
        """Returns the candidates of a model as columns, as of the last snapshot; None if no instance serves it.

        After them, if a router goes by that, each kind without load.
        """
        if model not in self._fleets:
            serving = [name for name in self._present if self.instances[name].serves(model)]
            named = tuple([name for name in serving if name in self._usable] or serving)
            if named and named not in self._fleets_of:
                found = [self.instances[name] for name in named]
                states = [instance.state(instance.view) for instance in found if instance.view is not None]
                self._fleets_of[named] = Fleet(states, alone=self._alone)
            self._fleets[model] = self._fleets_of.get(named)
        return self._fleets[model]

    def drifted(self) -> list[tuple[str, str]]:
        """Returns the instances of the newest snapshot, and targets, for which the formula replaces the model."""
        return [key for key, track in self.tracks().items() if track.watch.path == "formula"]

    def drifts(self) -> list[Drift]:
        """Returns the changes of path since the last call, in order."""
        found, self._drifts = self._drifts, []
        return found

    def tracks(self) -> dict[tuple[str, str], Track]:
        """Returns the live errors, by instance of the newest snapshot and target."""
        return {(name, target): track for name in self._present for target, track in self.instances[name].tracks.items()}

    @property
    def _accepted(self) -> Mapping[str, float]:
        return self.regressor.accepted if self.regressor is not None else {}

    def _ask(self, batch: Sequence[RequestFeatures], fleet: Fleet) -> Asked:
        prompts = np.array([float(features.prompt_tokens) for features in batch])
        outputs = np.array([features.output_tokens for features in batch])
        formula = np.empty((len(batch), len(fleet), len(TARGETS)))
        formula[..., 0], formula[..., 1] = fleet.analytic(prompts)
        rows = fleet.rows(prompts, outputs, formula[..., 0])
        return Asked(batch, fleet.names, fleet.alone_at, formula, rows, categories(batch, fleet), self.regressor)

    def answer(self, asked: Asked, log_ratios: Numbers, now_s: float) -> list[RequestCost]:
        """Runs the last half of `predict`: costs from the regressor's result and the live errors; they are kept for scoring.

        If another regressor has become active meanwhile, that one is evaluated: the previous one's result must not count against it.
        """
        if asked.regressor is not self.regressor:
            asked = replace(asked, regressor=self.regressor)
            log_ratios = asked.log_ratios()
        batch, candidates = asked.batch, asked.named
        count, each = len(batch), len(candidates)
        formula, alone_at = asked.formula[:, :each], asked.alone_at
        alone = self._live(candidates, asked.formula[:, alone_at], log_ratios[:, alone_at]) if alone_at.size else None
        log_ratios = log_ratios[:, :each]
        rows, names = asked.rows.reshape(count, -1, len(FEATURES))[:, :each], asked.names.reshape(count, -1, len(CATEGORIES))[:, :each]
        # Counted here and not in the regressor, because a refit and the shadow's comparison evaluate already counted requests again.
        if asked.regressor is not None and asked.regressor.ranges is not None:
            asked.regressor.ranges.count(rows)
        middle = self._live(candidates, formula, log_ratios)
        costs = []
        for index, features in enumerate(batch):
            at: slice | NDArray[np.intp] = slice(None)
            named = candidates
            if each > NAMED:
                at = np.argpartition(middle[index, :, 0] + middle[index, :, 1] * features.output_tokens, NAMED)[:NAMED]
                named = [candidates[place] for place in at]
            self._await(
                features.request_id,
                _Answer(
                    tuple(named),
                    rows[index, at].copy(),
                    tuple(map(tuple, names[index, at])),
                    formula[index, at].astype(np.float32),
                    log_ratios[index, at].astype(np.float32),
                ),
            )
            costs.append(_cost(features, now_s, named=named, loaded=middle[index, at], alone=None if alone is None else alone[index, at]))
        self.answered += count
        return costs

    def _live(self, candidates: Sequence[str], formula: Numbers, log_ratios: Numbers) -> Numbers:
        """Returns the regressor's medians in milliseconds, after each instance's live corrections."""
        if self._corrections is None or self._corrections.of is not candidates:
            tracks = [track for name in candidates for track in self.instances[name].tracks.values()]
            told = np.array([(track.shift, track.watch.path == "model") for track in tracks])
            self._corrections = _Corrections(candidates, *np.moveaxis(told.reshape(*formula.shape[1:], 2), -1, 0))
        told_of = self._corrections
        middle: Numbers = np.clip(formula * np.exp(told_of.modelled * log_ratios + told_of.shift), LEAST_MS, MOST_MS)
        return middle

    def _score(self, completion: Completion, instance: _Instance, answer: _Answer, at: int) -> None:
        labels = [math.nan, math.nan]
        self._corrections = None
        # The time per token of several answers is that of their mean length; of one read in one lot it shows nothing.
        tpot_ms = completion.tpot_ms if completion.sequences == 1 and completion.tpot_ms >= LEAST_STEP_MS else 0.0
        for column, (target, actual) in enumerate((("ttft", completion.service_ttft_ms), ("tpot", tpot_ms))):
            formula_ms = float(answer.formula[at, column])
            track = instance.tracks[target]
            said = Said(formula_ms, formula_ms * math.exp(float(answer.log_ratios[at, column])))
            counted, path = track.learn(actual, said, self.board)
            if counted:
                labels[column] = math.log(actual / formula_ms)
            if path is not None:
                self._drifts.append(Drift(completion.instance, target, path, track.watch.model_error, track.watch.limit))
        self.scored += 1
        if not math.isnan(labels[0]):
            labelled = Labelled(answer.rows[at], answer.names[at], (labels[0], labels[1]))
            self.experience.add(labelled)
            self.unscored.append(labelled)

    def _await(self, request_id: str, answer: _Answer) -> None:
        before = self.open_answers.pop(request_id, None)
        self.open_pairs += len(answer.named) - (len(before.named) if before is not None else 0)
        self.open_answers[request_id] = answer
        while self.open_pairs > REMEMBERED_PAIRS or len(self.open_answers) > REMEMBERED:
            _, oldest = self.open_answers.popitem(last=False)
            self.open_pairs -= len(oldest.named)


def _cost(features: RequestFeatures, now_s: float, *, named: Sequence[str], loaded: Numbers, alone: Numbers | None) -> RequestCost:
    ttft_ms, tpot_ms, alone_ttft_ms, alone_tpot_ms = (
        {} if times is None else dict(zip(named, times[:, target].tolist(), strict=True))
        for times in (loaded, alone)
        for target in range(len(TARGETS))
    )
    return RequestCost(
        request_id=features.request_id,
        sent_s=now_s,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        output_tokens=features.output_tokens,
        alone_ttft_ms=alone_ttft_ms,
        alone_tpot_ms=alone_tpot_ms,
    )
