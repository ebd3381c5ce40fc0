"""Statera's model (H-MAS 3.4.2, E.2, Algorithm 2): short views in, one control action per instance out. Pure and bounded.

(A, B) Bucketed conformal calibration bounds output lengths (`conformal`). (C) The inner loop sets the token budget in proportion to the
band error if an engine has that control; the outer loop sets n_run (`loops`). Once enough requests have been measured, the window with the
highest expected goodput (`target`) leads; it comes from a fitted model of the instance (`tpot_model`), and the outer loop corrects it.
A third loop sets how strict the gateway's TPOT guard is (`guard_factor`).
(D) The band [u_low, u_high] is the configured one, moved up by a bounded factor where that optimum gives up the strictest targets.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from hmas.agents.statera.budgets import BandBudget, BudgetInputs, BudgetLaw
from hmas.agents.statera.conformal import ModelLengths
from hmas.agents.statera.gains import Gains, delay_s
from hmas.agents.statera.guard_factor import ALLOWED, GuardFactorController
from hmas.agents.statera.instance_controller import InstanceController, Reasons
from hmas.agents.statera.loops import Band, Load, WindowLoop
from hmas.agents.statera.recent_misses import ModelMisses
from hmas.agents.statera.restored_actions import RestoredActions
from hmas.agents.statera.target import Target, best_window
from hmas.agents.statera.tuning import EVERY
from hmas.controller.core.messages import Completion, ControlAction, InstanceView, ShortView
from hmas.controller.core.statistics.recent_ids import RecentIds

SEEN_MAX = 20_000
EARLY_MAX = 1_024
"""Completions kept for instances that no view has contained yet."""
KEEP_ALIVE_S = 2.0
"""Statera repeats an unchanged action this often, so that the gateway sees that statera is alive; more often if the gateway's timeout for
stale actions is short."""
SILENT_S = 5.0
"""An instance that is busy this long without a sign of pressure counts as having none."""
MISSED_S = 3.0
"""How long a tenth of the decoding requests must miss its target before that counts: a request's first tokens say little of its TPOT."""
VIOLATION_FREE = 0.1
"""Share of TPOT misses to which the loop does not react."""


