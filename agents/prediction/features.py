"""What the regressor sees of a request and an instance, and the analytic formula that it corrects. Pure.

The regressor predicts logarithms of actual over analytic, from figures that carry no unit or are told in the instance's own speed: so it
says the same of a fast and of a slow engine.
"""

import math

import msgspec

from agents.prediction.speed import Speed
from controller.core.messages import InstanceView

FEATURES = (
    "log_prompt_tokens",
    "log_output_tokens",
    "in_flight",
    "n_run",
    "occupancy",
    "log_queued_per_instance",
    "expected_in_flight",
    "log_in_flight_tokens",
    "log_tokens_per_sequence",
    "engine_running",
    "engine_waiting",
    "kv_usage",
    "log_token_budget",
    "prompt_over_budget",
    "per_seq_ratio",
    "per_prompt_token_ratio",
    "prefill_load",
    "trend",
    "log_analytic_ttft_steps",
    "log_analytic_tpot_steps",
)
"""Order of the columns; a model trained on other columns is refused."""

DEFAULT_BUDGET = 2048.0
"""Tokens per step assumed where the engine does not say."""
_MISSING = math.nan


class InstanceState(msgspec.Struct, frozen=True):
    """One instance as of the last snapshot.

    Attributes:
        queued: Requests that wait for it: the gateway's queue over the instances it feeds.
        prefill_load: Share of time that the prompts of late would take, computed one after the other; NaN where not known.
        trend: In-flight requests now less those two seconds ago.
    """

    view: InstanceView
    speed: Speed
    queued: float
    prefill_load: float
    trend: float


class Estimate(msgspec.Struct, frozen=True):
    """Milliseconds from dispatch to first token, and per output token."""

    ttft_ms: float
    tpot_ms: float


def expected_in_flight(state: InstanceState) -> float:
    """Requests beside which this one will start: those in flight, and those queued ahead as far as the window lets them in."""
    view = state.view
    return max(0.0, min(view.n_run - 1.0, view.in_flight + state.queued))


def token_budget(state: InstanceState) -> float:
    """Tokens per step in force."""
    engine = state.view.engine
    told = engine.max_num_batched_tokens if engine is not None else None
    return float(state.view.token_budget or told or DEFAULT_BUDGET)


def analytic(state: InstanceState, prompt_tokens: int) -> Estimate:
    """The formula without any learning: the fallback, and what the regressor corrects.

    TTFT: the rest of the running step, then as many steps as the prompt has chunks, then the prompt's own tokens, and what waits in the
    engine before it. TPOT: a step of the batch as it will be.
    """
    speed, beside = state.speed, expected_in_flight(state)
    step_ms = speed.step_ms(beside)
    room = max(64.0, token_budget(state) - beside)
    chunks = max(1.0, math.ceil(prompt_tokens / room))
    waiting = state.view.engine.waiting if state.view.engine is not None else 0
    ttft_ms = (0.5 + chunks) * step_ms + speed.per_prompt_token_ms * prompt_tokens + waiting * step_ms
    return Estimate(ttft_ms, speed.step_ms(beside + 1.0))


def row(state: InstanceState, formula: Estimate, prompt_tokens: int, output_tokens: float) -> list[float]:
    """The columns of `FEATURES`; NaN where a signal is missing."""
    view, speed = state.view, state.speed
    engine = view.engine
    base_ms = speed.base_ms
    return [
        math.log1p(prompt_tokens),
        math.log1p(output_tokens),
        float(view.in_flight),
        float(view.n_run),
        view.in_flight / max(1, view.n_run),
        math.log1p(state.queued),
        expected_in_flight(state),
        math.log1p(view.in_flight_tokens),
        math.log1p(view.in_flight_tokens / max(1, view.in_flight)),
        _MISSING if engine is None else float(engine.running),
        _MISSING if engine is None else float(engine.waiting),
        _MISSING if engine is None or engine.kv_usage is None else engine.kv_usage,
        math.log(token_budget(state)),
        prompt_tokens / token_budget(state),
        speed.per_seq_ms / base_ms,
        speed.per_prompt_token_ms / base_ms,
        state.prefill_load,
        state.trend,
        math.log(formula.ttft_ms / base_ms),
        math.log(formula.tpot_ms / base_ms),
    ]
