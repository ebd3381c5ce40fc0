"""The regressor's features of requests and instances, and the analytic formula that it corrects. Pure.

The regressor predicts logarithms of actual over analytic, from figures without a unit or relative to the instance's own speed, so its
result is the same for a fast and a slow engine. Everything is computed in columns: one call covers many requests on many instances.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.controller.core.messages import InstanceView, RequestFeatures
from hmas.controller.core.statistics.step_fit import Step

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
"""Order of the numeric columns; a model trained on other columns is refused."""
MOVING = tuple(map(FEATURES.index, ("log_prompt_tokens", "log_output_tokens", "prompt_over_budget", "log_analytic_ttft_steps")))
"""Indices of the columns that differ between requests to one instance; all others stay the same from one snapshot to the next."""
CATEGORIES = ("hardware", "model")
"""Order of the categorical columns: names, `unknown` if the configuration does not contain them."""
UNKNOWN = "unknown"

RISING_TTFT = ("log_prompt_tokens", "engine_waiting", "prompt_over_budget", "log_analytic_ttft_steps")
"""Columns that can only delay the first token, all else equal: a longer prompt, and more requests before it in the engine. The effect of
running requests is left to the formula and the data: a full window at dispatch also shows that prompts have just been computed."""
_EITHER_WAY = {"log_output_tokens", "n_run", "log_token_budget", "per_seq_ratio", "per_prompt_token_ratio", "trend"}
"""Columns that may go with faster decoding too. A new column belongs here unless it can only slow it."""
RISING_TPOT = tuple(name for name in FEATURES if name not in _EITHER_WAY)
"""Columns that can only slow decoding, all else equal: more sequences in the batch, more cached tokens to read, more prompts in between."""

OPEN_ABOVE = ("n_run",)
"""Columns of which higher values than in training are nothing unlike: a window that is never full says what a narrower one says, and
what fills it has columns of its own."""
DEFAULT_BUDGET = 2048.0
"""Tokens per step assumed if the engine does not report them."""

_EDITIONS = ("-instruct", "-chat", "-hf", "-base", "-it")

Rows = NDArray[np.float32]
Column = NDArray[np.float64]


class InstanceState(msgspec.Struct, frozen=True):
    """One instance as of the last snapshot.

    Attributes:
        prefill_load: Share of time that the recent prompts would take, computed one after the other; NaN if not known.
        trend: In-flight requests now minus those two seconds ago.
        hardware: Its GPUs, such as `2xa100_sxm`; `unknown` if the configuration does not contain them.
    """

    view: InstanceView
    speed: Step
    prefill_load: float
    trend: float
    hardware: str = UNKNOWN


class Fleet:
    """Instances as columns, for any number of requests.

    Args:
        states: One per instance; at least one.
        alone: Whether each instance is there a second time as it would be without load.

    Attributes:
        names: Of the instances, in their order.
        alone_at: Place of each instance without load, after all of `states`; instances of equal hardware, speed and budget share one.
    """

    def __init__(self, states: Sequence[InstanceState], *, alone: bool = False) -> None:
        rows = [_columns_of(state) for state in states]
        self.names = [state.view.name for state in states]
        self.hardware = [state.hardware.encode() for state in states]
        kinds: dict[tuple[bytes, tuple[float, ...]], int] = {}
        self.alone_at = np.empty(0, dtype=np.intp)
        if alone:
            without = [(hardware, _without_load(state)) for hardware, state in zip(self.hardware, states, strict=True)]
            self.alone_at = np.array([kinds.setdefault(kind, len(states) + len(kinds)) for kind in without], dtype=np.intp)
            self.hardware += [hardware for hardware, _ in kinds]
        own = np.array([*rows, *(columns for _, columns in kinds)], dtype=np.float64)
        (
            self._in_flight,
            self._n_run,
            self._queued,
            self._beside,
            self._tokens,
            self._running,
            self._waiting,
            self._kv,
            self._budget,
            self._prefill_load,
            self._trend,
            self._base,
            self._per_seq,
            self._per_token,
        ) = own.T
        self._step = self._base + self._per_seq * self._beside
        self._room = np.maximum(64.0, self._budget - self._beside)
        self._ahead = 0.5 + np.nan_to_num(self._waiting)
        self._tpot = (self._step + self._per_seq)[None, :]
        self._fixed = self._fixed_columns()

    def __len__(self) -> int:
        return len(self._base)

    def analytic(self, prompt_tokens: Column) -> tuple[Column, Column]:
        """Returns the formula's TTFT and TPOT in milliseconds without any learning, shape (requests, instances).

        TTFT: the rest of the running step, then as many steps as the prompt has chunks, then the prompt's own tokens, and the requests that
        wait in the engine before it. TPOT: a step of the future batch.
        """
        prompts = prompt_tokens[:, None]
        chunks = np.maximum(1.0, np.ceil(prompts / self._room))
        ttft = (self._ahead + chunks) * self._step + self._per_token * prompts
        return ttft, np.repeat(self._tpot, len(prompts), axis=0)

    def rows(self, prompt_tokens: Column, output_tokens: Column, ttft: Column) -> Rows:
        """Returns the columns of `FEATURES` for each request on each instance, request by request; NaN if a signal is missing."""
        count, each = len(prompt_tokens), len(self)
        table = np.empty((count, each, len(FEATURES)), dtype=np.float32)
        table[:, :, :] = self._fixed
        prompts = prompt_tokens[:, None]
        table[:, :, 0] = np.log1p(prompts)
        table[:, :, 1] = np.log1p(output_tokens)[:, None]
        table[:, :, 13] = prompts / self._budget
        table[:, :, 18] = np.log(ttft / self._base)
        return table.reshape(count * each, len(FEATURES))

    def _fixed_columns(self) -> Rows:
        fixed = np.full((len(self), len(FEATURES)), math.nan, dtype=np.float32)
        for index, column in (
            (2, self._in_flight),
            (3, self._n_run),
            (4, self._in_flight / np.maximum(1.0, self._n_run)),
            (5, np.log1p(self._queued)),
            (6, self._beside),
            (7, np.log1p(self._tokens)),
            (8, np.log1p(self._tokens / np.maximum(1.0, self._in_flight))),
            (9, self._running),
            (10, self._waiting),
            (11, self._kv),
            (12, np.log(self._budget)),
            (14, self._per_seq / self._base),
            (15, self._per_token / self._base),
            (16, self._prefill_load),
            (17, self._trend),
            (19, np.log(self._tpot[0] / self._base)),
        ):
            fixed[:, index] = column
        return fixed


def expected_in_flight(state: InstanceState) -> float:
    """Returns the requests beside which this one will start: those in flight, and those queued ahead as far as the window admits them."""
    view = state.view
    return max(0.0, min(view.n_run - 1.0, view.in_flight + view.queued_for))


def token_budget(state: InstanceState) -> float:
    """Returns the active number of tokens per step."""
    engine = state.view.engine
    told = engine.max_num_batched_tokens if engine is not None else None
    return float(state.view.token_budget or told or DEFAULT_BUDGET)


def model_name(features: RequestFeatures) -> bytes:
    """Returns the request's model as a category: without publisher and edition, in lower case."""
    name = features.model.rsplit("/", 1)[-1].lower()[:64]
    for edition in _EDITIONS:
        name = name.replace(edition, "")
    return (name or UNKNOWN).encode()


