"""Makes arrivals from a trace: scales times to the engines' capacity, and writes texts for rows that have only lengths."""

from collections.abc import Sequence

import msgspec
import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.engines.tokens import estimate_tokens
from hmas.loadgen.arrivals import ArrivalSpec, arrival_times
from hmas.loadgen.dataset import KindSpec, Mixture, PromptData, quantile, rank
from hmas.loadgen.prompts import PromptWriter
from hmas.loadgen.requests import TASKS, Floats, Ints, declared_caps, kind_of, own_ranks, tasks_by_rank
from hmas.loadgen.streams import Draws, stream
from hmas.loadgen.traces import Trace, TraceRow
from hmas.loadgen.workload import Arrival, Shape, Turn, draw_importances, fit, make_arrival, pick

BLOCK_TOKENS = 512
"""Tokens of one prompt block in Mooncake's traces."""
LEAST_KNOWN = 10
"""Least number of known outputs that are used as a distribution of their own."""


class ReplaySpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to replay a trace.

    Attributes:
        rate_rps: Mean rate to which times are scaled, or the rate of Poisson arrivals if the file has no times. 0 keeps the trace's own.
        speed: Times are divided by this; with `rate_rps` given it must be 1.
        duration_s: Only requests that arrive before this, 0 for all.
        kind: Mixture kind that gives task types, tenants and caps; empty to choose one by the trace's output lengths.
        context_tokens: Longer prompts and outputs are cut to fit an engine's context; 0 for no cut.
    """

    seed: int = 1
    rate_rps: float = 0.0
    speed: float = 1.0
    duration_s: float = 0.0
    kind: str = ""
    slo_scale: float = 1.0
    context_tokens: int = 0


def arrivals_from_trace(trace: Trace, spec: ReplaySpec, mixture: Mixture, prompts: PromptData) -> tuple[list[Arrival], int]:
    """Returns the arrivals, in order, and how many of them were cut to the context.

    Raises:
        TraceError: The file has no times and no rate was given, or a setting is out of range.
    """
    times = _times(trace, spec)
    rows = [row for row, at_s in zip(trace.rows, times, strict=True) if not spec.duration_s or at_s < spec.duration_s]
    if not rows:
        raise TraceError(f"{trace.source}: nothing arrives within {spec.duration_s} s")
    known = np.array([row.output_tokens for row in rows if row.output_tokens is not None], np.int64)
    kind_name = spec.kind or (kind_of(mixture, known) if len(known) else next(iter(mixture.kinds)))
    if kind_name not in mixture.kinds:
        raise TraceError(f"kind is {kind_name!r}; allowed: {', '.join(mixture.kinds)}")
    kind = mixture.kinds[kind_name]
    order = _output_ranks(rows, kind, known)
    importances = draw_importances(spec.seed, len(rows)).tolist()
    draws = {name: stream(spec.seed, name).random(len(rows)) for name in ("tasks", "lengths", "tenants")}
    writer, guessed = PromptWriter(prompts), tasks_by_rank(kind, mixture.level_spread, order, draws["tasks"])
    arrivals, cut = [], 0
    for i, (row, at_s) in enumerate(zip(rows, times, strict=False)):
        task = row.task_type or TASKS[guessed[i]]
        output = row.output_tokens or int(quantile(kind.output_tokens, np.array([draws["lengths"][i]]))[0])
        prompt = row.prompt_tokens or sum(estimate_tokens(content) for _, content in row.messages)
        shape = Shape(kind_name, task, prompt, output, int(declared_caps(kind, np.array([output]))[0]))
        fitted = fit(shape, spec.context_tokens) if spec.context_tokens else shape
        cut += fitted[2:4] != shape[2:4]
        arrival = make_arrival(
            at_s=at_s,
            text=_text(row, fitted, writer, spec.seed, i),
            shape=fitted,
            importance=importances[i],
            slo_scale=spec.slo_scale,
            tenant=pick(kind.tenants, draws["tenants"][i]),
            long_total_tokens=mixture.long_total_tokens,
        )
        whole = len(row.messages) > 1 and fitted.prompt_tokens == prompt
        arrivals.append(_with_turns(arrival, row) if whole else arrival)
    return arrivals, cut


def _times(trace: Trace, spec: ReplaySpec) -> list[float]:
    if spec.speed <= 0 or spec.rate_rps < 0 or (spec.rate_rps > 0 and spec.speed != 1.0):
        raise TraceError(f"speed is {spec.speed} and rate is {spec.rate_rps}; allowed: either a speed above 0 or a rate above 0")
    count = len(trace.rows)
    known = [row.at_s for row in trace.rows if row.at_s is not None]
    if len(known) == count:
        span_s = known[-1] - known[0]
        factor = (count - 1) / span_s / spec.rate_rps if spec.rate_rps and span_s > 0 else 1.0
        return [t * factor / spec.speed for t in known]
    if not spec.rate_rps:
        raise TraceError(f"{trace.source} has no arrival times; give a rate with --rate")
    drawn = arrival_times(
        ArrivalSpec(mean_rps=spec.rate_rps, duration_s=(2.0 * count + 20.0) / spec.rate_rps, process="poisson"),
        stream(spec.seed, "arrivals"),
    )
    return [float(t) for t in drawn[:count]]


def _output_ranks(rows: Sequence[TraceRow], kind: KindSpec, known: Ints) -> Floats:
    """Rank of each output among the trace's own, 0 to 1; if the trace has few lengths, by the kind's table."""
    ranks = np.full(len(rows), 0.5)
    told = np.array([row.output_tokens is not None for row in rows])
    ranks[told] = own_ranks(known) if len(known) >= LEAST_KNOWN else [rank(kind.output_tokens, tokens) for tokens in known.tolist()]
    return ranks


def _text(row: TraceRow, shape: Shape, writer: PromptWriter, seed: int, index: int) -> str:
    if row.messages:
        text = "\n".join(content for _, content in row.messages)
        keep = shape.prompt_tokens / max(1, estimate_tokens(text))
        return text if keep >= 1.0 else text[: max(1, int(len(text) * keep))]
    if not row.blocks:
        return writer.compose(shape.task, shape.prompt_tokens, stream(seed, "text", index))
    # A block's text depends only on its id, so equal leading ids give equal leading text, as in the recorded traffic.
    parts, left = [], shape.prompt_tokens
    for block in row.blocks:
        size = min(BLOCK_TOKENS, left)
        if size <= 0:
            break
        parts.append(writer.body("prose", size, Draws(stream(seed, "block", block))))
        left -= size
    return "\n".join(parts)


def _with_turns(arrival: Arrival, row: TraceRow) -> Arrival:
    turns = tuple(Turn(role, content) for role, content in row.messages)
    return msgspec.structs.replace(arrival, messages=turns, prompt_tokens=sum(estimate_tokens(t.content) for t in turns))
