"""The real vLLM on this machine's CPU: profiled at two loads, three others predicted."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from engines.sim.profile import Profile
from hmas.demo.vllm_engine import VllmServer, running_vllm
from hmas.lab.fidelity.vllm_run import Medians, Seen, measure, medians, simulated, wishes
from hmas.lab.fitting.coefficients import Misfit, fit_coefficients
from hmas.lab.fitting.design import Bounds, plan
from hmas.lab.fitting.measured import Stated, limits_of, profile_of
from hmas.lab.fitting.probe import Findings, probe
from hmas.lab.fitting.target import Target, look_at

MODEL = "tiny"


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    Attributes:
        fit_concurrency: The two loads that the profile is fitted to: numbers of requests that decode together.
        shares: The loads that are predicted: mean arrival rates over the rate that the profile says can be served.
        seconds: How long each load lasts.
        rounds: How often the profile is taken and each load is run, in alternating order.
    """

    fit_concurrency: tuple[int, int] = (2, 12)
    shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    seconds: float = 20.0
    rounds: int = 2
    seed: int = 1


class LoadPair(msgspec.Struct, frozen=True, kw_only=True):
    """One load of one round: the live engine, and the simulator on the same arrivals."""

    share: float
    rate_rps: float
    measured: Medians
    predicted: Medians

    @property
    def errors(self) -> dict[str, float]:
        """Signed relative errors of the medians."""
        return {
            "ttft": self.predicted.ttft_ms / self.measured.ttft_ms - 1.0,
            "tpot": self.predicted.tpot_ms / self.measured.tpot_ms - 1.0,
        }


class VllmOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The profile that was fitted, its misfits, and every pair."""

    profile: Profile
    misfits: tuple[Misfit, ...]
    pairs: tuple[LoadPair, ...]
    rate_rps: float


async def study(server: VllmServer, folder: Path, settings: VllmSettings, tell: Callable[[str], None]) -> VllmOutcome:
    """Starts vLLM, measures, compares, stops it.

    Every round probes first and then runs its loads, every second round in reverse order, so that a slow spell of the machine meets probe
    and loads alike. The profile is fitted to the probes of all rounds together.

    Raises:
        DemoBroken: vLLM does not start.
        ProbeError: It refuses or breaks off.
    """
    async with running_vllm(server, folder, MODEL) as url:
        target = await look_at(url, model=MODEL)
        stated = Stated(gpu="cpu", dtype="float32", max_num_seqs=server.max_num_seqs, max_num_batched_tokens=server.max_num_batched_tokens)
        limits = limits_of(target, stated)
        bounds = Bounds(
            max_model_len=limits.max_model_len,
            kv_tokens=limits.kv_tokens,
            max_num_seqs=limits.max_num_seqs,
            concurrency=settings.fit_concurrency,
            repeats=2,
        )
        findings = Findings(prefills=[], decodes=[])
        live: list[tuple[float, float, list[Seen]]] = []
        rate_rps = 0.0
        for number in range(settings.rounds):
            found = await probe(target, plan(bounds), max_seconds=120.0, seed=settings.seed + number)
            findings = _together(findings, found)
            tell(f"round {number + 1}: {len(found.prefills)} prompts and {len(found.decodes)} batches in {found.elapsed_s:.0f} s")
            if not number:
                first = fit_coefficients(findings.prefills, findings.decodes, tokens_per_step=limits.max_num_batched_tokens)
                rate_rps = capacity_rps(
                    profile_of("first", target=target, stated=stated, limits=limits, findings=findings, fit=first), settings.seed
                )
            for share in settings.shares if number % 2 == 0 else reversed(settings.shares):
                seen = await _run(target, share * rate_rps, settings, limits.max_model_len, number)
                live.append((share, share * rate_rps, seen))
                tell(f"round {number + 1}: {share:.0%} of {rate_rps:.2f} requests/s, {len(seen)} requests")
    fit = fit_coefficients(findings.prefills, findings.decodes, tokens_per_step=limits.max_num_batched_tokens)
    profile = profile_of("vllm-cpu", target=target, stated=stated, limits=limits, findings=findings, fit=fit)
    pairs = [
        LoadPair(share=share, rate_rps=rate, measured=medians(seen), predicted=medians(simulated(profile, seen)))
        for share, rate, seen in live
    ]
    return VllmOutcome(profile=profile, misfits=fit.misfits, pairs=tuple(pairs), rate_rps=rate_rps)


def capacity_rps(profile: Profile, seed: int) -> float:
    """Requests per second that the profile's engine serves of the loads' mixture, from a backlog in virtual time."""
    backlog = [
        Seen(0.0, wish.prompt_tokens, wish.output_tokens, 0.0, 0.0) for wish in wishes(40.0, 10.0, context=profile.max_model_len, seed=seed)
    ]
    ends = sorted(1e-3 * (one.ttft_ms + max(0.0, one.tpot_ms) * (one.output_tokens - 1)) for one in simulated(profile, backlog))
    low, high = len(ends) // 5, 4 * len(ends) // 5
    return float((high - low) / (ends[high] - ends[low]))


def by_share(outcome: VllmOutcome) -> dict[float, dict[str, float]]:
    """Per load: medians over the rounds of what was measured and predicted, and of the errors; the spread of what was measured."""
    rows: dict[float, dict[str, float]] = {}
    for share in sorted({pair.share for pair in outcome.pairs}):
        pairs = [pair for pair in outcome.pairs if pair.share == share]
        row: dict[str, float] = {"rate_rps": pairs[0].rate_rps, "requests": float(sum(pair.measured.requests for pair in pairs))}
        for name in ("ttft", "tpot"):
            measured = [getattr(pair.measured, f"{name}_ms") for pair in pairs]
            predicted = [getattr(pair.predicted, f"{name}_ms") for pair in pairs]
            row[f"{name}_ms_measured"] = float(np.median(measured))
            row[f"{name}_ms_predicted"] = float(np.median(predicted))
            row[f"{name}_spread"] = float((max(measured) - min(measured)) / np.median(measured))
            row[f"{name}_error"] = float(np.median([pair.errors[name] for pair in pairs]))
        rows[share] = row
    return rows


async def _run(target: Target, rate_rps: float, settings: VllmSettings, context: int, number: int) -> list[Seen]:
    wanted = wishes(rate_rps, settings.seconds, context=context, seed=settings.seed + 100 * number)
    return await measure(target, wanted, seed=settings.seed + 1000 + number)


def _together(one: Findings, other: Findings) -> Findings:
    return Findings(
        prefills=one.prefills + other.prefills,
        decodes=one.decodes + other.decodes,
        sent=one.sent + other.sent,
        planned=one.planned + other.planned,
        tokens=one.tokens + other.tokens,
        elapsed_s=one.elapsed_s + other.elapsed_s,
    )
