"""Requests without times: task, lengths, cap and tenant, drawn from the project's mixture or resampled from a trace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.loadgen.dataset import KindSpec, Mixture, quantile
from hmas.loadgen.streams import stream
from hmas.loadgen.workload import score_rank

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Column = npt.NDArray[Any]

TASKS: tuple[TaskType, ...] = tuple(TaskType)
"""The values of the `task` column, which is an index into these: the rows of H-MAS Table 6 in order, and `unknown` last."""
_NUMBER = {task: number for number, task in enumerate(TASKS)}
_GRID = np.linspace(-6.0, 6.0, 2401)
_GUESS_GRID = np.linspace(-6.0, 6.0, 241)
_SLICE = 65_536
CODE_OUTPUT_MEDIAN = 40
"""Outputs with a smaller median count as code completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Columns of requests without times: true lengths, declared caps, and indices into `TASKS` and `tenants`."""

    task: Column
    prompt_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints
    tenant: Column
    tenants: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """A mix of requests.

    Attributes:
        kinds: Shares of the mixture's kinds of traffic.
        tasks: Weights of task types by kind; None for the kind's own. Lengths keep the kind's distribution: a regime of tasks with short
            answers draws from the lower part of the kind's outputs.
    """

    kinds: Mapping[str, float]
    tasks: Mapping[str, Mapping[TaskType, float]] | None = None

    def weights(self, name: str, kind: KindSpec) -> Mapping[TaskType, float]:
        """Task weights of one kind in this regime."""
        own = {task: spec.weight for task, spec in kind.tasks.items()}
        return own if self.tasks is None else self.tasks.get(name, own)


def whole_mixture(mixture: Mixture, kind: str = "") -> Regime:
    """The whole mixture, or one kind of it.

    Raises:
        TraceError: The mixture has no such kind.
    """
    if kind and kind not in mixture.kinds:
        raise TraceError(f"kind is {kind!r}; allowed: {', '.join(mixture.kinds)}, or none for all of them by their shares")
    return Regime(kinds={kind: 1.0} if kind else {name: spec.share for name, spec in mixture.kinds.items()})


def draw_requests(mixture: Mixture, count: int, seed: int, regimes: Sequence[Regime], which: Column | None = None) -> Requests:
    """Draws requests as `hmas.loadgen.workload.draw_shapes` does, from the same random streams, but by whole columns.

    `which` is the index of each request's regime; None for the first one.
    """
    kinds, tasks = stream(seed, "kinds").random(count), stream(seed, "tasks").random(count)
    noise = stream(seed, "lengths").standard_normal((count, 2)) * mixture.level_spread
    at = stream(seed, "tenants").random(count)
    names = list(mixture.kinds)
    tenants = tuple(dict.fromkeys(tenant for kind in mixture.kinds.values() for tenant in kind.tenants))
    drawn = Requests(
        task=np.empty(count, np.uint8),
        prompt_tokens=np.empty(count, np.int64),
        output_tokens=np.empty(count, np.int64),
        max_tokens=np.empty(count, np.int64),
        tenant=np.empty(count, np.uint16),
        tenants=tenants,
    )
    lengths = _Lengths(mixture)
    for number, regime in enumerate(regimes):
        mine = np.arange(count) if which is None else np.flatnonzero(which == number)
        chosen = pick_column([regime.kinds.get(name, 0.0) for name in names], kinds[mine])
        for place, name in enumerate(names):
            rows, kind = mine[chosen == place], mixture.kinds[name]
            weights = regime.weights(name, kind)
            task = pick_column(list(weights.values()), tasks[rows])
            drawn.task[rows] = np.array([_NUMBER[t] for t in weights], np.uint8)[task]
            levels = np.array([(kind.tasks[t].prompt_level, kind.tasks[t].output_level) for t in weights])
            scores = levels[task] + noise[rows]
            drawn.prompt_tokens[rows] = lengths.of(name, "prompt", scores[:, 0])
            drawn.output_tokens[rows] = lengths.of(name, "output", scores[:, 1])
            drawn.max_tokens[rows] = kind.max_tokens
            own = np.array([tenants.index(tenant) for tenant in kind.tenants], np.uint16)
            drawn.tenant[rows] = own[pick_column(list(kind.tenants.values()), at[rows])]
    np.minimum(drawn.output_tokens, drawn.max_tokens, out=drawn.output_tokens)
    return drawn


def requests_of(mixture: Mixture, kind_name: str, seed: int, prompt_tokens: Ints, output_tokens: Ints) -> Requests:
    """Requests of known lengths: tasks are chosen by the ranks of the outputs, caps and tenants by a kind of traffic."""
    whole_mixture(mixture, kind_name)
    kind = mixture.kinds[kind_name]
    count = len(output_tokens)
    return Requests(
        task=tasks_by_rank(kind, mixture.level_spread, own_ranks(output_tokens), stream(seed, "tasks").random(count)),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_tokens=declared_caps(kind, output_tokens),
        tenant=pick_column(list(kind.tenants.values()), stream(seed, "tenants").random(count)).astype(np.uint16),
        tenants=tuple(kind.tenants),
    )


def kind_of(mixture: Mixture, output_tokens: Ints) -> str:
    """Guesses the kind of traffic from outputs: code completions are short (Azure's medians: code 13, conversation 114)."""
    short = np.median(output_tokens) < CODE_OUTPUT_MEDIAN
    return "code" if short and "code" in mixture.kinds else next(iter(mixture.kinds))


def pick_column(weights: Sequence[float], u: Floats) -> Ints:
    """Selects indices by `u` (0 to 1) with probability proportional to weight: `hmas.loadgen.workload.pick` for columns."""
    ends = np.cumsum(np.asarray(weights, dtype=float))
    found: Ints = np.searchsorted(ends, u * ends[-1], side="right")
    return np.minimum(found, len(ends) - 1)


def own_ranks(values: Ints) -> Floats:
    """Rank of each value among all, above 0 and below 1; equal values share the last rank."""
    ordered = np.sort(values)
    ranks: Floats = (np.searchsorted(ordered, values, side="right") - 0.5) / max(1, len(values))
    return ranks


def tasks_by_rank(kind: KindSpec, spread: float, ranks: Floats, u: Floats) -> Column:
    """Draws task types (indices into `TASKS`) by their probability for an output of a given rank: the inverse of `draw_requests`."""
    scores = np.interp(ranks, [score_rank(kind, "output_level", score, spread) for score in _GUESS_GRID], _GUESS_GRID)
    levels = np.array([task.output_level for task in kind.tasks.values()])
    weights = np.array([task.weight for task in kind.tasks.values()])
    numbers = np.array([_NUMBER[task] for task in kind.tasks], np.uint8)
    found = np.empty(len(ranks), np.uint8)
    for start in range(0, len(ranks), _SLICE):
        part = slice(start, start + _SLICE)
        ends = np.cumsum(weights * np.exp(-0.5 * ((scores[part, None] - levels) / spread) ** 2), axis=1)
        below = (ends <= (u[part] * ends[:, -1])[:, None]).sum(axis=1)
        found[part] = numbers[np.minimum(below, len(numbers) - 1)]
    return found


def declared_caps(kind: KindSpec, output_tokens: Ints) -> Ints:
    """The kind's cap, doubled until the output fits, so that it reveals only the order of magnitude of one request."""
    doublings = np.ceil(np.log2(np.maximum(1.0, output_tokens / kind.max_tokens)))
    caps: Ints = kind.max_tokens * (2 ** doublings.astype(np.int64))
    return caps


class _Lengths:
    """Lengths of a mixture's kinds by their scores. Ranks come from a grid with an error of less than 0.00001."""

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        self._ranks: dict[tuple[str, str], list[float]] = {}

    def of(self, name: str, side: Literal["prompt", "output"], scores: Floats) -> Ints:
        kind, spread = self._mixture.kinds[name], self._mixture.level_spread
        ranks = self._ranks.get((name, side))
        if ranks is None:
            ranks = self._ranks[name, side] = [score_rank(kind, f"{side}_level", score, spread) for score in _GRID.tolist()]
        return quantile(kind.prompt_tokens if side == "prompt" else kind.output_tokens, np.interp(scores, _GRID, ranks))
