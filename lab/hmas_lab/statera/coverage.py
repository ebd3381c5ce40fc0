"""How often answers come out longer than their bound, against epsilon, where lengths stay as they are and where they drift."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hmas.agents.statera.conformal import LengthCalibrator
from hmas.controller.core.messages import Completion
from hmas.controller.core.types import OutcomeKind, Request
from hmas.controller.scheduling.default_estimates import History
from hmas_lab.statera.streams import SCENARIOS, Pool, Sample, draw

EPSILONS = (0.05, 0.1, 0.2)
METHODS = ("window", "adaptive")
"""The sliding window alone, and with the adaptive risk."""
COUNT = 4000
WARM = 300
"""Requests at the start, and after the change, that are looked at by themselves."""
STRETCH = 100
"""Consecutive requests over which the worst rate is taken."""


def study(data: Path | None, seeds: Sequence[int], count: int = COUNT) -> dict[str, Any]:
    """Every scenario, epsilon and method, means over the seeds. Predictions are those of the gateway's own history."""
    rows: list[dict[str, Any]] = []
    pools = {seed: Pool(data, count, seed) for seed in seeds}
    for scenario in SCENARIOS:
        for epsilon in EPSILONS:
            for method in METHODS:
                adaptive = method == "adaptive"
                tried = [_try(draw(pool, scenario, count, seed), epsilon, adaptive=adaptive) for seed, pool in pools.items()]
                means = {name: round(fmean(one[name] for one in tried), 4) for name in tried[0]}
                rows.append({"scenario": scenario, "epsilon": epsilon, "method": method, **means})
    real = all(pool.real for pool in pools.values())
    return {"lengths": "real" if real else "drawn", "count": count, "seeds": list(seeds), "rows": rows}


def _try(samples: Sequence[Sample], epsilon: float, *, adaptive: bool) -> dict[str, float]:
    calibrator, history = LengthCalibrator(epsilon, adaptive=adaptive), History()
    missed, booked = np.zeros(len(samples)), np.zeros(len(samples))
    for number, sample in enumerate(samples):
        request = Request(id=str(number), tenant=sample.tenant, model="m", arrival_s=float(number), prompt_tokens=sample.prompt_tokens)
        predicted = max(1.0, sample.factor * history.estimate(request).output_tokens)
        bound = calibrator.add_tokens(sample.prompt_tokens)
        upper = predicted + (bound if bound is not None else 0.0)
        missed[number] = sample.output_tokens > upper
        booked[number] = max(1.0, upper)
        completion = _completion(number, sample, predicted)
        calibrator.learn(completion)
        history.learn(completion)
    middle = len(samples) // 2
    scored = missed[WARM:]
    rates = np.convolve(scored, np.ones(STRETCH) / STRETCH, mode="valid")
    real = np.array([sample.output_tokens for sample in samples])
    return {
        "rate": float(scored.mean()),
        "after_change": float(missed[middle : middle + WARM].mean()),
        "late": float(missed[middle + WARM :].mean()),
        "worst_stretch": float(rates.max()),
        "booked_over_real": float(booked[WARM:].sum() / real[WARM:].sum()),
    }


def _completion(number: int, sample: Sample, predicted: float) -> Completion:
    return Completion(
        request_id=str(number),
        sent_s=float(number),
        tenant=sample.tenant,
        model="m",
        outcome=OutcomeKind.COMPLETED,
        arrival_s=float(number),
        policy="fcfs",
        prompt_tokens=sample.prompt_tokens,
        output_tokens=sample.output_tokens,
        predicted_output_tokens=predicted,
    )
