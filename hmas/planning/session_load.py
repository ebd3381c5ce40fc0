"""Sessions as a case's workload: calls that depend on each other."""

import copy
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.controller.scheduling.results import Ended
from hmas.controller.simulation import Arrival
from hmas.planning.case import Case
from hmas.planning.loads import Feed, Load, Means
from hmas.workloads.session_driver import SessionDriver
from hmas.workloads.sessions import Call, SessionPlan
from hmas.workloads.table import Believe


class SessionLoad(Load):
    """Sessions that begin at given times; a higher load means more sessions per time, while each keeps its own pace."""

    def __init__(self, plan: SessionPlan, kind: str, own_rps: float) -> None:
        self.plan = plan
        self.name = plan.name
        self.kind = kind
        self.own_rps = own_rps
        self.count = plan.calls
        self.duration_s = plan.duration_s

    def task(self, row: int, request_id: str) -> TaskType:  # noqa: ARG002 - open workloads go by the row
        """As `Load`; the driver's ids contain session and call."""
        number, place = map(int, request_id[1:].split("-"))
        return self.plan.sessions[int(self.plan.which[number])].calls[place].task

    def longer_than(self, tokens: int) -> int:
        """As `Load`."""
        return sum(call.prompt_tokens + call.output_tokens > tokens for call in self._calls())

    def means(self) -> Means:
        """As `Load`, with the targets of a request without declared targets, for every task."""
        lengths = np.array([(call.prompt_tokens, call.output_tokens) for call in self._calls()], float)
        prompt, output = lengths.mean(axis=0).tolist()
        return Means(prompt, output, self.plan.options.tpot_ms or 90.0 * self.plan.options.slo_scale)

    def feed(self, model: str, estimate: Believe | None) -> Feed:
        """As `Load`."""
        driver = SessionDriver(self.plan, model=model, estimate=estimate)
        issued: list[Arrival] = []

        def first() -> Iterator[Arrival]:
            for arrival in driver.arrivals():
                issued.append(arrival)
                yield arrival

        def followups(ended: Ended, now_s: float) -> Iterable[Arrival]:
            following = driver.followups(ended, now_s)
            issued.extend(following)
            return following

        return Feed(first(), followups, issued, driver.ended)

    def _calls(self) -> Iterator[Call]:
        for which in self.plan.which.tolist():
            yield from self.plan.sessions[which].calls


def open_sessions(case: Case, base: SessionPlan, kind: str) -> SessionLoad:
    """Cuts and scales a plan and sets its targets by the case's settings; `limit` counts sessions.

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
    return SessionLoad(plan, kind, own_rps)


def _keep(plan: SessionPlan, count: int, duration_s: float) -> None:
    plan.at_s, plan.which, plan.importance = plan.at_s[:count], plan.which[:count], plan.importance[:count]
    plan.duration_s = duration_s
