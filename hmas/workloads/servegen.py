"""Client mixtures as in ServeGen: every client has its own rate, burstiness and lengths, window by window."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.streams import stream
from hmas.workloads.annotate import annotate
from hmas.workloads.columns import Floats, Ints
from hmas.workloads.options import Count, NotNegative, Options, Positive
from hmas.workloads.processes import check_size, clustered_times
from hmas.workloads.requests import kind_of, requests_of
from hmas.workloads.servegen_files import WINDOW_S, ClientWindow, Histogram, ServeGenData, read_servegen
from hmas.workloads.table import Workload

OUTPUT = "output_tokens"
PROMPT_PARTS = ("input_tokens", "text_tokens", "image_tokens", "audio_tokens", "video_tokens")
"""Fields of a prompt: one for text models, the sum of the parts for multimodal models."""
_WITHIN_LEAST = 0.25


class ServeGenOptions(Options, frozen=True, kw_only=True):
    """Options of a client mixture.

    Attributes:
        model: The model whose clients are used: `m-large`, `m-mid`, `m-small`, `deepseek-r1` or `mm-image`.
        start, duration: The part of the recorded days, in seconds.
        rate: Mean rate over that part to which all clients are scaled, requests per second; 0 keeps the recorded one.
        clients: Only this many clients, those with the most requests in that part; 0 for all.
    """

    model: str = "m-large"
    start: NotNegative = 0.0
    duration: Positive = 600.0
    rate: NotNegative = 0.0
    clients: Count = 0


def servegen(options: ServeGenOptions, path: Path) -> Workload:
    """Draws every client's requests separately.

    A window's rate is an observed count, so each window gets that count (scaled, and rounded up or down at random), with gaps of the fitted
    family and the measured CV. Lengths follow the model's marginal histograms; the clients' means determine which clients have the long
    ones. Prompt and output are drawn independently, because the published lengths are not paired.

    Raises:
        TraceError: A table is missing or bad, or nothing is recorded in the wanted part.
    """
    data = read_servegen(path, options.model)
    end_s = options.start + options.duration
    windows = _chosen(data, options)
    factor = options.rate / _mean_rate(windows, options) if options.rate else 1.0
    check_size(_mean_rate(windows, options) * factor * options.duration)
    times, clients = [], []
    for window in windows:
        rng = stream(options.seed, "servegen", window.client, int(window.t_s))
        measured = window.rate_rps * WINDOW_S
        count = int(measured * factor + rng.random())
        drawn = window.t_s + clustered_times(window.family, count, rng, cv=window.cv, span_s=WINDOW_S, measured_on=round(measured))
        kept = drawn[(drawn >= options.start) & (drawn < end_s)]
        times.append(kept)
        clients.append(np.full(len(kept), window.client))
    at_s, client = np.concatenate(times), np.concatenate(clients)
    order = np.argsort(at_s, kind="stable")
    at_s, client = at_s[order], client[order]
    present, tenant = np.unique(client, return_inverse=True)
    prompt = sum((_lengths(data, part, at_s, client, options.seed) for part in PROMPT_PARTS if part in data.histograms), np.int64(0))
    output = np.maximum(1, _lengths(data, OUTPUT, at_s, client, options.seed))
    mixture, _ = load_mixture()
    requests = requests_of(mixture, kind_of(mixture, output), options.seed, np.maximum(1, np.asarray(prompt)), output)
    requests = replace(requests, tenant=tenant, tenants=tuple(f"client-{number}" for number in present) or ("nobody",))
    return annotate("servegen", at_s - options.start, requests, options, duration_s=options.duration)


def _chosen(data: ServeGenData, options: ServeGenOptions) -> list[ClientWindow]:
    inside = [w for w in data.windows if _overlap_s(w, options) > 0.0]
    if not inside:
        last_s = max(w.t_s for w in data.windows) + WINDOW_S
        raise TraceError(
            f"servegen: nothing is recorded {options.duration:g} s from start={options.start:g} on; allowed: up to {last_s:g} s"
        )
    totals: dict[int, float] = {}
    for window in inside:
        totals[window.client] = totals.get(window.client, 0.0) + window.rate_rps * _overlap_s(window, options)
    most = sorted(totals, key=lambda client: (-totals[client], client))
    kept = set(most[: options.clients or len(most)])
    return sorted(w for w in inside if w.client in kept)


def _overlap_s(window: ClientWindow, options: ServeGenOptions) -> float:
    return min(window.t_s + WINDOW_S, options.start + options.duration) - max(window.t_s, options.start)


def _mean_rate(windows: list[ClientWindow], options: ServeGenOptions) -> float:
    return sum(w.rate_rps * _overlap_s(w, options) for w in windows) / options.duration


def _lengths(data: ServeGenData, field: str, at_s: Floats, client: Ints, seed: int) -> Ints:
    """Lengths of one field, by the histogram of each request's time interval.

    Raises:
        TraceError: There is no histogram of the field.
    """
    stretches = data.histograms.get(field)
    if not stretches:
        raise TraceError(f"servegen: no histogram of {field}; allowed: fields {', '.join(data.histograms)}")
    noise = stream(seed, f"lengths of {field}").standard_normal(len(at_s))
    starts = np.array(sorted(stretches))
    which = np.maximum(0, np.searchsorted(starts, at_s, side="right") - 1)
    lengths = np.empty(len(at_s), np.int64)
    for number in np.unique(which):
        rows = np.flatnonzero(which == number)
        histogram = stretches[float(starts[number])]
        lengths[rows] = bin_quantile(histogram, _client_ranks(histogram, data.means.get(field, {}), client[rows], noise[rows]))
    return lengths


def bin_quantile(histogram: Histogram, u: Floats) -> Ints:
    """Whole lengths at the quantiles `u` (0 to 1), spread evenly within a bin."""
    ends = np.cumsum(histogram.weight) / histogram.weight.sum()
    number = np.minimum(np.searchsorted(ends, u, side="right"), len(ends) - 1)
    begin = np.concatenate(([0.0], ends[:-1]))[number]
    inside = np.clip((u - begin) / np.maximum(1e-300, ends[number] - begin), 0.0, 1.0 - 1e-12)
    low, high = histogram.low[number], histogram.high[number]
    lengths: Ints = (low + np.floor(inside * np.maximum(1.0, high - low))).astype(np.int64)
    return lengths


def _client_ranks(histogram: Histogram, means: dict[int, float], client: Ints, noise: Floats) -> Floats:
    """Ranks, 0 to 1, that are uniform over all requests and higher for clients with longer means.

    A request's score is its client's log mean plus noise, whose width is the part of the histogram's spread that the clients do not
    explain. Its rank is the share of all scores below it. So the mixture over clients is the published histogram for any set of clients.
    """
    present, index = np.unique(client, return_inverse=True)
    shares = np.bincount(index) / len(index)
    logs = np.array([math.log(max(0.5, means[c])) if c in means else math.nan for c in present.tolist()])
    known = ~np.isnan(logs)
    middle = float(np.average(logs[known], weights=shares[known])) if known.any() else 0.0
    # Clients without published lengths are put in the middle.
    logs = np.where(known, logs, middle)
    between = float(np.average((logs - middle) ** 2, weights=shares))
    centre = np.log(np.maximum(0.5, (histogram.low + histogram.high - 1.0) / 2.0))
    total = float(np.average((centre - np.average(centre, weights=histogram.weight)) ** 2, weights=histogram.weight))
    within = math.sqrt(max(total - between, _WITHIN_LEAST * max(total, between), 1e-6))
    grid = np.linspace(logs.min() - 7.0 * within, logs.max() + 7.0 * within, 1001)
    erf = np.frompyfunc(math.erf, 1, 1)
    below = 0.5 * (1.0 + erf((grid[:, None] - logs) / (within * math.sqrt(2.0))).astype(float)) @ shares
    ranks: Floats = np.interp(logs[index] + within * noise, grid, below)
    return ranks
