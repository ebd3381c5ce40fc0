"""Traffic, worlds and telemetry for the tests of the digital twin."""

from math import inf
from typing import Any

import numpy as np
from control_kit import long_view
from message_kit import instance_view, system_snapshot
from msgspec.structs import replace

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.selectors.base import Pending, Proposal, Situation
from hmas.agents.meta.selectors.twin import TwinSelector
from hmas.agents.meta.twin.check import Check
from hmas.agents.meta.twin.evidence import BLOCK_SLOTS
from hmas.agents.meta.twin.fleet import SAMPLES_MIN, FleetModel
from hmas.agents.meta.twin.past_requests import PastRequest
from hmas.agents.meta.twin.replay import ReplayInstance, ReplayResult, ReplayScenario, replay
from hmas.agents.meta.twin.twin import Answer, Twin, TwinSettings
from hmas.controller.core.messages import Completion
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.controller.scheduling.settings import SchedulerSettings
from hmas.engines.base import EngineSnapshot
from hmas.engines.sim.profile import load_profile

PLAIN = SchedulerSettings(overdue="keep", fence=False)
SHORT, LONG = 40, 1200
FCFS, EDF, SJF = (Candidate(policy=name) for name in ("fcfs", "edf", "sjf"))


def asked(number: int, arrival_s: float, output: int, *, ttft_ms: float = 2000.0) -> PastRequest:
    return PastRequest(
        request=Request(id=f"r{number}", tenant="t", model="m", arrival_s=arrival_s, prompt_tokens=200),
        believed=Estimates(
            slo=Slo(ttft_ms=ttft_ms, tpot_ms=500.0), output_tokens=output, output_tokens_upper=1.5 * output, ttft_ms=0.0, tpot_ms=0.0
        ),
        output_tokens=output,
    )


