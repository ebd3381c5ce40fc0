"""The instances as the twin runs them: controls as of the last snapshot, speed from a profile or from what they have shown. Pure."""

from collections.abc import Mapping

from agents.meta.replay import Plant
from agents.prediction.speed import LoadHistory, Speed, SpeedFit
from controller.core.messages import Completion, InstanceView, SystemSnapshot
from controller.core.types import OutcomeKind
from engines.sim.profile import Profile

SAMPLES_MIN = 30
"""Completions without which an instance of unknown profile is not simulated: its speed would be a guess."""
BLOCK = 16
KV_TOKENS = 1 << 20
"""KV cache of an instance that does not tell its size: so large that it binds nobody."""
CONTEXT = 1 << 20
BUDGET = 2048
"""Tokens a step where the engine does not say."""
FRESH_S = 15.0
"""Age beyond which a snapshot is no picture of the fleet any more."""


class FleetModel:
    """Follows snapshots and completions.

    Args:
        profiles: Profiles by instance, where the configuration knows them; they are taken at their word until completions say more.
    """

    def __init__(self, profiles: Mapping[str, Profile] | None = None) -> None:
        self._profiles = dict(profiles or {})
        self._views: list[InstanceView] = []
        self._seen_s = float("-inf")
        self._loads: dict[str, LoadHistory] = {}
        self._fits: dict[str, SpeedFit] = {}

    def observe(self, snapshot: SystemSnapshot) -> None:
        """How the instances stand."""
        self._views = snapshot.instances
        self._seen_s = snapshot.sent_s
        for view in snapshot.instances:
            self._loads.setdefault(view.name, LoadHistory()).add(snapshot.sent_s, view.in_flight)
        gone = self._loads.keys() - {view.name for view in snapshot.instances}
        for name in gone:
            del self._loads[name]
            self._fits.pop(name, None)

    def learn(self, ended: Completion) -> None:
        """How fast one of them was."""
        load = self._loads.get(ended.instance)
        if load is None or ended.outcome is not OutcomeKind.COMPLETED:
            return
        mean = load.mean(ended.arrival_s + ended.ttft_ms / 1000.0, ended.arrival_s + ended.total_ms / 1000.0)
        self._fits.setdefault(ended.instance, SpeedFit()).learn(ended, max(1.0, ended.running + 1.0 if mean is None else mean))

    def plants(self, now_s: float, models: Mapping[str, frozenset[str]]) -> tuple[list[Plant], str]:
        """Those that requests may be sent to, and why there are none where there are none.

        Args:
            now_s: Against which the last snapshot is old.
            models: Models by instance, of those that do not serve all.
        """
        if now_s - self._seen_s > FRESH_S:
            return [], "no snapshot of the fleet for a while"
        usable = [view for view in self._views if not view.draining and (view.engine is None or view.engine.healthy)]
        if not usable:
            return [], "no engine is healthy"
        plants = []
        for view in usable:
            profile = self._profiles.get(view.name) or self._fitted(view)
            if profile is None:
                return [], f"the speed of {view.name} is not known yet"
            budget = view.token_budget or None
            plants.append(Plant(name=view.name, profile=profile, n_run=view.n_run, token_budget=budget, models=models.get(view.name)))
        return plants, ""

    def _fitted(self, view: InstanceView) -> Profile | None:
        fit = self._fits.get(view.name)
        if fit is None or fit.speed.samples < SAMPLES_MIN:
            return None
        return profile_of(fit.speed, view)


def profile_of(speed: Speed, view: InstanceView) -> Profile:
    """A profile with the figures that an instance has shown, and the sizes that it tells."""
    engine = view.engine
    kv_tokens = (engine.kv_capacity_tokens if engine is not None else None) or KV_TOKENS
    budget = view.token_budget or (engine.max_num_batched_tokens if engine is not None else None) or BUDGET
    return Profile(
        name=f"{view.name}-fitted",
        gpu="as it serves",
        model="as it serves",
        source=f"fitted to {speed.samples} completions",
        step_ms=speed.base_ms,
        prefill_ms_per_token=speed.per_prompt_token_ms,
        prefill_ms_per_ktoken_sq=0.0,
        decode_ms_per_seq=speed.per_seq_ms,
        decode_ms_per_kv_ktoken=0.0,
        block_size=BLOCK,
        kv_blocks=max(1, kv_tokens // BLOCK),
        kv_bytes_per_token=131_072,
        max_num_seqs=max(1, view.capacity_n_run),
        max_num_batched_tokens=max(1, budget),
        max_model_len=min(CONTEXT, max(BLOCK, kv_tokens)),
    )
