"""Traffic, worlds and telemetry for the tests of the digital twin."""

import numpy as np
from message_kit import instance_view, system_snapshot

from agents.meta.candidate import Candidate
from agents.meta.twin.fleet import SAMPLES_MIN, FleetModel
from agents.meta.twin.replay import Outlook, Plant, World, replay
from agents.meta.twin.traffic import Asked
from controller.core.messages import Completion
from controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from controller.scheduling.outcomes import SchedulerSettings
from engines.base import EngineSnapshot
from engines.sim.profile import load_profile

PLAIN = SchedulerSettings(overdue="keep", fence=False)
SHORT, LONG = 40, 1200
FCFS, EDF, SJF = (Candidate(policy=name) for name in ("fcfs", "edf", "sjf"))


def asked(number: int, arrival_s: float, output: int, *, ttft_ms: float = 2000.0) -> Asked:
    return Asked(
        request=Request(id=f"r{number}", tenant="t", model="m", arrival_s=arrival_s, prompt_tokens=200),
        believed=Estimates(
            slo=Slo(ttft_ms=ttft_ms, tpot_ms=500.0), output_tokens=output, output_tokens_upper=1.5 * output, ttft_ms=0.0, tpot_ms=0.0
        ),
        output_tokens=output,
    )


def blocked(rate: float = 4.0, seconds: float = 120.0, seed: int = 1) -> list[Asked]:
    """Short requests in a hurry behind long ones that are in none."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0 / rate, int(rate * seconds)))
    return [
        asked(n, 1000.0 + at, LONG, ttft_ms=60_000.0) if n % 5 == 0 else asked(n, 1000.0 + at, SHORT) for n, at in enumerate(times.tolist())
    ]


def plant(name: str = "a", n_run: int = 32) -> Plant:
    return Plant(name=name, profile=load_profile("demo-small"), regulated=((0.0, Controls(n_run=n_run)),), ceiling=256)


def world(window=None, **more) -> World:
    window = tuple(window or blocked())
    first_s, last_s = (window[place].request.arrival_s for place in (0, -1))
    told = {"asked": window, "plants": (plant(),), "settings": PLAIN, "from_s": first_s, "until_s": last_s + 300.0}
    return World(**(told | more))


def looked(candidate: Candidate, **more) -> Outlook:
    return replay(world(**more), candidate)[0]


def outlook(candidate: Candidate, good, asked_each: float = 10.0, first: int = 100) -> Outlook:
    slots = {first + place: (value, asked_each) for place, value in enumerate(good)}
    return Outlook(candidate=candidate, requests=round(asked_each * len(slots)), good=sum(good) / (asked_each * len(slots)), slots=slots)


def completion(number: int, arrival_s: float, output: int, **more) -> Completion:
    fields = {
        "request_id": f"r{number}", "sent_s": arrival_s + 3.0, "tenant": "t", "model": "m", "outcome": OutcomeKind.COMPLETED,
        "arrival_s": arrival_s, "policy": "edf", "instance": "a", "prompt_tokens": 200, "output_tokens": output, "queue_ms": 10.0,
        "ttft_ms": 300.0, "service_ttft_ms": 120.0, "tpot_ms": 20.0, "total_ms": 300.0 + 20.0 * output, "ttft_slo_ms": 800.0,
        "tpot_slo_ms": 60.0, "predicted_output_tokens": 70.0, "running": 5, "slo_met": True,
    }  # fmt: skip
    return Completion(**(fields | more))


def engine(now_s: float, prompt: int = 0, generated: int = 0, **more) -> EngineSnapshot:
    told = {"kv_usage": 0.1, "kv_capacity_tokens": 64_000, "prompt_tokens_total": prompt, "generation_tokens_total": generated}
    return EngineSnapshot(**({"engine": "a", "taken_s": now_s, "healthy": True} | told | more))


def told(now_s: float, engine_snapshot: EngineSnapshot | None = None, overdue: int = 0, **more):
    view = {
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
