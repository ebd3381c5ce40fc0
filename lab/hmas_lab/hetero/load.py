"""The load of HeteroServe 4.1: Poisson arrivals, log-normal prompts, exponential outputs, one TTFT target; and what Eq. 6 needs of it."""

import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np

from hmas.controller.core.types import TaskType
from hmas.loadgen.arrivals import poisson_times
from hmas.loadgen.requests import TASKS, Floats, Ints, Requests
from hmas.loadgen.streams import stream
from hmas.workloads.drawn import TimedOptions, cut_to_count
from hmas.workloads.options import NotNegative, Positive
from hmas.workloads.table import Workload, annotate

PROMPT_MEDIANS = {"lognormal": 512.0, "short": 128.0, "long": 1024.0}
"""Medians of the paper's load and its variations (section 4.4), tokens."""
SHORT_MOST, LONG_LEAST = 127, 2049
"""Bimodal traffic: half the prompts under 128 tokens, half over 2,048."""
CAP = 4096


class HeteroOptions(TimedOptions, frozen=True, kw_only=True):
    """Options of HeteroServe's load.

    Attributes:
        rate: The paper's nominal load on its cluster of 8 devices.
        prompts: Distribution of the prompts: `lognormal` (median 512), `short` (128), `long` (1,024) or `bimodal`.
        sigma: Standard deviation of the prompt's logarithm.
        mean_output: Mean of the outputs, tokens; the paper varies it from 64 to 512.
        ceiling: Longest prompt, tokens (section 5: the evaluation has a 4K-token input ceiling).
        ttft_ms: The paper's only target; it has none for TPOT, so that of Table 6 is used.
    """

    rate: Positive = 49.8
    prompts: Literal["lognormal", "short", "long", "bimodal"] = "lognormal"
    sigma: Positive = 1.2
    mean_output: Positive = 256.0
    ceiling: Positive = 4096.0
    ttft_ms: NotNegative = 500.0


def hetero(options: HeteroOptions) -> Workload:
    """HeteroServe's load.

    The paper states that 90 % of prompts have up to 2,048 tokens; for a log-normal of median 512 and sigma 1.2 that quantile is 2,383. This
    workload uses median and sigma.
    """
    times = poisson_times(options.rate, options.horizon_s, stream(options.seed, "arrivals"))
    at_s, duration_s = cut_to_count(times, options)
    count = len(at_s)
    drawn = np.rint(stream(options.seed, "outputs").exponential(options.mean_output, count))
    requests = Requests(
        task=np.full(count, TASKS.index(TaskType.DIALOGUE), np.uint8),
        prompt_tokens=_prompts(options, count),
        output_tokens=np.clip(drawn, 1, CAP).astype(np.int64),
        max_tokens=np.full(count, CAP),
        tenant=np.zeros(count, np.uint16),
        tenants=("chat",),
    )
    return annotate("hetero", at_s, requests, options, duration_s=duration_s)


def _prompts(options: HeteroOptions, count: int) -> Ints:
    rng = stream(options.seed, "prompts")
    drawn: Floats
    if options.prompts == "bimodal":
        long, place = rng.random(count) < 0.5, rng.random(count)
        most = max(LONG_LEAST, int(options.ceiling))
        drawn = np.where(long, LONG_LEAST + place * (most - LONG_LEAST), 16 + place * (SHORT_MOST - 16))
    else:
        drawn = np.exp(math.log(PROMPT_MEDIANS[options.prompts]) + options.sigma * rng.standard_normal(count))
    return np.clip(np.rint(drawn), 1, max(1.0, math.floor(options.ceiling))).astype(np.int64)


_OPTIONS = HeteroOptions()
SLO_TTFT_MS = _OPTIONS.ttft_ms
DISTRIBUTIONS: Mapping[str, HeteroOptions] = MappingProxyType(
    {
        "lognormal": _OPTIONS,
        "short": HeteroOptions(prompts="short"),
        "long": HeteroOptions(prompts="long"),
        "long-output": HeteroOptions(mean_output=512.0),
        "bimodal": HeteroOptions(prompts="bimodal"),
    }
)
"""What section 4.4 varies: medians of 128 and 1,024 tokens, outputs of 512, and half the prompts short, half long."""
DRAWN = 20_000


def load(distribution: str, seed: int, requests: int, rate: float) -> Workload:
    """So many requests at this rate, requests per second; a higher rate is the same draw, only closer together."""
    return hetero(msgspec.structs.replace(DISTRIBUTIONS[distribution], count=requests, seed=seed)).scaled(rate)


@functools.cache
def mean_context_tokens(distribution: str) -> float:
    """Mean prompt and output of a request together: the "average sequence length" of Eq. 6."""
    drawn = load(distribution, 0, DRAWN, 1.0)
    return float((drawn.prompt_tokens + drawn.output_tokens).mean())
