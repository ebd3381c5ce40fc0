"""The load of HeteroServe 4.1, from the catalogue of workloads, and what Eq. 6 has to know of it."""

import math

from hmas.workloads.catalogue import build
from hmas.workloads.hetero import PROMPT_MEDIANS, HeteroOptions
from hmas.workloads.table import Workload

_OPTIONS = HeteroOptions()
SLO_TTFT_MS = _OPTIONS.ttft_ms


def load(seed: int, requests: int, rate: float) -> Workload:
    """So many requests at this rate, requests per second; a higher rate is the same draw, only closer together."""
    return build(f"hetero:count={requests},seed={seed}").scaled(rate)


def mean_context_tokens() -> float:
    """Expected prompt (log-normal, cut at the ceiling) and output of one request together: the "average sequence length" of Eq. 6."""
    median, sigma, ceiling = PROMPT_MEDIANS[_OPTIONS.prompts], _OPTIONS.sigma, _OPTIONS.ceiling
    z = math.log(ceiling / median) / sigma
    return median * math.exp(sigma**2 / 2.0) * _normal(z - sigma) + ceiling * (1.0 - _normal(z)) + _OPTIONS.mean_output


def _normal(z: float) -> float:
    return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))
