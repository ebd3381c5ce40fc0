"""Workloads with random arrivals: Poisson, and renewal processes with a given CV."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from hmas.controller.core.errors import TraceError
from hmas.loadgen.arrivals import poisson_times, renewal_times
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.requests import Floats, Requests, draw_requests, kind_of, requests_of, whole_mixture
from hmas.loadgen.streams import stream
from hmas.loadgen.traces import MAX_TOKENS, read_trace
from hmas.workloads.options import Count, NotNegative, Options, Positive
from hmas.workloads.table import Workload, annotate

DEFAULT_S = 600.0


class TimedOptions(Options, frozen=True, kw_only=True):
    """Options of random arrival times.

    Attributes:
        rate: Mean rate, requests per second.
        duration: Length in seconds; 0 for 600 s, or for the time of `count` requests.
        count: Stop after this many requests; 0 for no limit.
    """

    rate: Positive = 40.0
    duration: NotNegative = 0.0
    count: Count = 0

    @property
    def horizon_s(self) -> float:
        """Length of the drawn arrivals; with only a `count`, so long that that many Poisson arrivals are certain."""
        if self.duration or not self.count:
            return self.duration or DEFAULT_S
        return (self.count + 10.0 * math.sqrt(self.count) + 50.0) / self.rate


class DrawnOptions(TimedOptions, frozen=True, kw_only=True):
    """Options of workloads with random arrivals.

    Attributes:
        lengths: `mixed` draws from datasets/mixed.json; a path resamples whole rows (prompt with its output) of a trace or length file.
        kind: Kind of traffic, `conv` or `code`; by default both by their shares, or the kind that fits a file's outputs.
        prompt, output: A fixed length for all requests; 0 to draw lengths.
    """

    lengths: str = "mixed"
    kind: str = ""
    prompt: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    output: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0


class GammaOptions(DrawnOptions, frozen=True, kw_only=True):
    """`cv`: coefficient of variation of the gaps, which are gamma-distributed (1 is Poisson)."""

    cv: Positive = 2.0


def poisson(options: DrawnOptions, _path: Path | None) -> Workload:
    """Poisson arrivals."""
    times = poisson_times(options.rate, options.horizon_s, stream(options.seed, "arrivals"))
    return with_lengths("poisson", times, options)


def gamma(options: GammaOptions, _path: Path | None) -> Workload:
    """A stationary renewal process with the CV of the gaps given."""
    horizon_s = options.horizon_s
    times = renewal_times(options.rate, options.cv, horizon_s, stream(options.seed, "arrivals"))
    # A clustered process may take much longer than the mean; each try restarts the draws, so the result does not depend on the tries.
    while not options.duration and len(times) < options.count:
        horizon_s *= 2.0
        times = renewal_times(options.rate, options.cv, horizon_s, stream(options.seed, "arrivals"))
    return with_lengths("gamma", times, options)


def with_lengths(name: str, times: Floats, options: DrawnOptions) -> Workload:
    """Adds requests to times, cut to `count`."""
    at_s, duration_s = cut_to_count(times, options)
    requests = lengths_for(len(at_s), options.seed, options.lengths, options.kind)
    return annotate(name, at_s, _fixed(requests, options), options, duration_s=duration_s)


def cut_to_count(times: Floats, options: TimedOptions) -> tuple[Floats, float]:
    """The first `count` times, and the length of the workload."""
    if options.count and len(times) > options.count:
        return times[: options.count], float(times[options.count])
    return times, options.horizon_s


def lengths_for(count: int, seed: int, lengths: str, kind: str) -> Requests:
    """Requests by `lengths` and `kind` as described in `DrawnOptions`.

    Raises:
        TraceError: The file cannot be used, or the kind is unknown.
    """
    mixture, _ = load_mixture()
    if lengths == "mixed":
        return draw_requests(mixture, count, seed, [whole_mixture(mixture, kind)])
    trace = read_trace(Path(lengths))
    known = [(r.prompt_tokens, r.output_tokens) for r in trace.rows if r.prompt_tokens is not None and r.output_tokens is not None]
    if not known:
        raise TraceError(f"lengths is {lengths!r}, where no row has both; allowed: mixed, or a file of prompt and output lengths")
    pairs = np.array(known, np.int64)
    rows = stream(seed, "lengths").integers(0, len(pairs), count)
    return requests_of(mixture, kind or kind_of(mixture, pairs[:, 1]), seed, pairs[rows, 0], pairs[rows, 1])


def _fixed(requests: Requests, options: DrawnOptions) -> Requests:
    if not options.prompt and not options.output:
        return requests
    prompt = np.full_like(requests.prompt_tokens, options.prompt) if options.prompt else requests.prompt_tokens
    output = np.full_like(requests.output_tokens, options.output) if options.output else requests.output_tokens
    return replace(requests, prompt_tokens=prompt, output_tokens=output, max_tokens=np.maximum(requests.max_tokens, output))
