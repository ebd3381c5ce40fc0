"""The paper's statera: short views in, one control action per instance out. Pure and bounded.

Beyond Algorithm 2 it has only what an engine behind HTTP asks for. No such engine reports how busy its GPU is, so u is qos's utilization
(the larger of TPOT pressure and KV use). An engine without a live token budget has no inner loop; the outer loop then acts alone. An
instance that is down or draining keeps its knobs: it looks idle, and its figures mean nothing.
"""

from collections import deque
from dataclasses import dataclass, field

from hmas.agents.statera.conformal import LengthCalibrator
from hmas.agents.statera.gains import VIEWS
from hmas.agents.statera.loops import Band
from hmas.agents.statera.model import KEEP_ALIVE_S, SEEN_MAX, is_held
from hmas.agents.statera.paper.extremum import Best, band_around, sought
from hmas.agents.statera.paper.loops import ETA_BUDGET, ETA_N_RUN, is_saturated, next_budget, next_n_run, smoothed
from hmas.agents.statera.restored_actions import RestoredActions
from hmas.controller.core.messages import Completion, ControlAction, InstanceView, ShortView
from hmas.controller.core.statistics.recent_ids import RecentIds

B_MIN = 0.125
"""B_min as a share of B_max; the gateway lets no agent go below it."""


@dataclass(slots=True)
class Knobs:
    """N_run and B_token of one instance, with the windows of its utilization and its error.

    Attributes:
        budget: 0 for an engine without a live token budget.
        updated_s, sent_s: When the loops last ran, and when an action was last sent.
        sent: The window and budget that were sent.
    """

    n_run: float
    budget: float
    utilizations: deque[float] = field(default_factory=lambda: deque(maxlen=VIEWS))
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=VIEWS))
    updated_s: float = float("-inf")
    sent_s: float = float("-inf")
    sent: tuple[int, int] = (0, 0)


class PaperStatera:
    """State of the paper's statera.

    Args:
        band: The configured [u_low, u_high]: where extremum seeking begins.
        n_run_min: N_min. N_max is an engine's ceiling, B_max its own token budget.
        n_run_start: N_0; 0 for N_max (Algorithm 1, line 1).
        epsilon: Risk of the length bounds.
        period_s: Shortest time between two steps of the loops.
        keep_alive_s: Time after which an unchanged action is repeated.
    """

    def __init__(
        self,
        *,
        band: Band,
        n_run_min: int,
        n_run_start: int = 0,
        epsilon: float = 0.1,
        period_s: float = 0.5,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._start = self.band = band
        self._n_run_min = n_run_min
        self._n_run_start = n_run_start
        self._period_s = period_s
        self._keep_alive_s = keep_alive_s
        self._best = Best()
        self._lengths = LengthCalibrator(epsilon, adaptive=False)
        self._seen = RecentIds(SEEN_MAX)
        self.restored = RestoredActions()
        self.instances: dict[str, Knobs] = {}

    def learn(self, completion: Completion) -> None:
        """Algorithm 2 (A): the length error of an ended request, once."""
        if self._seen.add(completion.request_id):
            self._lengths.learn(completion)

    def observe(self, view: ShortView, now_s: float) -> list[ControlAction]:
        """Takes a short view and returns the actions that are due."""
        for completion in view.recent:
            self.learn(completion)
        utilizations = [view.utilization.get(one.name, 0.0) for one in view.instances if one.usable]
        if view.queued > 0 and utilizations:
            self._best = sought(self._best, view.throughput_tps, smoothed(utilizations), now_s)
        self.band = band_around(self._best, self._start, now_s)
        self.instances = {one.name: self.instances.get(one.name) or self._begun(one, now_s) for one in view.instances}
        actions = [self._action(one, self.instances[one.name], view, now_s) for one in view.instances]
        return [action for action in actions if action is not None]

    def _begun(self, instance: InstanceView, now_s: float) -> Knobs:
        was = self.restored.take(instance.name, now_s)
        if was is not None:
            return Knobs(n_run=float(was.n_run), budget=float(was.token_budget or instance.max_token_budget))
        ceiling = max(1, instance.capacity_n_run)
        return Knobs(n_run=float(min(self._n_run_start or ceiling, ceiling)), budget=float(instance.max_token_budget))

    def _action(self, instance: InstanceView, knobs: Knobs, view: ShortView, now_s: float) -> ControlAction | None:
        if instance.usable:
            knobs.utilizations.append(view.utilization.get(instance.name, 0.0))
        utilization = smoothed(knobs.utilizations)
        error = self.band.error(utilization)
        reason = "an operator holds the knobs: followed"
        if instance.usable:
            knobs.errors.append(error)
            if now_s - knobs.updated_s >= self._period_s * 0.95 or now_s < knobs.updated_s:
                knobs.updated_s = now_s
                self._step(instance, knobs, error)
        if is_held(view, instance, "knobs"):
            knobs.n_run = float(instance.n_run)
        elif not instance.usable:
            reason = "the instance is down or draining: window kept"
        else:
            side = "above" if error > 0 else "below" if error < 0 else "within"
            reason = f"utilization {utilization:.2f} is {side} the band {self.band.low:.2f} to {self.band.high:.2f} (Algorithm 2)"
        if is_held(view, instance, "budget"):
            knobs.budget = float(instance.token_budget)
        said = (round(knobs.n_run), round(knobs.budget))
        if said == knobs.sent and 0.0 <= now_s - knobs.sent_s < self._keep_alive_s:
            return None
        knobs.sent, knobs.sent_s = said, now_s
        return ControlAction(
            sent_s=now_s,
            instance=instance.name,
            n_run=said[0],
            token_budget=said[1],
            length_bounds=self._lengths.bounds(),
            utilization=utilization,
            error=error,
            reason=reason,
        )

    def _step(self, instance: InstanceView, knobs: Knobs, error: float) -> None:
        """One step of both loops. The budget never goes below one token for each request that may run."""
        n_max, b_max, mean_error = max(1, instance.capacity_n_run), float(instance.max_token_budget), smoothed(knobs.errors)
        saturated = True
        if b_max > 0.0:
            low = min(b_max, max(B_MIN * b_max, knobs.n_run + 1.0))
            knobs.budget = next_budget(knobs.budget or b_max, error, eta=ETA_BUDGET * b_max, low=low, high=b_max)
            saturated = is_saturated(knobs.budget, mean_error, low=low, high=b_max)
        knobs.n_run = next_n_run(
            knobs.n_run, mean_error, eta=ETA_N_RUN * n_max, low=min(self._n_run_min, n_max), high=n_max, saturated=saturated
        )