def blocked(rate: float = 4.0, seconds: float = 120.0, seed: int = 1) -> list[PastRequest]:
    """Short requests in a hurry behind long ones that are in none."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0 / rate, int(rate * seconds)))
    return [
        asked(n, 1000.0 + at, LONG, ttft_ms=60_000.0) if n % 5 == 0 else asked(n, 1000.0 + at, SHORT) for n, at in enumerate(times.tolist())
    ]


def plant(name: str = "a", n_run: int = 32) -> ReplayInstance:
    return ReplayInstance(name=name, profile=load_profile("demo-small"), regulated=((0.0, Controls(n_run=n_run)),), ceiling=256)


def world(window=None, **more) -> ReplayScenario:
    window = tuple(window or blocked())
    first_s, last_s = (window[place].request.arrival_s for place in (0, -1))
    told: dict[str, Any] = {"asked": window, "plants": (plant(),), "settings": PLAIN, "from_s": first_s, "until_s": last_s + 300.0}
    return ReplayScenario(**(told | more))


def looked(candidate: Candidate, **more) -> ReplayResult:
    return replay(world(**more), candidate)[0]


def outlook(candidate: Candidate, good, asked_each: float = 10.0, first: int = 100) -> ReplayResult:
    slots = {first + place: (value, asked_each) for place, value in enumerate(good)}
    return ReplayResult(
        candidate=candidate, requests=round(asked_each * len(slots)), good=sum(good) / (asked_each * len(slots)), slots=slots
    )


def completion(number: int, arrival_s: float, output: int, **more) -> Completion:
    fields: dict[str, Any] = {
        "request_id": f"r{number}", "sent_s": arrival_s + 3.0, "tenant": "t", "model": "m", "outcome": OutcomeKind.COMPLETED,
        "arrival_s": arrival_s, "policy": "edf", "instance": "a", "prompt_tokens": 200, "output_tokens": output, "queue_ms": 10.0,
        "ttft_ms": 300.0, "service_ttft_ms": 120.0, "tpot_ms": 20.0, "total_ms": 300.0 + 20.0 * output, "ttft_slo_ms": 800.0,
        "tpot_slo_ms": 60.0, "predicted_output_tokens": 70.0, "running": 5, "slo_met": True,
    }  # fmt: skip
    return Completion(**(fields | more))


def engine(now_s: float, prompt: int = 0, generated: int = 0, **more) -> EngineSnapshot:
    told: dict[str, Any] = {
        "engine": "a",
        "taken_s": now_s,
        "healthy": True,
        "kv_usage": 0.1,
        "kv_capacity_tokens": 64_000,
        "prompt_tokens_total": prompt,
        "generation_tokens_total": generated,
    }
    return EngineSnapshot(**(told | more))


def told(now_s: float, engine_snapshot: EngineSnapshot | None = None, overdue: int = 0, **more):
    view: dict[str, Any] = {
        "name": "a",
        "in_flight": 6,
        "in_flight_tokens": 1500,
        "n_run": 12,
        "kv_committed": 0.1,
        "tpot_pressure": 0.2,
        "capacity_n_run": 64,
    }
    return system_snapshot(instance_view(**(view | {"engine": engine_snapshot} | more)), sent_s=now_s, overdue=overdue)


def served_fleet(rate_s: float = 0.02) -> tuple[FleetModel, float]:
    """A fleet whose one engine makes a token for each of 10 sequences every 20 ms."""
    fleet, now_s = FleetModel(), 100.0
    fleet.observe(told(now_s, engine(now_s)))
    for number in range(2 * SAMPLES_MIN):
        start_s, now_s = now_s, now_s + 50 * rate_s
        fleet.learn(completion(number, start_s, 51, ttft_ms=0.0, total_ms=50 * rate_s * 1000.0))
        fleet.observe(told(now_s, engine(now_s, 0, 500 * (number + 1))))
    return fleet, now_s


def twin_of(window, told_of=None, **more) -> tuple[Twin, float]:
    """A twin that has seen the window served by `demo-small`, or of its requests only `told_of`."""
    settings: dict[str, Any] = {"admission": PLAIN, "window_s": 120.0, "budget_s": 20.0}
    twin = Twin(FleetModel(lambda _name: load_profile("demo-small")), TwinSettings(**(settings | more)))
    for one in window if told_of is None else told_of:
        twin.traffic.keep(one)
    now_s = window[-1].request.arrival_s
    still = [one for one in window if not one.has_ended and one.request.arrival_s < now_s]
    waiting = [one for one in still if one.dispatched_s > now_s]
    overdue = sum(one.request.arrival_s + one.believed.slo.ttft_ms / 1000.0 <= now_s for one in waiting)
    snapshot = told(now_s, n_run=32, capacity_n_run=32, in_flight=len(still) - len(waiting), overdue=overdue)
    twin.observe(replace(snapshot, queued=len(waiting)))
    return twin, now_s


def lived(window) -> list[PastRequest]:
    """The window as it ended under first come first served, as far as it had by the arrival of the last."""
    _, records = replay(world(window), FCFS)
    of = {record.request_id: record for record in records}
    ended = []
    for one in window:
        record, came_s = of[one.request.id], one.request.arrival_s
        sent_s = came_s + record.queue_ms / 1000.0 if record.queue_ms >= 0.0 else inf
        ended_s = came_s + record.total_ms / 1000.0 if record.total_ms >= 0.0 else inf
        ended.append(replace(one, good=record.slo_met, served_tpot_ms=max(0.0, record.tpot_ms), dispatched_s=sent_s, ended_s=ended_s))
    until_s = window[-1].request.arrival_s
    return [one if one.ended_s <= until_s else replace(one, good=None, ended_s=inf) for one in ended]


def situation(now_s: float, current: Candidate = FCFS, since_s: float = float("-inf")) -> Situation:
    return Situation(
        view=long_view(now_s, policy=current.policy),
        current=current,
        start=FCFS,
        allowed=tuple(sorted(POLICIES)),
        since_s=since_s,
        now_s=now_s,
    )


def told_of(check: Check | None, **good: float) -> Answer:
    """A round in which so many of ten requests a slot are good under each policy, a bit more and a bit less by turns."""
    slots = [0.4 if place // BLOCK_SLOTS % 2 else -0.4 for place in range(10 * BLOCK_SLOTS)]
    outlooks = [outlook(FCFS, [5.0] * len(slots))]
    outlooks += [outlook(Candidate(policy=name), [value + each for each in slots]) for name, value in good.items()]
    return Answer(outlooks=tuple(outlooks), check=check, took_s=0.0, requests=400)


def answered(selector: TwinSelector, now_s: float, answer: Answer) -> Proposal:
    said = selector.propose(situation(now_s))
    assert isinstance(said, Pending)
    return said.finish(answer)
