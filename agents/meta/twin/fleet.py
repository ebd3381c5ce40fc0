"""The twin's model of the instances: their controls by the snapshots, and step times fitted to completions or from a profile. Pure."""

import math
from collections import deque
from collections.abc import Callable

from hmas.agents.meta.twin.plant import CountedSteps
from hmas.agents.meta.twin.replay import ReplayInstance
from hmas.agents.meta.twin.sample import decode_step_s
from hmas.controller.core.messages import OPEN_WINDOW, Completion, InstanceView, SystemSnapshot
from hmas.controller.core.statistics.step_fit import Step
from hmas.controller.core.types import Controls, are_other_models
from hmas.engines.sim.profile import Profile

SAMPLES_MIN = 30
"""An instance without a profile is not simulated before this many completions: its speed would be a guess."""
BLOCK = 16
KV_TOKENS = 1 << 20
"""KV cache of an instance that does not report its size: large enough never to bind."""
CONTEXT = 1 << 20
BUDGET = 2048
"""Tokens per step if the engine does not report them."""
FRESH_S = 15.0
"""Age above which a snapshot does not represent the fleet."""
CONTROLS_KEPT = 1_024
TOLD_MOST = 3
"""Most engines of which a reason tells that their speed is not known."""
LEAD_MS_MOST = 600_000.0
"""Upper bound of a plausible first-token overhead; larger reports are ignored."""
STRETCH_MOST = 2.0
"""Largest factor by which the fleet is taken as slower, or faster, than its fitted steps."""
STRETCH_STEP = 0.2
"""Share of a found disagreement that is corrected at once."""


class Regulated:
    """Windows and guard factors that an instance had. A replay applies them at the same times."""

    def __init__(self) -> None:
        self._given: deque[tuple[float, Controls]] = deque(maxlen=CONTROLS_KEPT)

    def add(self, at_s: float, controls: Controls) -> None:
        """Records the controls from this time on."""
        if not self._given or self._given[-1][1] != controls:
            self._given.append((at_s, controls))

    def since(self, from_s: float) -> tuple[tuple[float, Controls], ...]:
        """Returns the controls since a time, with the start of each; the first entry was active at that time."""
        found: list[tuple[float, Controls]] = []
        for at_s, controls in reversed(self._given):
            found.append((at_s, controls))
            if at_s <= from_s:
                break
        return tuple(reversed(found))