def categories(batch: Sequence[RequestFeatures], fleet: Fleet) -> NDArray[np.object_]:
    """Returns the columns of `CATEGORIES`, in the order of `Fleet.rows`."""
    table = np.empty((len(batch), len(fleet), len(CATEGORIES)), dtype=object)
    table[:, :, 0] = fleet.hardware
    for index, features in enumerate(batch):
        table[index, :, 1] = model_name(features)
    return table.reshape(-1, len(CATEGORIES))


def _columns_of(state: InstanceState) -> tuple[float, ...]:
    view, speed, engine = state.view, state.speed, state.view.engine
    return (
        float(view.in_flight),
        float(view.n_run),
        view.queued_for,
        expected_in_flight(state),
        float(view.in_flight_tokens),
        math.nan if engine is None else float(engine.running),
        math.nan if engine is None else float(engine.waiting),
        math.nan if engine is None or engine.kv_usage is None else engine.kv_usage,
        token_budget(state),
        state.prefill_load,
        state.trend,
        speed.base_ms,
        speed.seq_ms,
        speed.prompt_ms,
    )


def _without_load(state: InstanceState) -> tuple[float, ...]:
    """`_columns_of` an instance that has nothing to do but the one request."""
    speed = state.speed
    # A window of 1: the wider it is, the more company the regressor expects before the answer ends.
    return (0.0, 1.0, *(0.0,) * 6, token_budget(state), 0.0, 0.0, speed.base_ms, speed.seq_ms, speed.prompt_ms)
