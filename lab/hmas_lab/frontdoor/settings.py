"""What the front door is measured with, in numbers."""

from typing import Literal

import msgspec

from hmas.controller.core.types import Slo
from hmas.loadgen.client_load import Past

Engine = Literal["sim", "vllm"]

PASS, PLAIN, PRODUCT = "pass-through", "no-agents", "as-it-comes"
ARMS = (PASS, PLAIN, PRODUCT)
STRONG, PAPER = "fcfs-cap-shed", "paper"
"""Further arms: first come first served with the best fixed window and deadline shedding, and the product under the preset `paper`."""

TARGETS = Slo(ttft_ms=2000.0, tpot_ms=60.0)
"""By which a request is judged that declares none."""
TIGHTER = Slo(ttft_ms=1000.0, tpot_ms=50.0)
"""What half of the clients that declare targets declare; the other half declares `TARGETS`."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of the product at a load.

    Attributes:
        least: Goodput over pass-through's, at least. `cells`: whether in every cell; else of all requests together.
        ttft_ms: How much later than in pass-through first tokens come, at most, in the median over requests; None asks nothing.
    """

    least: float
    cells: bool = False
    ttft_ms: float | None = None


_BELOW = Goal(least=0.99, cells=True, ttft_ms=5.0)
GOALS = {0.1: _BELOW, 0.5: _BELOW, 0.9: Goal(least=1.0), 1.3: Goal(least=1.35)}
OVER_PLAIN = 0.99
"""Goodput over that of the arm without agents, at least, in every cell of every load."""
KEPT_S = 30.0
"""How long beyond its deadline no request may be kept without an answer."""
MODEL_LEN = 1024
"""Context of the real model, in tokens."""
QUICK_LEAST, QUICK_SPARED = 0.97, 1
"""The short form's bound at loads of at most 0.5, and how many requests of a group may be lost whatever their share: groups are small."""


class DoorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement.

    Attributes:
        engine: What serves: embedded engines, or one real vLLM.
        engines: What `hmas up --engine` is given for the embedded ones.
        forced: Whether the engine gives each answer the length that the data have, a real one by `hmas_lab.forced_length`; else its model
            ends by itself.
        forms: Kinds of requests, of `hmas.loadgen.client_load.FORMS`.
        loads: Mean arrival rates over the measured capacity.
        seconds: Length of the arrivals of a run; half as long again where the load is below a half, because so few arrive. `warmup_s`: what
            arrives before is served but not scored.
        repeats: How often each load is run, on other arrivals each time.
        arms: Configurations that are compared. `caps`: windows of which `STRONG` has the best; each is tried at every load, on requests of
            its own.
        worth_loads: Loads at which each agent is left out in turn.
        cap: `max_tokens` of those that send it.
        max_prompt, max_output: Longer questions, and those with a longer answer, are not asked.
        past: Lengths in histories.
        ramp: Arrival rates, requests/s, from which to which the load rises while capacity is measured; over `stretch`. `ramp_s`: how long
            that takes. `ramps`: how often it is done, on other requests each time.
        capacity_rps: Good requests/s that loads refer to, where an earlier measurement has found them; 0 measures them.
        headroom: Least TPOT target over the TPOT of a request alone; what an engine is too slow for, all targets are stretched to. 0 never.
        drain_s: How long after the last arrival answers are waited for.
        budget_s: After this no run begins that would not fit.
        at_once: How many arms run at the same time. What disturbs the machine then disturbs all of them alike.
    """

    engine: Engine = "sim"
    engines: tuple[str, ...] = ("sim", "sim")
    forced: bool = True
    seed: int = 1
    forms: tuple[str, ...] = ("chat-1", "chat-3", "chat-9", "completion", "tools", "system-2000", "not-streamed", "n-2")
    loads: tuple[float, ...] = (0.1, 0.5, 0.9, 1.3)
    seconds: float = 36.0
    warmup_s: float = 0.0
    repeats: int = 2
    arms: tuple[str, ...] = ARMS
    caps: tuple[int, ...] = (12, 24, 48)
    worth_loads: tuple[float, ...] = (0.9, 1.3)
    cap: int = 512
    max_prompt: int = 1500
    max_output: int = 1000
    past: Past = Past()
    ramp: tuple[float, float] = (2.0, 14.0)
    ramp_s: float = 66.0
    ramps: int = 1
    capacity_rps: float = 0.0
    headroom: float = 0.0
    drain_s: float = 60.0
    at_once: int = 3
    budget_s: float = 1200.0


FULL = DoorSettings()
QUICK = DoorSettings(
    loads=(0.1, 0.5, 1.3),
    seconds=16.0,
    repeats=1,
    arms=(PASS, PRODUCT),
    worth_loads=(),
    max_output=300,
    cap=200,
    ramp=(3.0, 17.0),
    ramp_s=28.0,
    drain_s=40.0,
    at_once=2,
)
"""Three minutes, for every landing."""
VLLM = DoorSettings(
    engine="vllm",
    forced=False,
    forms=("chat-1", "chat-3", "completion", "not-streamed"),
    loads=(0.5, 0.9, 1.3),
    seconds=60.0,
    repeats=1,
    caps=(12, 20, 32),
    worth_loads=(),
    cap=128,
    max_prompt=300,
    past=Past(question_chars=200, answer_tokens=(10, 60)),
    ramp=(0.5, 6.0),
    ramp_s=80.0,
    # Six requests in each stretch of a ramp: by one ramp alone the capacity of an afternoon was 0.4 to 0.9.
    ramps=3,
    headroom=2.5,
    drain_s=110.0,
    at_once=1,
)
"""A third of the cells on a real vLLM: one engine, so one arm at a time."""
GPU = DoorSettings(
    engine="vllm",
    loads=(0.5, 1.2),
    seconds=30.0,
    repeats=1,
    worth_loads=(),
    ramp=(5.0, 30.0),
    ramp_s=30.0,
    drain_s=30.0,
    at_once=1,
)
"""A few minutes on a GPU, which is often lent for no longer: bodies, targets and lengths as on the embedded engines."""
