"""What both worlds are given: a seeded trace, two unlike engines, and what an operator changes on the way."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from hmas.controller.config.schema import AgentsConfig, Config, EngineConfig, SchedulerConfig
from hmas.controller.config.section import GatewayConfig, TenantConfig
from hmas.controller.core.types import Slo
from hmas.engines.base import SNAPSHOT_EVERY_S
from hmas.engines.sim.profile import Profile

MODEL = "parity"
START_S = 1000.0
"""Virtual time at which the gateway starts."""
CHANGE_EVERY_S = 3.337
"""Between two changes; no multiple of the tick, so that no two things of unlike kind fall on the same moment."""

_FAST = Profile(
    name="parity-fast",
    gpu="none",
    model=MODEL,
    source="made up; small enough that windows, KV fence and preemption all come into play",
    step_ms=6.1,
    prefill_ms_per_token=0.031,
    prefill_ms_per_ktoken_sq=5.0,
    decode_ms_per_seq=0.17,
    decode_ms_per_kv_ktoken=0.11,
    kv_blocks=400,
    kv_bytes_per_token=1024,
    max_num_seqs=12,
    max_num_batched_tokens=512,
    max_model_len=4096,
)
_SLOW = msgspec.structs.replace(
    _FAST,
    name="parity-slow",
    step_ms=17.3,
    prefill_ms_per_token=0.117,
    decode_ms_per_seq=0.41,
    decode_ms_per_kv_ktoken=0.29,
    request_ms=1.3,
    kv_blocks=300,
    max_num_seqs=6,
    max_num_batched_tokens=256,
)
ENGINES: Mapping[str, Profile] = {"fast": _FAST, "slow": _SLOW}
"""Two engines of unlike speed and size."""
TENANTS: Mapping[str, float] = {"acme": 4.0, "beta": 2.0, "zeta": 1.0}
"""Weight by tenant."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator puts in force: a policy (empty: as it is), windows by engine."""

    policy: str = ""
    n_run: Mapping[str, int] = {}


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison.

    Attributes:
        policy: At the start. `then`: the policy it is switched to in the middle, empty for none.
        overdue: As in the scheduler's settings.
        requests: Length of the trace; `seed` makes it.
        rate: Mean arrivals per second outside bursts.
        queue_limit, tpot_guard, late_service_share, late_confidence, routing, binding, idle_relief: As in the configuration.
        timeout_s: Deadline of a request from its arrival, waiting or running.
        whole: Share of the requests that do not stream.
    """

    policy: str = "fcfs"
    then: str = ""
    overdue: Literal["keep", "demote", "shed"] = "demote"
    seed: int = 1
    requests: int = 600
    rate: float = 25.0
    tick_s: float = 0.1
    queue_limit: int = 120
    tpot_guard: float = 0.5
    late_service_share: float = 0.5
    late_confidence: float = 0.5
    timeout_s: float = 4.0
    routing: str = "least-loaded"
    binding: Literal["central", "arrival"] = "central"
    idle_relief: bool = True
    whole: float = 0.0

    @property
    def first_s(self) -> float:
        """Time of the first arrival, where the simulation's ticks begin to count: whole numbers of ticks and of looks at engines after the
        gateway's start.
        """
        return START_S + 2 * SNAPSHOT_EVERY_S

    def changes(self) -> Iterator[tuple[float, Change]]:
        """When an operator changes what, without end: the fast engine's window down, the policy, then both windows to and fro.

        There is one for every beat: in both worlds a beat asks for dispatches.
        """
        yield self.first_s + CHANGE_EVERY_S, Change(n_run={"fast": 5})
        yield self.first_s + 2 * CHANGE_EVERY_S, Change(policy=self.then or self.policy, n_run={"fast": 9})
        for number in itertools.count(3):
            yield self.first_s + number * CHANGE_EVERY_S, Change(n_run={"fast": 11, "slow": 3} if number % 2 else {"fast": 7, "slow": 6})


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the trace; `at_s` is virtual time. `slo` None: it declares none."""

    index: int
    at_s: float
    tenant: str
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None
    slo: Slo | None
    stream: bool = True


def trace(scenario: Scenario) -> list[Call]:
    """The trace: four times the rate for 1.5 s out of every 5 s, log-normal prompts, geometric outputs, three classes of targets."""
    rng = np.random.default_rng(scenario.seed)
    calls: list[Call] = []
    at_s = scenario.first_s
    for index in range(scenario.requests):
        prompt = int(min(1500, max(1, rng.lognormal(4.8, 0.9))))
        output = int(min(300, rng.geometric(1 / 28)))
        capped = rng.random() < 0.3
        slo_class = int(rng.integers(4))
        slo = (None, Slo(ttft_ms=350, tpot_ms=25), Slo(ttft_ms=900, tpot_ms=60), Slo(ttft_ms=2500, tpot_ms=120))[slo_class]
        calls.append(
            Call(
                index=index,
                at_s=at_s,
                tenant=list(TENANTS)[int(rng.choice(3, p=(0.2, 0.3, 0.5)))],
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=int(rng.integers(1, 80)) if capped else None,
                slo=slo,
                stream=index * 0.618034 % 1.0 >= scenario.whole,
            )
        )
        bursting = (at_s - scenario.first_s) % 5.0 < 1.5
        at_s += float(rng.exponential(1.0 / (scenario.rate * (4.0 if bursting else 1.0))))
    return calls


def body_of(call: Call) -> dict[str, Any]:
    """The request's body, without the cap."""
    return {
        "model": MODEL,
        # Token ids are the one prompt whose length gateway and engine agree on without an estimate.
        "prompt": [1] * call.prompt_tokens,
        "stream": call.stream,
        "sim": {"output_tokens": call.output_tokens},
    }


def config_of(scenario: Scenario, urls: Mapping[str, str], folder: str) -> Config:
    """The gateway's configuration: both worlds make their scheduler from it.

    Args:
        scenario: What is compared.
        urls: Address by engine.
        folder: The gateway's state, empty at the start.
    """
    return Config(
        state_dir=folder,
        gateway=GatewayConfig(port=0, admin_port=0, no_auth=True, request_timeout_s=scenario.timeout_s, drain_s=1.0),
        tenants={name: TenantConfig(weight=weight, min_ttft_ms=1.0, min_tpot_ms=1.0) for name, weight in TENANTS.items()},
        engines=[EngineConfig(name=name, url=urls[name], kind="sim", n_run_max=ENGINES[name].max_num_seqs) for name in ENGINES],
        scheduler=msgspec.convert(
            {
                "policy": scenario.policy,
                "overdue": scenario.overdue,
                "queue_limit": scenario.queue_limit,
                "tpot_guard": scenario.tpot_guard,
                "late_service_share": scenario.late_service_share,
                "late_confidence": scenario.late_confidence,
                "routing": scenario.routing,
                "binding": scenario.binding,
                "idle_relief": scenario.idle_relief,
                "tick_s": scenario.tick_s,
            },
            SchedulerConfig,
        ),
        agents=AgentsConfig(enabled=False),
    )


def scenarios(policies: Sequence[str], *, seed: int = 1, requests: int = 600) -> list[Scenario]:
    """Every policy with every treatment of overdue requests; each is switched to the next policy in the middle."""
    return [
        Scenario(policy=policy, then=policies[(index + 1) % len(policies)], overdue=overdue, seed=seed, requests=requests)
        for index, policy in enumerate(policies)
        for overdue in ("demote", "shed", "keep")
    ]
