"""What is compared: every way to admit and order requests, by name. One more is one line here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from hmas.controller.scheduling.policies.registry import BUILT_IN
from hmas.planning.case import AGENTS, Agent, Case, read_admission
from hmas.planning.fleet import Fleet

Gate = Literal["", "conservative", "past-future"]
Role = Literal["baseline", "fixed", "hmas", "ablation"]


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to serve. What it does not say is the product's default.

    Attributes:
        role: What it is compared as.
        words: What it is, for people.
        policy: The order of the queue; the one that meta starts from where meta steers.
        admission: As `read_admission` takes it.
        agents: Who steers.
        meta: Settings of meta that differ from the shipped ones.
        tuned: Whether each instance has the window that this very arm does best with; else the engine's own.
        gate: Another system's admission in the router's place.
    """

    role: Role
    words: str
    policy: str = ""
    admission: str = ""
    agents: tuple[Agent, ...] = ()
    meta: dict[str, Any] = {}
    tuned: bool = False
    gate: Gate = ""

    def case(self, *, workload: str, fleet: Fleet, warmup_s: float, seed: int) -> Case:
        """A case under this arm."""
        said: dict[str, Any] = {"agents": self.agents}
        if self.policy:
            said["policy"] = self.policy
        if self.admission:
            said["admission"] = read_admission(self.admission)
        if self.meta:
            said["meta"] = self.meta
        return Case(workload=workload, fleet=fleet, warmup_s=warmup_s, seed=seed, **said)


DEFAULT, STRONG, PRODUCT = "engine-default", "fcfs-cap-shed", "hmas"
SGLANG, LIGHTLLM = "sglang-like", "lightllm-like"
NO_STATERA, NO_META, BY_RULES, NO_TWO_LANE = "hmas-frozen-statera", "hmas-meta-fcfs", "hmas-meta-rules", "hmas-no-two-lane"
_FIXED = "fixed:"

ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        DEFAULT: Arm(
            role="baseline",
            words="first come first served into the engines, with the engine's own `max_num_seqs`",
            policy="fcfs",
            admission="open",
        ),
        SGLANG: Arm(
            role="baseline",
            words="the same behind an admission by prompt and a decaying share of `max_tokens`, after SGLang's",
            policy="fcfs",
            admission="open",
            gate="conservative",
        ),
        LIGHTLLM: Arm(
            role="baseline",
            words="the same behind an admission by the expected peak of memory, after LightLLM's past-future scheduler",
            policy="fcfs",
            admission="open",
            gate="past-future",
        ),
        "fcfs-cap": Arm(
            role="baseline", words="first come first served under its best window", policy="fcfs", admission="open", tuned=True
        ),
        STRONG: Arm(
            role="baseline", words="the same, what has passed its TTFT target is dropped", policy="fcfs", admission="shed", tuned=True
        ),
        "sjf-cap-shed": Arm(
            role="baseline",
            words="shortest job first under its best window, late requests dropped",
            policy="sjf",
            admission="shed",
            tuned=True,
        ),
        **{
            _FIXED + policy.name: Arm(
                role="fixed", words=f"the gateway's default admission with `{policy.name}` and no agents", policy=policy.name
            )
            for policy in BUILT_IN
        },
        PRODUCT: Arm(role="hmas", words="H-MAS in its default configuration, statera and meta steering", agents=AGENTS),
        NO_STATERA: Arm(
            role="ablation", words="statera frozen: window, token budget and length bounds stay as configured", agents=("meta",)
        ),
        NO_META: Arm(role="ablation", words="meta replaced by FCFS", policy="fcfs", agents=("statera",)),
        NO_TWO_LANE: Arm(
            role="ablation",
            words="H-MAS without two lanes: meta may choose any other policy",
            agents=AGENTS,
            meta={"meta_policies": ",".join(policy.name for policy in BUILT_IN if policy.name != "two-lane")},
        ),
        BY_RULES: Arm(
            role="ablation", words="meta chooses by the rule map alone", agents=AGENTS, meta={"meta_selector": "rules", "meta_judge": False}
        ),
        "hmas-from-fcfs": Arm(role="ablation", words="H-MAS configured with `fcfs`: what meta makes of it", policy="fcfs", agents=AGENTS),
        "hmas-meta-fixed": Arm(role="ablation", words="meta switched off: the configured policy stays", agents=("statera",)),
    }
)
"""Every arm. The fixed policies are those of the pool under the gateway's own admission: the best of them in hindsight is what meta could
have chosen from the beginning."""


def policy_of(arm: str) -> str:
    """The policy of a fixed arm's name."""
    return arm.removeprefix(_FIXED)


FIXED = tuple(name for name, arm in ARMS.items() if arm.role == "fixed")
BASELINES = tuple(name for name, arm in ARMS.items() if arm.role == "baseline")
ABLATIONS = tuple(name for name, arm in ARMS.items() if arm.role == "ablation")
ADAPTIVE = (_FIXED + "robust-edf",)
"""Of these, those that are this project's own and follow the load by themselves: the paper's pool has none of that kind."""
FEW_FIXED = tuple(_FIXED + name for name in ("fcfs", "edf", "robust-edf", "sjf", "slack", "two-lane", "wfq"))
"""The subset of the pool that the paper mainly evaluates (C.2), and its order over the whole answer (Eq. 5), which serves the larger
model's shift best."""
FEW = (DEFAULT, SGLANG, LIGHTLLM, STRONG, *FEW_FIXED, PRODUCT)
"""Arms on the models that are compared more briefly."""
