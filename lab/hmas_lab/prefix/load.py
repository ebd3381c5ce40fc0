"""Traffic whose prompts share beginnings: chats with histories, prompts of applications, one prompt for all, and Mooncake's trace."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.controller.scheduling.results import Ended
from hmas.controller.simulation import Arrival
from hmas.loadgen.arrivals import poisson_times
from hmas.loadgen.streams import stream
from hmas.workloads.drawn import TimedOptions, cut_to_count
from hmas.workloads.replay import ReplayOptions, mooncake
from hmas.workloads.session_driver import SessionDriver
from hmas.workloads.sessions import Call, Session, SessionPlan

TRACE = Path("arrivals", "mooncake_conversation.jsonl.gz")
TTFT_MS, TPOT_MS = 3000.0, 100.0
TRACE_TTFT_MS = 15_000.0
"""Its prompts have 12,000 tokens in the mean, which one instance computes in three seconds."""
CONTEXT = 32_768
TURNS_MEAN, TURNS_MOST = 5.0, 30
PAUSE_MEAN_S, PAUSE_LEAST_S = 8.0, 1.0
DRAWN = 2000
"""Sessions that a run draws from."""


class Shape(NamedTuple):
    """Drawn traffic.

    Attributes:
        words: What it is.
        apps: How many system prompts there are; they are used unevenly (Zipf with exponent 1).
        system_tokens: Shortest and longest system prompt, drawn with an even logarithm.
        turns: Whether a session goes on after its first answer.
        longer: A run has so many times the requests of the others: sessions live for a minute, and a run must outlast several of them.
    """

    words: str
    apps: int
    system_tokens: tuple[int, int]
    turns: bool
    longer: int = 1


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "chats": Shape(
            "chats of 5 turns in the mean, each with its history, under 8 system prompts of 200 to 4,000 tokens", 8, (200, 4000), True, 4
        ),
        "apps": Shape("single questions under 100 system prompts of 1,000 to 16,000 tokens", 100, (1000, 16_000), False),
        "one-prompt": Shape("single questions, all under one system prompt of 8,000 tokens", 1, (8000, 8000), False),
    }
)
MOONCAKE = "mooncake"
WORKLOADS = (*SHAPES, MOONCAKE)
WORDS = {**{name: shape.words for name, shape in SHAPES.items()}, MOONCAKE: "Mooncake's recorded conversation trace, scaled in time"}


class Load(NamedTuple):
    """What a run gets: its requests, and those that follow from the end of one. Each run needs a new one."""

    arrivals: Iterable[Arrival]
    followups: Callable[[Ended, float], list[Arrival]] | None


def load(name: str, seed: int, requests: int, rate: float, model: str) -> Load:
    """About so many requests, at about this rate.

    Args:
        name: Of `WORKLOADS`.
        seed: Of all draws.
        requests: How many, before `Shape.longer`; of the trace, its first ones.
        rate: Requests per second.
        model: That they name.

    Raises:
        TraceError: Mooncake's trace is not there.
    """
    if name == MOONCAKE:
        replayed = ReplayOptions(rate=rate, seed=seed, limit=requests, ttft_ms=TRACE_TTFT_MS, tpot_ms=TPOT_MS)
        return Load(mooncake(replayed, _trace()).arrivals(model=model), None)
    shape = SHAPES[name]
    turns = TURNS_MEAN if shape.turns else 1.0
    options = TimedOptions(
        rate=rate / turns,
        count=max(1, round(requests * shape.longer / turns)),
        seed=seed,
        ttft_ms=TTFT_MS,
        tpot_ms=TPOT_MS,
        context=CONTEXT,
    )
    times = poisson_times(options.rate, options.horizon_s, stream(seed, "arrivals"))
    at_s, duration_s = cut_to_count(times, options)
    driver = SessionDriver(SessionPlan(name, sessions(shape, seed), at_s, options, duration_s), model=model)
    return Load(driver.arrivals(), driver.followups)


def there(name: str) -> bool:
    """Whether this workload can be had: Mooncake's trace is not part of the project."""
    return name != MOONCAKE or (bool(os.environ.get("HMAS_DATA_DIR")) and _trace().exists())


def _trace() -> Path:
    folder = os.environ.get("HMAS_DATA_DIR")
    if not folder:
        raise TraceError(f"{MOONCAKE}: HMAS_DATA_DIR is not set; allowed: the folder of the public data, which has {TRACE}")
    return Path(folder, TRACE)


def sessions(shape: Shape, seed: int) -> list[Session]:
    """Sessions to draw from: questions of 60 tokens at the median, answers of 200, both log-normal."""
    rng = stream(seed, "prefix")
    least, most = np.log(shape.system_tokens)
    system = np.rint(np.exp(least + rng.random(shape.apps) * (most - least))).astype(int)
    share = 1.0 / np.arange(1, shape.apps + 1)
    apps = rng.choice(shape.apps, DRAWN, p=share / share.sum())
    found = []
    for number, app in enumerate(apps.tolist()):
        turns = int(min(TURNS_MOST, rng.geometric(1.0 / TURNS_MEAN))) if shape.turns else 1
        calls, before, prompt = [], int(system[app]), int(system[app])
        for turn in range(turns):
            prompt += int(np.clip(rng.lognormal(np.log(60.0), 1.0), 4, 4000))
            answer = int(np.clip(rng.lognormal(np.log(200.0), 0.8), 4, 1500))
            pause_s = PAUSE_LEAST_S + float(rng.exponential(PAUSE_MEAN_S - PAUSE_LEAST_S))
            calls.append(
                Call(
                    stage=turn,
                    prompt_tokens=prompt,
                    output_tokens=answer,
                    prefix_tokens=before,
                    pause_s=pause_s,
                    task=TaskType.DIALOGUE,
                )
            )
            before = prompt
            prompt += answer
        found.append(Session(id=f"{number}", source=f"app-{app:03d}", calls=tuple(calls)))
    return found
