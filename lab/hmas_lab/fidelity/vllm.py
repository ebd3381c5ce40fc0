"""The real vLLM on this machine's CPU: profiled at two loads, three others predicted."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from hmas.engines.sim.profile import Profile
from hmas.profiling.coefficients import Misfit, fit_coefficients
from hmas.profiling.design import Bounds, plan
from hmas.profiling.measured import Stated, limits_of, profile_of
from hmas.profiling.probe import Findings, probe
from hmas.profiling.target import Target, look_at
from hmas_lab.cores import beside
from hmas_lab.fidelity.vllm_run import Medians, Seen, measure, medians, simulated, wishes
from hmas_lab.vllm_engine import VllmServer, running_vllm

MODEL = "tiny"


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    Attributes:
        fit_concurrency: The two loads that the profile is fitted to: numbers of requests that decode together.
        in_flight: The loads that are predicted: requests in flight in the mean, from which the profile gives the arrival rate. Beyond a
            dozen or so a small model's engine waits for its own front end, and for the client, on the same two cores.
        seconds: How long each load lasts.
        rounds: How often the profile is taken and each load is run, in alternating order.
    """

    fit_concurrency: tuple[int, int] = (2, 12)
    in_flight: tuple[float, ...] = (1.0, 4.0, 8.0)
    seconds: float = 20.0
    rounds: int = 2
    seed: int = 1


class LoadPair(msgspec.Struct, frozen=True, kw_only=True):
    """One load of one round: the live engine, and the simulator on the same arrivals."""

    in_flight: float
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


async def study(server: VllmServer, folder: Path, settings: VllmSettings, tell: Callable[[str], None]) -> VllmOutcome:
    """Starts vLLM, compares, stops it. As `compare`. vLLM's worker has its cores to itself.

    Raises:
        DemoBroken: vLLM does not start.
        ProbeError: It refuses or breaks off.
    """
    with beside(server.cores) as apart:
        if not apart:
            tell("no core beside those that vLLM computes on: its speed will depend on what else runs")
        return await _study(server, folder, settings, tell)


async def _study(server: VllmServer, folder: Path, settings: VllmSettings, tell: Callable[[str], None]) -> VllmOutcome:
    async with running_vllm(server, folder, MODEL) as url:
        target = await look_at(url, model=MODEL)
        stated = Stated(gpu="cpu", dtype="float32", max_num_seqs=server.max_num_seqs, max_num_batched_tokens=server.max_num_batched_tokens)
        return await compare(target, stated, settings, tell)


async def compare(target: Target, stated: Stated, settings: VllmSettings, tell: Callable[[str], None]) -> VllmOutcome:
    """Profiles an engine at two loads, runs others on it, and predicts those.

    Every round probes first and then runs its loads, every second round in reverse order, so that a slow spell of the machine meets probe
    and loads alike. The profile is fitted to the probes of all rounds together; the arrival rates follow from the first round's.

    Raises:
        ProbeError: The engine refuses or breaks off.
    """
    limits = limits_of(target, stated)
    bounds = Bounds(
        max_model_len=limits.max_model_len,
        kv_tokens=limits.kv_tokens,
        max_num_seqs=limits.max_num_seqs,
        concurrency=settings.fit_concurrency,
        repeats=2,
    )

    def fitted(findings: Findings) -> tuple[Profile, tuple[Misfit, ...]]:
        fit = fit_coefficients(findings.prefills, findings.decodes, tokens_per_step=limits.max_num_batched_tokens)
        return profile_of("fitted", target=target, stated=stated, limits=limits, findings=findings, fit=fit), fit.misfits

    findings = Findings(prefills=[], decodes=[])
    live: list[tuple[float, float, list[Seen]]] = []
    rates: dict[float, float] = {}
    for number in range(settings.rounds):
        found = await probe(target, plan(bounds), max_seconds=120.0, seed=settings.seed + number)
        findings = _together(findings, found)
        tell(f"round {number + 1}: {len(found.prefills)} prompts and {len(found.decodes)} batches in {found.elapsed_s:.0f} s")
        if not rates:
            first, _ = fitted(findings)
            rates = {in_flight: in_flight / _stay_s(first, in_flight) for in_flight in settings.in_flight}
        for in_flight in settings.in_flight if number % 2 == 0 else reversed(settings.in_flight):
            wanted = wishes(rates[in_flight], settings.seconds, context=limits.max_model_len, seed=settings.seed + 100 * number)
            seen = await measure(target, wanted, seed=settings.seed + 1000 + number)
            live.append((in_flight, rates[in_flight], seen))
            tell(f"round {number + 1}: {rates[in_flight]:.2f} requests/s, {len(seen)} requests")
    profile, misfits = fitted(findings)
    pairs = [
        LoadPair(in_flight=in_flight, rate_rps=rate, measured=medians(seen), predicted=medians(simulated(profile, seen)))
        for in_flight, rate, seen in live
    ]
    return VllmOutcome(profile=profile, misfits=misfits, pairs=tuple(pairs))


def _stay_s(profile: Profile, in_flight: float) -> float:
    """How long a request of the loads' mixture stays, about, beside so many others."""
    sample = wishes(50.0, 10.0, context=profile.max_model_len, seed=0)
    prompt, output = fmean(wish.prompt_tokens for wish in sample), fmean(wish.output_tokens for wish in sample)
    seqs = max(1, round(in_flight))
    cached = round(seqs * (prompt + output / 2))
    step_s = profile.step_duration_s(prefill_tokens=0, prefill_pairs=0, decode_seqs=seqs, decode_kv_tokens=cached)
    prompt_s = profile.step_duration_s(
        prefill_tokens=round(prompt), prefill_pairs=round(prompt * prompt / 2), decode_seqs=0, decode_kv_tokens=0
    )
    # Each of those beside it interrupts it by its prompt once in its own stay, as it does them.
    return 1e-3 * profile.request_ms + seqs * prompt_s + output * step_s


def by_load(outcome: VllmOutcome) -> dict[float, dict[str, float]]:
    """Per load: medians over the rounds of what was measured and predicted, and of the errors; the spread of what was measured."""
    rows: dict[float, dict[str, float]] = {}
    for in_flight in sorted({pair.in_flight for pair in outcome.pairs}):
        pairs = [pair for pair in outcome.pairs if pair.in_flight == in_flight]
        row: dict[str, float] = {"rate_rps": pairs[0].rate_rps, "requests": float(sum(pair.measured.requests for pair in pairs))}
        for name in ("ttft", "tpot"):
            measured = [getattr(pair.measured, f"{name}_ms") for pair in pairs]
            predicted = [getattr(pair.predicted, f"{name}_ms") for pair in pairs]
            row[f"{name}_ms_measured"] = float(np.median(measured))
            row[f"{name}_ms_predicted"] = float(np.median(predicted))
            row[f"{name}_spread"] = float((max(measured) - min(measured)) / np.median(measured))
            row[f"{name}_error"] = float(np.median([pair.errors[name] for pair in pairs]))
        rows[in_flight] = row
    return rows


def _together(one: Findings, other: Findings) -> Findings:
    return Findings(
        prefills=one.prefills + other.prefills,
        decodes=one.decodes + other.decodes,
        sent=one.sent + other.sent,
        planned=one.planned + other.planned,
        tokens=one.tokens + other.tokens,
        elapsed_s=one.elapsed_s + other.elapsed_s,
    )