class FleetModel:
    """Follows snapshots and completions.

    Args:
        profile_named: The profile that a configured name stands for, None if it stands for none; it applies until enough completions are
            known.

    Attributes:
        overdue: Requests in the queue at the last snapshot although their first token was due.
        in_flight: Requests that ran then. `still_open`: those that waited or ran.
        weights: The tenants' weights then, of those with another than 1.
        meta_aside: Whether the gateway set meta's windows and its share of the TPOT guard aside then.
        assumed: What the last `plants` had to assume about engines whose speed is not known, in words; empty for nothing.
    """

    def __init__(self, profile_named: Callable[[str], Profile | None] = lambda _name: None) -> None:
        self._profile_named = profile_named
        self._views: list[InstanceView] = []
        self._forced: frozenset[str] = frozenset()
        self.overdue = self.in_flight = self.still_open = 0
        self.weights: dict[str, float] = {}
        self.meta_aside = False
        self.assumed = ""
        self._seen_s = float("-inf")
        self._fits: dict[str, CountedSteps] = {}
        self._models: dict[str, list[str]] = {}
        self._ended_s: dict[str, float] = {}
        self._met_s: dict[str, float] = {}
        self._log_stretch = 0.0
        self._regulated: dict[str, Regulated] = {}

    @property
    def stretch(self) -> float:
        """Factor on all fitted step times, from comparisons of replays with what happened."""
        return math.exp(self._log_stretch)

    @property
    def size(self) -> int:
        """Number of instances."""
        return len(self._views)

    def observe(self, snapshot: SystemSnapshot) -> None:
        """Takes the instances' state from a snapshot."""
        self._views, self._forced = snapshot.instances, frozenset(snapshot.forced)
        self.overdue, self.in_flight = snapshot.overdue, sum(view.in_flight for view in snapshot.instances)
        self.still_open = snapshot.queued + self.in_flight
        self._seen_s, self.weights, self.meta_aside = snapshot.sent_s, snapshot.tenant_weights, snapshot.meta_aside
        names = {view.name for view in snapshot.instances}
        for gone in self._fits.keys() - names:
            del self._fits[gone]
            self._ended_s.pop(gone, None)
            self._met_s.pop(gone, None)
            self._regulated.pop(gone, None)
            self._models.pop(gone, None)
        for view in snapshot.instances:
            before = self._models.get(view.name, [])
            if are_other_models(before, view.models):
                del self._fits[view.name], self._met_s[view.name]
            # An engine that restarts may name no model for a while.
            self._models[view.name] = view.models or before
            fit = self._fits.setdefault(view.name, CountedSteps())
            self._met_s.setdefault(view.name, snapshot.sent_s)
            n_run = snapshot.windows_without_meta.get(view.name, view.n_run)
            # A share of the TPOT guard that was set explicitly has no factor.
            controls = Controls(n_run=max(1, n_run), guard=view.guard or 1.0)
            self._regulated.setdefault(view.name, Regulated()).add(snapshot.sent_s, controls)
            if view.engine is not None and view.engine.kv_usage is not None:
                fit.observe(view.engine.taken_s, view.engine.prompt_tokens_total, view.engine.generation_tokens_total)

    def learn(self, ended: Completion) -> None:
        """Learns an instance's speed from a completion."""
        if ended.instance in self._fits:
            self._fits[ended.instance].learn(ended)
            self._ended_s[ended.instance] = ended.sent_s

    def correct(self, ratio: float) -> None:
        """Takes the factor by which the same requests were slower in reality than in the replay."""
        bound = math.log(STRETCH_MOST)
        self._log_stretch = max(-bound, min(bound, self._log_stretch + STRETCH_STEP * math.log(ratio)))

    def plants(self, now_s: float, window_s: float) -> tuple[list[ReplayInstance], str]:
        """Returns the instances that may receive requests, or none and the reason.

        An engine whose speed is not known is taken as like the known ones that serve its models; without such it is left out.

        Args:
            now_s: End of the window.
            window_s: Its length.
        """
        if now_s - self._seen_s > FRESH_S:
            return [], "no snapshot of the fleet for a while"
        usable = [view for view in self._views if view.usable]
        if not usable:
            return [], "no engine is healthy"
        plants, unknown, assumed = [], "", []
        profiles = {view.name: self._profile(view) for view in usable}
        alike: dict[tuple[str, ...], Profile | None] = {}
        known = [(view, profile) for view in usable if (profile := profiles[view.name]) is not None]
        for view in usable:
            profile = profiles[view.name]
            if profile is None:
                counts = view.engine is None or view.engine.kv_usage is not None
                needs = "not known yet" if counts else "not known: it reports no counters, and so needs `engines[].profile`"
                unknown = f"the speed of {view.name} is {needs}"
                if not view.in_flight and self._ended_s.get(view.name, -math.inf) < now_s - window_s:
                    # It had no part in what is replayed: it has just joined, or stands by.
                    continue
                if not known or (counts and now_s - self._met_s[view.name] < window_s):
                    # One that counts will be known soon.
                    return [], unknown
                served = tuple(view.models)
                if served not in alike:
                    alike[served] = _middle([profile for other, profile in known if not are_other_models(other.models, view.models)])
                profile = alike[served]
                assumed.append(f"{unknown}, so {'it is taken as like the others' if profile else 'its requests are left out'}")
                if profile is None:
                    continue
            plants.append(
                ReplayInstance(
                    name=view.name,
                    profile=profile,
                    regulated=self._regulated[view.name].since(now_s - window_s),
                    ceiling=max(1, min(OPEN_WINDOW, view.capacity_n_run)),
                    token_budget=view.token_budget if 0 < view.token_budget <= CONTEXT else None,
                    first_token_overhead_ms=view.first_token_overhead_ms if 0.0 < view.first_token_overhead_ms < LEAD_MS_MOST else 0.0,
                    models=frozenset(view.models) or None,
                    held=self.meta_aside or not self._forced.isdisjoint(("knobs", f"knobs:{view.name}")),
                )
            )
        self.assumed = "; ".join(assumed[:TOLD_MOST])
        return plants, "" if plants else unknown

    def _profile(self, view: InstanceView) -> Profile | None:
        fit = self._fits.get(view.name)
        if fit is not None and fit.samples >= SAMPLES_MIN and (step := fit.step) is not None:
            return profile_of(step.stretched(self.stretch), view)
        return self._profile_named(view.profile)


def _middle(profiles: list[Profile]) -> Profile | None:
    """Returns the profile of middle speed; None if there are none."""
    return sorted(profiles, key=decode_step_s)[len(profiles) // 2] if profiles else None


def profile_of(step: Step, view: InstanceView) -> Profile:
    """Builds a profile from an instance's fitted step and the sizes that it reports."""
    engine = view.engine
    kv_tokens = max(BLOCK, (engine.kv_capacity_tokens if engine is not None else None) or KV_TOKENS)
    budget = min(CONTEXT, view.token_budget or (engine.max_num_batched_tokens if engine is not None else None) or BUDGET)
    return Profile(
        name=f"{view.name}-fitted",
        gpu="as it serves",
        model="as it serves",
        source=f"fitted to {step.samples} completions",
        step_ms=step.base_ms,
        prefill_ms_per_token=step.prompt_ms,
        prefill_ms_per_ktoken_sq=0.0,
        decode_ms_per_seq=step.seq_ms,
        decode_ms_per_kv_ktoken=0.0,
        block_size=BLOCK,
        kv_blocks=max(1, kv_tokens // BLOCK),
        kv_bytes_per_token=131_072,
        max_num_seqs=max(1, min(OPEN_WINDOW, view.capacity_n_run)),
        max_num_batched_tokens=max(1, budget),
        max_model_len=min(CONTEXT, max(BLOCK, kv_tokens)),
    )
