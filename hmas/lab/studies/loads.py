"""What arrives in a case: a workload of the catalogue, cut, scaled and given targets as the case says."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from controller.core.errors import ConfigError, TraceError
from controller.core.types import TaskType
from controller.simulation import Arrival
from hmas.lab.studies.case import Case
from hmas.lab.workloads import TASKS, Workload, build
from hmas.lab.workloads.options import parse
from hmas.lab.workloads.table import Believe

BASES = 2
"""Workloads kept as read, before anything is cut or scaled: neighbouring cases of a study share them."""


@dataclass(frozen=True, slots=True)
class Load:
    """A case's workload, ready to run.

    Attributes:
        kind: Its kind of traffic, a word for the report's classes.
        own_rps: Its rate before it was scaled.
    """

    workload: Workload
    kind: str
    own_rps: float

    @property
    def count(self) -> int:
        """Requests."""
        return len(self.workload)

    @property
    def duration_s(self) -> float:
        """Length of the arrivals."""
        return self.workload.duration_s

    @property
    def rate_rps(self) -> float:
        """Mean rate, as scaled."""
        return self.workload.rate_rps

    def task(self, row: int) -> TaskType:
        """Task type of one request by its place among the arrivals."""
        return TASKS[int(self.workload.task[row])]

    def longest(self) -> int:
        """Tokens of the longest request, prompt and output together."""
        if not self.count:
            return 0
        return int((self.workload.prompt_tokens.astype(np.int64) + self.workload.output_tokens).max())

    def longer_than(self, tokens: int) -> int:
        """How many requests are longer than an engine's context."""
        return int((self.workload.prompt_tokens.astype(np.int64) + self.workload.output_tokens > tokens).sum())

    def arrivals(self, model: str, estimate: Believe | None) -> Iterator[Arrival]:
        """What the simulation is fed."""
        return self.workload.arrivals(model=model, estimate=estimate)


def open_load(case: Case) -> Load:
    """A case's workload.

    Raises:
        TraceError: The workload cannot be made, or the case leaves nothing of it.
    """
    workload, kind = _base(case.workload, case.seed)
    if case.duration_s and case.duration_s < workload.duration_s:
        workload = workload.window(0.0, case.duration_s)
    if case.limit and case.limit < len(workload):
        workload = replace(workload.rows(0, case.limit), duration_s=0.0)
    if not len(workload):
        raise TraceError(f"{workload.name}: no request is left of it; allowed: a longer duration, a higher limit")
    own_rps = workload.rate_rps
    if case.load != 1.0:
        workload = workload.scaled(own_rps * case.load)
    targets = {name: value for name, value in (("slo_ttft_ms", case.slo.ttft_ms), ("slo_tpot_ms", case.slo.tpot_ms)) if value}
    if targets:
        columns = {name: np.full(len(workload), value, np.float32) for name, value in targets.items()}
        workload = replace(workload, **columns)  # type: ignore[arg-type]  # the columns by their names
    return Load(workload=workload, kind=kind, own_rps=own_rps)


def states_seed(workload: str) -> bool:
    """Whether a workload's text names its own seed.

    Raises:
        TraceError: The text has no usable form.
    """
    return "seed" in parse(workload).options


@lru_cache(maxsize=BASES)
def _base(text: str, seed: int) -> tuple[Workload, str]:
    """The workload as its text says, and its name in the catalogue. A seed in the text goes before the case's."""
    spec = parse(text)
    if not spec.name:
        raise ConfigError("the workload is empty; allowed: such as azure:FILE or poisson:rate=40,duration=600")
    return build(spec._replace(options={"seed": seed, **spec.options})), spec.name
