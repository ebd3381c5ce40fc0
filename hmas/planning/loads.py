"""The workload of a case: requests or sessions of the catalogue, cut, scaled and given targets by the case's settings."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec
import numpy as np

from hmas.controller.core.errors import ConfigError, TraceError
from hmas.controller.core.types import TaskType
from hmas.controller.scheduling.results import Ended
from hmas.controller.simulation import Arrival
from hmas.loadgen.requests import Column
from hmas.planning.case import Case
from hmas.workloads import TASKS, Workload, build
from hmas.workloads.catalogue import SESSIONS, build_sessions
from hmas.workloads.options import Spec, parse
from hmas.workloads.session_driver import SessionDriver, place_of
from hmas.workloads.sessions import Call, SessionPlan
from hmas.workloads.table import Believe

BASES = 2
"""Cached workloads, before they are cut or scaled: successive cases of a study share them."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One run's arrivals.

    Attributes:
        arrivals: In order of time; they can be read once.
        followups: Returns arrivals that follow from the end of others; None if there are none.
        issued: Every arrival so far, if arrivals cannot be generated a second time.
        driver: Drives the sessions; None if there are no sessions.
    """

    arrivals: Iterator[Arrival]
    followups: Callable[[Ended, float], Iterable[Arrival]] | None = None
    issued: list[Arrival] | None = None
    driver: SessionDriver | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A case's workload, which can be run any number of times.

    Attributes:
        name: Its name.
        kind: Its kind of traffic, a word for the report's classes.
        own_rps: Its rate in requests per second before scaling.
        duration_s: Length of the arrivals.
        prompt_tokens, output_tokens: Lengths of all requests; for sessions, of the calls if every session completes.
        slo_tpot_ms: The mean TPOT target.
        task: Task type of one request, by its index among the records and its id. wanted_tokens: its true output length, likewise.
        feed: The arrivals of one simulation, for a model and with estimates of a request at its arrival.
    """

    name: str
    kind: str
    own_rps: float
    duration_s: float
    prompt_tokens: Column
    output_tokens: Column
    slo_tpot_ms: float
    task: Callable[[int, str], TaskType]
    wanted_tokens: Callable[[int, str], int]
    feed: Callable[[str, Believe | None], Feed]

    @property
    def count(self) -> int:
        """Number of requests."""
        return len(self.prompt_tokens)

    @property
    def rate_rps(self) -> float:
        """Mean rate after scaling, requests per second."""
        return self.count / self.duration_s

    def longer_than(self, tokens: int) -> int:
        """Number of requests that are longer than this, prompt and output together."""
        return int((self.prompt_tokens.astype(np.int64) + self.output_tokens > tokens).sum())


def open_load(case: Case) -> Load:
    """Opens a case's workload.

    Raises:
        TraceError: The workload cannot be made, or no request is left after the case's cuts.
    """
    spec = parse(case.workload)
    if not spec.name:
        raise ConfigError("the workload is empty; allowed: such as azure:FILE or poisson:rate=40,duration=600")
    if spec.name in SESSIONS:
        return _open_sessions(case, _sessions(case.workload, case.seed), spec.name)
    workload = _requests(case.workload, case.seed)
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
    return Load(
        name=workload.name,
        kind=spec.name,
        own_rps=own_rps,
        duration_s=workload.duration_s,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        slo_tpot_ms=float(np.mean(workload.slo_tpot_ms)),
        task=lambda row, _id: TASKS[int(workload.task[row])],
        wanted_tokens=lambda row, _id: int(workload.output_tokens[row]),
        feed=lambda model, estimate: Feed(workload.arrivals(model=model, estimate=estimate)),
    )


def states_seed(workload: str) -> bool:
    """Whether a workload's text names its own seed.

    Raises:
        TraceError: The text has no usable form.
    """
    return "seed" in parse(workload).options


def _seeded(text: str, seed: int) -> Spec:
    """Parses a workload; a seed in the text takes precedence over the case's."""
    spec = parse(text)
    return spec._replace(options={"seed": seed, **spec.options})


@lru_cache(maxsize=BASES)
def _requests(text: str, seed: int) -> Workload:
    return build(_seeded(text, seed))


@lru_cache(maxsize=BASES)
def _sessions(text: str, seed: int) -> SessionPlan:
    return build_sessions(_seeded(text, seed))


def _open_sessions(case: Case, base: SessionPlan, kind: str) -> Load:
    """Cuts and scales sessions and sets their targets; `limit` counts sessions. More load is more sessions, each at its own pace.

    Raises:
        TraceError: No session is left after the case's cuts.
    """
    plan = copy.copy(base)
    if case.duration_s and case.duration_s < plan.duration_s:
        _keep(plan, int(np.searchsorted(plan.at_s, case.duration_s, side="left")), case.duration_s)
    if case.limit and case.limit < len(plan):
        _keep(plan, case.limit, float(plan.at_s[case.limit]))
    if not len(plan):
        raise TraceError(f"{plan.name}: no session is left of it; allowed: a longer duration, a higher limit")
    own_rps = plan.calls / plan.duration_s
    plan.at_s = plan.at_s / case.load
    plan.duration_s /= case.load
    slo = {name: value for name, value in (("ttft_ms", case.slo.ttft_ms), ("tpot_ms", case.slo.tpot_ms)) if value}
    plan.options = msgspec.structs.replace(plan.options, **slo)
    lengths = np.array([plan.lengths(call) for which in plan.which.tolist() for call in plan.sessions[which].calls], np.int64)

    def call_of(request_id: str) -> Call:
        number, place = place_of(request_id)
        return plan.session(number).calls[place]

    return Load(
        name=plan.name,
        kind=kind,
        own_rps=own_rps,
        duration_s=plan.duration_s,
        prompt_tokens=lengths[:, 0],
        output_tokens=lengths[:, 1],
        # The target of a request without declared targets, for every task.
        slo_tpot_ms=plan.options.tpot_ms or 90.0 * plan.options.slo_scale,
        task=lambda _row, request_id: call_of(request_id).task,
        wanted_tokens=lambda _row, request_id: plan.lengths(call_of(request_id))[1],
        feed=lambda model, estimate: _session_feed(SessionDriver(plan, model=model, estimate=estimate)),
    )


def _session_feed(driver: SessionDriver) -> Feed:
    issued: list[Arrival] = []

    def first() -> Iterator[Arrival]:
        for arrival in driver.arrivals():
            issued.append(arrival)
            yield arrival

    def followups(ended: Ended, now_s: float) -> Iterable[Arrival]:
        following = driver.followups(ended, now_s)
        issued.extend(following)
        return following

    return Feed(first(), followups, issued, driver)


def _keep(plan: SessionPlan, count: int, duration_s: float) -> None:
    plan.at_s, plan.which, plan.importance = plan.at_s[:count], plan.which[:count], plan.importance[:count]
    plan.duration_s = duration_s
