"""What the ablation of the agents compares, in numbers, and how its options are read."""

from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from hmas.controller.config.derived import scheduler_settings
from hmas.controller.config.loader import load_config
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.controller.scheduling.settings import SHIPPED, SchedulerSettings
from hmas.planning.case import PRESETS
from hmas_lab.paper.preset import PAPER, agents_of
from hmas_lab.simulated_rows import read_names

Belief = Literal["none", "fixed rules", "rules", "private", "trained", "rules+targets", "rules+lengths", "oracle"]
BELIEFS: tuple[Belief, ...] = get_args(Belief)
ABOUT: dict[Belief, str] = {
    "none": "no agent reads requests: the gateway's own history by tenant and prompt length",
    "fixed rules": "rules that learn nothing: cue words, one length for each task type, the analytic formula for costs",
    "rules": "rules and statistics: cue words, length histories, the analytic formula for costs",
    "private": "trained models that see no prompt (`gateway.share_prompts: false`)",
    "trained": "the shipped models: tagger, length model, CatBoost costs",
    "rules+targets": "rules and statistics, but the true task type and its targets",
    "rules+lengths": "rules and statistics, but the true output lengths",
    "oracle": "true task type, targets and output lengths",
}
"""Who tells the scheduler what a request is, from nobody to one who knows."""
FIXED_RULES: Belief = "fixed rules"
RULES: Belief = "rules"
TRAINED: Belief = "trained"
ORACLE: Belief = "oracle"


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are scheduled.

    Attributes:
        policy: The order; where meta steers, the one it starts from.
        admission: What becomes of late requests, whether the fence stands.
        steered: Whether meta and statera steer; without them policy and window stay as they are.
        parameters: Of the policy.
        agents: Settings of the agents that differ from the shipped ones.
    """

    policy: str
    admission: SchedulerSettings
    steered: bool = False
    parameters: dict[str, float] = {}
    agents: dict[str, Any] = {}


WAYS: dict[str, Way] = {
    "fcfs": Way(policy="fcfs", admission=PRESETS["shed"]),
    "edf": Way(policy="edf", admission=PRESETS["shed"]),
    "sjf": Way(policy="sjf", admission=PRESETS["shed"]),
    "two-lane": Way(policy="two-lane", admission=PRESETS["shed"]),
    "hmas": Way(policy=DEFAULT_POLICY, admission=SHIPPED, steered=True),
}
"""Static policies with the window that suits FCFS best and late requests shed, and H-MAS as it is shipped."""
WAY_NAMES = (*WAYS, PAPER)


def way_of(name: str) -> Way:
    """The way of a name: one of `WAYS`, or the paper's own system (the preset `paper`)."""
    return _paper() if name == PAPER else WAYS[name]


@lru_cache(maxsize=1)
def _paper() -> Way:
    config = load_config(None, {"HMAS_PRESET": PAPER})
    return Way(
        policy=config.scheduler.policy,
        parameters=dict(config.scheduler.parameters),
        admission=scheduler_settings(config),
        steered=True,
        agents=agents_of(config),
    )


class AblationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The ablation in simulation.

    Attributes:
        fleet: As `hmas simulate` takes it: shipped profiles.
        loads: Mean arrival rates over the fleet's capacity for these requests.
        seeds: Workloads per load, seeds 1 and up; capacity and window are found on another one, seed 0.
        duration_s: Length of each. `warmup_s`: what arrives before it is not scored, and is what the agents begin to learn from.
        period_s, high, low: Bursts: half of each period at `high` times the mean rate, half at `low` times (H-MAS Eq. 13).
        answer_s: Time from a request's arrival to the agents' answer: what the agents' processes were measured to take over the bus.
        backlog: Requests on which capacity is measured, per instance.
        caps: Windows that are tried, as far as the fleet's profiles allow them.
        tpot_headroom: Mean TPOT target over the TPOT at the knee of the throughput curve (the table is calibrated, H-MAS E.5).
        net: Folder of a length model in place of the shipped one, which has seen these prompts; empty for that one.
    """

    beliefs: tuple[Belief, ...] = BELIEFS
    ways: tuple[str, ...] = WAY_NAMES
    fleet: str = "1xa100-qwen3-8b"
    loads: tuple[Annotated[float, Meta(gt=0, le=10)], ...] = (0.7, 0.85, 1.0)
    seeds: Annotated[int, Meta(ge=2, le=100)] = 6
    duration_s: Annotated[float, Meta(ge=20, le=86_400)] = 240.0
    period_s: Annotated[float, Meta(gt=0)] = 60.0
    high: Annotated[float, Meta(ge=0)] = 1.8
    low: Annotated[float, Meta(ge=0)] = 0.2
    answer_s: Annotated[float, Meta(ge=0, le=60)] = 0.01
    backlog: Annotated[int, Meta(ge=20)] = 1500
    caps: tuple[int, ...] = (16, 32, 48, 64, 96, 128, 192, 256)
    tpot_headroom: float = 2.0
    net: str = ""

    @property
    def warmup_s(self) -> float:
        """A quarter: with the usual lengths a whole period."""
        return self.duration_s / 4.0


def read_beliefs(text: str) -> tuple[Belief, ...]:
    """Beliefs by names with commas between, in their own order; empty for all.

    Raises:
        ConfigError: A name is not known.
    """
    return read_names("beliefs", text, BELIEFS)


def read_ways(text: str) -> tuple[str, ...]:
    """Ways by names with commas between, in their own order; empty for all.

    Raises:
        ConfigError: A name is not known.
    """
    return read_names("ways", text, WAY_NAMES)