class StateraModel:
    """State of statera.

    Args:
        band: [u_low, u_high].
        n_run_min: Smallest window.
        n_run_start: Initial window; 0 to derive it from the ceiling.
        epsilon: Risk of the length bounds.
        period_s: Shortest time between two changes of an instance's controls.
        gains: Tuned gains by instance, `EVERY` for all others; defaults if empty.
        budget_law: Makes the law that sets an instance's token budgets.
        keep_alive_s: Time after which an unchanged action is repeated.

    Attributes:
        instances: The control state of each instance, by name.
    """

    def __init__(
        self,
        *,
        band: Band | None = None,
        n_run_min: int = 1,
        n_run_start: int = 0,
        epsilon: float = 0.1,
        period_s: float = 0.5,
        gains: Mapping[str, Gains] | None = None,
        budget_law: Callable[[], BudgetLaw] = BandBudget,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._keep_alive_s = keep_alive_s
        self._band = band or Band(0.75, 0.92)
        self._n_run_min = n_run_min
        self._n_run_start = n_run_start
        self._period_s = period_s
        self._gains = dict(gains or {})
        self._budget_law = budget_law
        self._lengths = ModelLengths(epsilon)
        self.instances: dict[str, InstanceController] = {}
        self.restored = RestoredActions()
        self._late = ModelMisses()
        self._early: deque[Completion] = deque(maxlen=EARLY_MAX)
        self._seen = RecentIds(SEEN_MAX)

    def learn(self, completion: Completion) -> None:
        """Takes an ended request; a repeated delivery is ignored."""
        if not self._seen.add(completion.request_id):
            return
        self._lengths.learn(completion)
        self._late.learn(completion)
        if completion.instance in self.instances:
            self.instances[completion.instance].learn(completion)
        else:
            self._early.append(completion)

    def observe(self, view: ShortView, now_s: float) -> list[ControlAction]:
        """Takes a short view and returns the actions that are due."""
        self._meet(view, now_s)
        for instance in view.instances:
            station = self.instances[instance.name]
            if station.plant.watch(view.sent_s, instance.occupied, instance.models):
                station.begin_anew(self._start(instance, None))
        for completion in view.recent:
            self.learn(completion)
        actions: list[ControlAction] = []
        for instance in view.instances:
            station = self.instances[instance.name]
            station.tpot_missed = station.misses.share(view, now_s)
            station.ttft_missed = self._late.share(instance, view, now_s)
            heeded = instance.guard_enabled and instance.guard > 0.0
            station.guard_factors.update(now_s, heeded=heeded, ttft_missed=station.ttft_missed)
            if is_held(view, instance, "budget"):
                station.budget.budget = instance.token_budget
            if is_held(view, instance, "knobs"):
                action = self._held(station, instance, view, now_s)
            elif instance.usable:
                action = self._regulate(station, instance, view, now_s)
            else:
                # No request can go there and its figures mean nothing: the window stays until it is back.
                station.loop.pause()
                station.headroom.forget()
                action = self._action(station, instance, view, now_s, ("the instance is down or draining: window kept",) * 3, changes=False)
            if action is not None:
                actions.append(action)
        return actions

    def _meet(self, view: ShortView, now_s: float) -> None:
        """Creates a controller for each new instance and removes those of instances that are gone."""
        self._late.meet(view.instances)
        names = {instance.name for instance in view.instances}
        self.instances = {name: station for name, station in self.instances.items() if name in names}
        for instance in view.instances:
            if instance.name not in self.instances:
                restored = self.restored.take(instance.name, now_s)
                start = self._start(instance, restored)
                tuned = self._gains.get(instance.name) or self._gains.get(EVERY)
                cold_low = min(start / 2, math.sqrt(max(1, instance.capacity_n_run)))
                loop = WindowLoop(self._n_run_min, float(start), cold_low=cold_low, gains=tuned or Gains())
                guard_factors = GuardFactorController() if restored is None else GuardFactorController(restored.guard)
                station = self.instances[instance.name] = InstanceController(
                    loop, budget=self._budget_law(), guard_factors=guard_factors, tuned=tuned is not None
                )
                if restored is not None:
                    station.why = ("start: goes on from the window of before the restart", *station.why[1:])
                for completion in self._early:
                    if completion.instance == instance.name:
                        station.learn(completion)

    def _start(self, instance: InstanceView, restored: ControlAction | None) -> int:
        """Returns the initial window: the last one (`restored`), else the configured one, else the engine's ceiling under the TPOT guard.

        Without the guard the first burst would ruin TPOT for all requests that the ceiling admits. The window then begins at 2
        sqrt(ceiling), which is within a few doublings of any window.
        """
        ceiling = max(1, instance.capacity_n_run)
        cold = ceiling if instance.guard_enabled else round(2.0 * math.sqrt(ceiling))
        wanted = restored.n_run if restored is not None else self._n_run_start or cold
        return max(min(self._n_run_min, ceiling), min(ceiling, wanted))

    def _least(self, instance: InstanceView) -> int:
        """Returns the smallest window: under the TPOT guard at least the square root of the engine's ceiling.

        The guard holds smaller batches by itself, request by request. A smaller window would hold back even what the guard lets go, for a
        target that may be out of reach under any window.
        """
        ceiling = max(1, instance.capacity_n_run)
        return min(ceiling, max(self._n_run_min, math.isqrt(ceiling) if instance.guard_enabled else 1))

    def _regulate(self, station: InstanceController, instance: InstanceView, view: ShortView, now_s: float) -> ControlAction | None:
        ceiling = max(1, instance.capacity_n_run)
        if not station.started:
            station.started = True
            start = station.why[0] or f"start: nothing is measured yet; the engine takes {ceiling} at most"
            return self._action(station, instance, view, now_s, (start, "the engine's own", station.guard_factors.account))
        is_due = now_s - station.updated_s >= self._period_s * 0.95
        station.loop.low = self._least(instance)
        if is_due:
            # Searched below the floor, too: limited to it, `guard_study.py --prompts` has 2 points fewer in time.
            low = min(self._n_run_min, ceiling)
            station.target = best_window(station.plant, now_n=station.loop.n_run(ceiling), low=low, high=ceiling)
        target = station.target
        if not station.tuned:
            station.loop.gains = Gains() if instance.guard_enabled else self._unguarded_gains(station)
        band = self._band if target is None else self._band.raised(target.pressure)
        error = self._log_error(station, instance, view, target, now_s)
        if error is not None:
            station.loop.sample(error)
            self._look_for_room(station, instance, view)
        if not is_due:
            # With a long period, keep-alives are sent in between.
            since_s = now_s - station.sent_s
            return self._action(station, instance, view, now_s, station.why, changes=False) if since_s >= self._keep_alive_s else None
        elapsed_s = now_s - station.updated_s
        station.updated_s = now_s
        elapsed_s = elapsed_s if math.isfinite(elapsed_s) else self._period_s
        load = Load(
            in_flight=instance.occupied,
            step=-(-instance.occupied // max(1, instance.in_flight)),
            waits=instance.queued_for > 0,
            ceiling=ceiling,
            safe=station.headroom.n_run,
            room=self._band.room(max(view.utilization.get(instance.name, 0.0), instance.tpot_pressure)),
            spare=_spare(station),
            guard_enabled=instance.guard_enabled,
            missed=self._misses(station, instance, now_s),
        )
        station.loop.update(load, target, elapsed_s)
        pressure = max(0.0, instance.tpot_pressure)
        if instance.max_token_budget > 0:
            station.budget.update(_seen(instance, band.error(pressure), station.loop.n_run(ceiling)))
        window = _window_reason(station, target, band, ceiling, kept=not load.missed)
        reasons = (window, _budget_reason(station, instance, band, pressure), station.guard_factors.account)
        return self._action(station, instance, view, now_s, reasons)

    def _misses(self, station: InstanceController, instance: InstanceView, now_s: float) -> bool:
        """Whether targets are measurably missed at the present window; only then may the window shrink.

        That is so if more than the allowed share of its ended requests missed TPOT; or if a tenth of the decoding requests has been too
        slow for `MISSED_S`, before any of them ended; or if the engine's cache is full.
        """
        if instance.tpot_pressure <= 1.0:
            station.missed_s = math.inf
        elif station.missed_s == math.inf:
            station.missed_s = now_s
        share = station.guard_factors.missed_share
        ended = share is not None and share > ALLOWED
        full = instance.engine is not None and (instance.engine.kv_usage or 0.0) > self._band.high
        return ended or station.tpot_missed > VIOLATION_FREE or full or now_s - station.missed_s >= MISSED_S

    def _unguarded_gains(self, station: InstanceController) -> Gains:
        """Returns the gains without a TPOT guard: TPOT then depends on the window alone, so long answers limit the gains by their delay."""
        return Gains().held_to(delay_s(station.plant.service_s, period_s=self._period_s))

    def _log_error(
        self, station: InstanceController, instance: InstanceView, view: ShortView, target: Target | None, now_s: float
    ) -> float | None:
        """Returns this cycle's error: TPOT pressure against the shifted band, KV use against the configured one; None if unknown."""
        u, pressure = view.utilization.get(instance.name, 0.0), max(0.0, instance.tpot_pressure)
        if instance.occupied == 0 or u > 0:
            station.pressed_s = now_s
        if instance.occupied == 0 or (u <= 0 and now_s - station.pressed_s < SILENT_S):
            return None
        band = self._band if target is None else self._band.raised(target.pressure)
        error = band.log_error(pressure)
        if u > pressure:
            error = max(error, self._band.log_error(u))
        allowed = VIOLATION_FREE + (1.0 - target.share if target is not None else 0.0)
        if station.tpot_missed > allowed:
            error = max(error, min(1.0, station.tpot_missed - allowed))
        return error

    def _look_for_room(self, station: InstanceController, instance: InstanceView, view: ShortView) -> None:
        """Adds the view to the headroom, unless targets are being missed whatever the utilization shows."""
        if station.tpot_missed > VIOLATION_FREE:
            station.headroom.forget()
        else:
            u = max(view.utilization.get(instance.name, 0.0), instance.tpot_pressure)
            station.headroom.sample(instance.occupied, u, self._band.low)

    def _held(self, station: InstanceController, instance: InstanceView, view: ShortView, now_s: float) -> ControlAction | None:
        """Follows the window while an operator holds it, so that releasing it changes nothing at once. The token budget keeps its law."""
        station.loop.track(instance.n_run)
        station.started = True
        station.why = ("goes on from the window that an operator held", *station.why[1:])
        followed = "an operator holds the window: followed"
        free = instance.max_token_budget > 0 and instance.usable and not is_held(view, instance, "budget")
        if not free or now_s - station.updated_s < self._period_s * 0.95:
            station.updated_s = station.updated_s if free else now_s
            return self._action(station, instance, view, now_s, (followed, *station.why[1:]), changes=False)
        station.updated_s = now_s
        band = self._band if station.target is None else self._band.raised(station.target.pressure)
        pressure = max(0.0, instance.tpot_pressure)
        station.budget.update(_seen(instance, band.error(pressure), instance.n_run))
        reasons = (followed, _budget_reason(station, instance, band, pressure), station.guard_factors.account)
        action = self._action(station, instance, view, now_s, reasons)
        return None if action is None else replace(action, reason=followed)

    def _action(
        self, station: InstanceController, instance: InstanceView, view: ShortView, now_s: float, reasons: Reasons, *, changes: bool = True
    ) -> ControlAction | None:
        """Returns the action if it is new, was not applied by the gateway, or is due as a keep-alive.

        A value that stays keeps the reason of its last change.
        """
        n_run = station.loop.n_run(max(1, instance.capacity_n_run))
        controls = (n_run, station.budget.budget if instance.max_token_budget > 0 else 0, station.guard_factors.factor)
        since_s = now_s - station.sent_s
        is_new = changes and controls != station.sent
        is_lost = changes and instance.n_run != n_run and since_s >= 2 * self._period_s
        if not (is_new or is_lost or since_s >= self._keep_alive_s or since_s < 0):
            return None
        if changes:
            values = zip(reasons, station.why, controls, station.sent, strict=True)
            window, budget, guard = (then if then and value == was else now for now, then, value, was in values)
            reasons = station.why = (window, budget, guard)
        station.sent, station.sent_s = controls, now_s
        u = view.utilization.get(instance.name, 0.0)
        return ControlAction(
            sent_s=now_s,
            instance=instance.name,
            n_run=controls[0],
            token_budget=controls[1],
            guard=controls[2],
            length_bounds=self._lengths.bounds(),
            utilization=u,
            error=self._band.error(u),
            reason=reasons[0],
            budget_reason=reasons[1],
            guard_reason=reasons[2],
        )


def is_held(view: ShortView, instance: InstanceView, what: str) -> bool:
    """Whether an operator holds an instance's `knobs` or `budget`."""
    return what in view.forced or f"{what}:{instance.name}" in view.forced


def _spare(station: InstanceController) -> float:
    """Unused part of the allowed TPOT misses, as a share, while TTFT is being missed; else 0."""
    missed = station.guard_factors.missed_share
    return max(0.0, 1.0 - missed / ALLOWED) if missed is not None and station.ttft_missed > ALLOWED else 0.0


def _seen(instance: InstanceView, error: float, n_run: int) -> BudgetInputs:
    engine = instance.engine
    capacity = None if engine is None else engine.kv_capacity_tokens
    usage = None if engine is None else engine.kv_usage
    return BudgetInputs(
        error=error,
        n_run=n_run,
        ceiling=instance.max_token_budget,
        active_tokens=instance.in_flight_tokens,
        held_tokens=None if capacity is None or usage is None else round(usage * capacity),
        capacity_tokens=capacity,
    )


def _window_reason(station: InstanceController, target: Target | None, band: Band, ceiling: int, *, kept: bool) -> str:
    """Describes what the window follows, and why it is not there. `kept`: whether it may not shrink because targets are met."""
    loop, error = station.loop, station.loop.mean_error
    side = "below" if error < 0 else "above" if error > 0 else "within"
    average = f"TPOT and KV use are {side} the wanted {band.low:.2f} to {band.high:.2f} of their limits"
    if target is None:
        return f"too few requests ended for a model; {average}"
    aim = max(1, min(ceiling, round(target.n_run * math.exp(loop.trim))))
    best = f"at {target.n_run} the model expects the most good requests: {target.rps:.1f}/s when full, {target.share:.0%} within TPOT"
    corrected = f"; corrected to {aim} by the TPOT that was measured since, which is now {side} its band" if aim != target.n_run else ""
    now = loop.n_run(ceiling)
    if aim < loop.low:
        return f"{best}; under the TPOT guard the window does not fall below {loop.low}"
    held = "; the window stays wider while targets are met" if kept and now > aim else "; the window is on its way" if now != aim else ""
    return f"{best}{corrected}{held}"


def _budget_reason(station: InstanceController, instance: InstanceView, band: Band, pressure: float) -> str:
    if station.budget.budget >= instance.max_token_budget:
        return "the engine's own"
    if not isinstance(station.budget, BandBudget):
        return "by agents.statera_budget_law"
    if pressure > band.high:
        return f"TPOT is at {pressure:.2f} of its target, above the band's {band.high:.2f}: fewer prompt tokens a step"
    return "on its way back to the engine's own"
