"""The TPOT guard on an engine model with noise: tight targets near capacity, a tenant beside a flood, an engine that is slow.

The engine's steps are those of a small model on two CPU cores, or of the demo's engine, each times a lognormal factor (sigma 0.25), and now
and then it stands still for 30 to 120 ms. Without that noise nothing near capacity misses a TPOT target, and every rule looks alike.

    python lab/benchmarks/guard_study.py            # tight targets at rising rates: good requests in percent, a few minutes
    python lab/benchmarks/guard_study.py --flood    # what a tenant within its share keeps of what it has alone
    python lab/benchmarks/guard_study.py --slow     # clients that declare no targets, on an engine too slow for the usual ones
    python lab/benchmarks/guard_study.py --steep    # the same where each sequence makes the others slower, beside fixed windows that shed
    python lab/benchmarks/guard_study.py --busy     # tight targets on a machine that others hold up: good and served in %, P95 TTFT in s
    python lab/benchmarks/guard_study.py --gpu      # tight targets on a GPU's model without noise, beside fixed windows that shed
    python lab/benchmarks/guard_study.py --prompts  # tight targets on an engine whose prompts take a good part of its time
    python lab/benchmarks/guard_study.py --phases   # the same on a machine that is slow for a while, now and then, as shared ones are
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np
from noisy_engine import DICE, MACHINE, noisy

from hmas.controller.config.section import SloConfig
from hmas.controller.core.slo import BASE_SLO, TargetTable
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo, TaskType
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.scheduling.refusals import completion_of
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import SHIPPED, InstanceSpec
from hmas.controller.simulation import Arrival, RequestRecord, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile, load_profile
from hmas.planning.case import PRESETS, Case, SloTarget
from hmas.planning.fleet import Fleet, Group, Kind
from hmas.planning.loads import Feed, open_load
from hmas.planning.running import run_case
from hmas.workloads.table import Believe

PASS, PRODUCT, ALONE, NO_GUARD = "pass-through", "hmas", "no agents", "no guard"
KEEP, BY_END = " keep", " by end"
"""Ends the name of a fixed window that refuses nothing, or whole answers only when their end would be too late."""
RATES = ((6, 100, 15), (8, 100, 15), (10, 100, 15), (14, 100, 15), (20, 100, 15), (22, 300, 30), (26, 300, 30), (32, 300, 30))
"""Requests per second, and targets for TTFT and TPOT in ms. The engine completes 32 such requests a second at most."""
CAPS = (12, 16, 20, 24)
BUSY = ((0.05, 0.15, 1.0), (0.15, 0.06, 1.5), (0.3, 0.025, 2.0))
"""Share of the steps that other processes hold up, for how many seconds in the mean, and how much longer every step takes beside them."""
BUSY_RATES = ((2, 100, 15), (4, 100, 15), (6, 100, 15), (6, 300, 30), (8, 300, 30))
PHASES = ((0.0, 0.0, 8.0, 2.5), (0.03, 0.08, 8.0, 2.5), (0.1, 0.05, 3.0, 2.0), (0.03, 0.08, 60.0, 2.5))
"""As the first two in `BUSY`; the seconds that a phase lasts in the mean, and how much longer every step takes in every other one."""
PHASE_RATES = ((4, 100, 15), (6, 100, 15), (9, 100, 15), (5, 300, 30), (6, 300, 30), (9, 300, 30), (12, 300, 30))
LIGHT = {"step_ms": 7.0, "prefill_ms_per_token": 0.07, "decode_ms_per_seq": 0.65}
HEAVY = {"step_ms": 8.0, "prefill_ms_per_token": 0.23, "decode_ms_per_seq": 0.4}
"""A small model whose engine has a machine's two cores, and as vLLM was measured beside load tool and gateway."""
FLOOD_RPS, COLD_S = 10.0, 4.0
"""What the flood study takes for the capacity of its two engines, and the seconds in which nothing is known of them and nothing counts."""
PROMPTS = {"step_ms": 12.0, "prefill_ms_per_token": 0.5, "decode_ms_per_seq": 0.6, "held": 0.03, "held_s": 0.05}
"""A small model on a machine two to three times as slow as usual, as vLLM was measured there: a prompt takes as long as four steps."""
PROMPT_RATES = ((4, 300, 30), (5, 200, 25), (5, 300, 30), (6, 300, 30), (6, 300, 40), (7, 300, 30), (8, 300, 40), (9, 300, 30))
CONTEXT, CAP = 1024, 128
SLOW = ((0.5, 60), (0.7, 60), (0.9, 60), (1.1, 60), (0.2, 600), (0.25, 600), (0.3, 600), (0.4, 600))
"""Requests per second, and for how many seconds they come. The engine has room for six contexts, and answers of up to 80 s."""
STRETCH = 2.8
"""How much longer than usual the targets are on the slow engine: a request alone has 56 ms a token."""
STEEP = ((0.3, 60), (0.5, 60), (0.7, 60), (0.9, 60), (1.1, 60), (0.3, 300), (0.5, 300))
STEEP_CAPS = (6, 8, 10, 12, 16)
STEEP_STRETCH = 4.5
"""A request alone has 89 ms a token on the steep engine, and every further one costs all others 14 ms a token."""
GPU = "h100-qwen3-14b"
GPU_RATES = ((18, 512, 128, 500, 25), (20, 512, 128, 500, 25), (22, 512, 128, 500, 25), (26, 512, 128, 500, 25), (13, 800, 300, 1000, 25))
"""Requests per second, tokens in and out, and targets for TTFT and TPOT in ms. The engine keeps 25 ms a token up to about 20 a second."""
GPU_CAPS = (48, 64, 80)


class Shown(NamedTuple):
    """Percent of good and of served requests, and the P95 of the seconds to the first token, or to the refusal."""

    good: float
    served: float
    p95_s: float


def tight(rate_rps: float, slo: SloTarget, arm: str, seed: int, *, heavy: bool = False, **busy: float) -> Shown:
    """What comes of requests of 128 tokens in and 32 out, over a minute. `busy`: as in `Noisy`."""
    return _of_chats(noisy(**(HEAVY if heavy else LIGHT), **busy), rate_rps, slo, arm, seed)


def _of_chats(cpu: Profile, rate_rps: float, slo: SloTarget, arm: str, seed: int) -> Shown:
    cpu = msgspec.structs.replace(cpu, prefill_ms_per_ktoken_sq=0.0, decode_ms_per_kv_ktoken=0.0)
    return of_one_tenant(cpu, f"poisson:rate={rate_rps},duration=60,prompt=128,output=32", slo, arm, seed)


def of_one_tenant(profile: Profile, workload: str, slo: SloTarget, arm: str, seed: int) -> Shown:
    """What comes of requests on one engine, all of one tenant."""
    MACHINE.start(seed)
    kind = Kind(profile=profile, n_run=256, token_budget=profile.max_num_batched_tokens, model="m")
    fleet = Fleet(groups=[Group(kind=kind, count=1)])
    product = arm in {PRODUCT, ALONE, NO_GUARD}
    shipped = msgspec.structs.replace(SHIPPED, tpot_guard=0.0) if arm == NO_GUARD else SHIPPED
    case = Case(
        workload=workload,
        fleet=fleet if product or arm == PASS else fleet.with_window(int(arm)),
        policy="robust-edf" if product else "fcfs",
        admission=shipped if product else PRESETS["open" if arm == PASS else "shed"],
        agents=("statera",) if arm == PRODUCT else (),
        slo=slo,
        seed=seed,
    )
    load = open_load(case)

    def with_tenant(model: str, estimate: Believe | None) -> Feed:
        feed = load.feed(model, estimate)
        arrivals = (replace(one, request=msgspec.structs.replace(one.request, tenant="t")) for one in feed.arrivals)
        return replace(feed, arrivals=arrivals)

    DICE.seed(seed)
    records = run_case(case, load=replace(load, feed=with_tenant)).records
    served = fmean(record.outcome == OutcomeKind.COMPLETED for record in records)
    waits_s = [(record.total_ms if record.ttft_ms < 0.0 else record.ttft_ms) / 1000.0 for record in records]
    return Shown(100.0 * fmean(record.slo_met for record in records), 100.0 * served, float(np.quantile(waits_s, 0.95)))


def chats(
    tenant: str, rate_rps: float, seed: int, weight: float, history: History, *, seconds: float = 40.0, whole: float | None = None
) -> Iterator[Arrival]:
    """Requests with the sizes of chats: a quarter has a system prompt of 2,000 tokens, half has targets of 1 s and 40 ms.

    `whole` is the share of those that do not stream; if it is given, the targets are declared, else only known to the scheduler.
    """
    dice = np.random.default_rng(seed)
    at_s, number = 0.0, 0
    while (at_s := at_s + dice.exponential(1.0 / rate_rps)) < seconds:
        prompt = int(dice.lognormal(5.0, 0.8)) if dice.random() < 0.75 else int(2000 + dice.integers(0, 300))
        output = int(min(1200, max(4, dice.lognormal(4.6, 0.9))))
        slo = Slo(ttft_ms=1000, tpot_ms=40) if dice.random() < 0.5 else Slo(ttft_ms=2000, tpot_ms=60)
        # Spread evenly over the requests.
        stream, declared = number * 0.618034 % 1.0 >= (whole or 0.0), None if whole is None else slo
        asked = Request(id=f"{tenant}{number:06d}", tenant=tenant, model="m", arrival_s=at_s, prompt_tokens=max(8, prompt), stream=stream)
        request = msgspec.structs.replace(asked, declared_slo=declared)
        yield Arrival(request=request, estimate=partial(_with_slo, history, slo), output_tokens=output, weight=weight)
        number += 1


def _with_slo(history: History, slo: Slo, request: Request, _now_s: float) -> Estimates:
    return msgspec.structs.replace(history.estimate(request), slo=slo)


def good_of(tenant: str, records: list[RequestRecord]) -> int:
    """How many of a tenant's requests were good."""
    return sum(record.slo_met for record in records if record.tenant == tenant and record.arrival_s >= COLD_S)


def _shed_by_its_end(arrival: Arrival) -> Arrival:
    """The request with a TTFT target by which a window may shed it.

    A whole answer may also wait half of the time that its TPOT target gives its tokens. That is more than a plain baseline can do: it knows
    the length.
    """
    if arrival.request.stream:
        return arrival

    def estimate(request: Request, now_s: float) -> Estimates:
        estimates = arrival.estimate(request, now_s)
        slo = estimates.slo
        later = msgspec.structs.replace(slo, ttft_ms=slo.ttft_ms + 0.5 * slo.tpot_ms * (arrival.output_tokens - 1))
        return msgspec.structs.replace(estimates, slo=later)

    return replace(arrival, estimate=estimate)


def run(
    arrivals: Iterable[Arrival], engines: dict[str, EngineModel], history: History, *, arm: str = PRODUCT, most: int = 64, seed: int
) -> list[RequestRecord]:
    """Runs requests through the shipped scheduler without agents (window: `most`), pass-through, or a fixed window.

    A fixed window such as `24` refuses what can no longer have its first token in time; see `KEEP`.
    """
    product, passing = arm == PRODUCT, arm == PASS
    window = most if product else 256 if passing else int(arm.split(maxsplit=1)[0])
    sheds = not (product or passing or arm.endswith(KEEP))
    scheduler = Scheduler(
        settings=SHIPPED if product else PRESETS["shed" if sheds else "open"],
        instances=[InstanceSpec(name=name, capacity_n_run=window) for name in engines],
        router=make_router("default"),
        policy="robust-edf" if product else "fcfs",
    )
    for name in engines:
        scheduler.set_controls(name, Controls(n_run=window))
    DICE.seed(seed)
    if arm.endswith(BY_END):
        arrivals = map(_shed_by_its_end, arrivals)
    return simulate(arrivals, engines, scheduler, on_end=lambda ended, now_s: history.learn(completion_of(ended, now_s))).records


def flooded(weight: float, seed: int) -> tuple[int, int, int]:
    """Good requests of a tenant at 0.6 of its share, alone and beside ten times the other's share, and of the flood."""
    share = weight / (1.0 + weight)
    found = []
    for floods in (False, True):
        history = History()
        arrivals = list(chats("steady", 0.6 * share * FLOOD_RPS, 10 + seed, weight, history))
        if floods:
            arrivals += chats("flood", 10.0 * (1.0 - share) * FLOOD_RPS, 50 + seed, 1.0, history)
        arrivals.sort(key=lambda one: one.request.arrival_s)
        found.append(run(arrivals, {name: EngineModel(noisy()) for name in ("a", "b")}, history, seed=seed))
    alone, beside = found
    return good_of("steady", alone), good_of("steady", beside), good_of("flood", beside)


def undeclared(rate_rps: float, seconds: float, seed: int, history: History, judged: dict[str, Slo], stretch: float) -> Iterator[Arrival]:
    """Chats of which half declare no targets and half no cap; many uncapped answers run to the context. `judged` takes the targets."""
    dice = np.random.default_rng(seed)
    at_s, number = 0.0, 0
    while (at_s := at_s + dice.exponential(1.0 / rate_rps)) < seconds:
        prompt = int(np.clip(dice.lognormal(4.0, 0.9), 8, 300))
        capped, declares, kind = dice.random() < 0.5, dice.random() < 0.5, dice.random()
        ends = int(np.clip(dice.lognormal(5.3, 1.0), 20, CONTEXT - prompt)) if kind < 0.6 else CONTEXT - prompt
        output = int(dice.integers(1, 60)) if kind < 0.25 else ends
        slo = Slo(ttft_ms=1000 * stretch, tpot_ms=50 * stretch)
        if not declares or dice.random() < 0.5:
            slo = Slo(ttft_ms=2000 * stretch, tpot_ms=60 * stretch)
        request = Request(
            id=f"r{number:06d}",
            tenant="t",
            model="m",
            arrival_s=at_s,
            prompt_tokens=prompt,
            context_tokens=CONTEXT,
            max_output_tokens=CAP if capped else None,
            declared_slo=slo if declares else None,
        )
        judged[request.id] = slo
        yield Arrival(
            request=request, estimate=lambda one, _now_s: history.estimate(one), output_tokens=min(output, CAP) if capped else output
        )
        number += 1


def slow(rate_rps: float, seconds: float, seed: int, arm: str, *, steep: bool = False) -> list[bool]:
    """Which requests are good on one engine with the speed of a small model on two cores, or on one that is steeper."""
    profile = noisy(
        step_ms=75.0 if steep else 52.0,
        prefill_ms_per_token=2.3,
        prefill_ms_per_ktoken_sq=0.0,
        decode_ms_per_seq=14.0 if steep else 3.3,
        decode_ms_per_kv_ktoken=0.0,
        kv_blocks=360,
        max_model_len=CONTEXT,
    )
    stretch, judged = STEEP_STRETCH if steep else STRETCH, dict[str, Slo]()
    # The product assumes its own targets of a request that declares none, a window what such a request is judged by.
    known = TargetTable(scale=60.0 * stretch / BASE_SLO[TaskType.UNKNOWN].tpot_ms, ttft_most_ms=2000.0 * stretch)
    history = History(SloConfig().targets() if arm in (PASS, PRODUCT) else known)
    arrivals = undeclared(rate_rps, seconds, seed, history, judged, stretch)
    records = run(arrivals, {"a": EngineModel(profile)}, history, arm=arm, seed=seed)
    return [
        one.outcome == OutcomeKind.COMPLETED
        and one.ttft_ms <= judged[one.request_id].ttft_ms
        and one.tpot_ms <= judged[one.request_id].tpot_ms
        for one in records
    ]


def show_busy(seeds: Iterable[int], *, phases: bool) -> None:
    """Prints good and served requests and P95 TTFT in s, of pass-through and of the product, whole and without agents or guard."""
    arms = (PASS, PRODUCT, ALONE, NO_GUARD)
    machines = [(False, {"held": held, "held_s": held_s, "longer": longer}) for held, held_s, longer in BUSY]
    if phases:
        names = ("held", "held_s", "phase_s", "slower")
        machines = [(heavy, dict(zip(names, figures, strict=True))) for heavy in (False, True) for figures in PHASES]
    print(f"{'machine':>24} {'rate':>4} {'targets':>9} {' '.join(f'{arm:>19}' for arm in arms)}")
    for heavy, machine in machines:
        name = f"{'heavy' if heavy else 'light'} {' '.join(f'{figure:g}' for figure in machine.values())}"
        for rate_rps, ttft_ms, tpot_ms in PHASE_RATES if phases else BUSY_RATES:
            slo, row = SloTarget(ttft_ms=ttft_ms, tpot_ms=tpot_ms), ""
            for arm in arms:
                runs = [tight(rate_rps, slo, arm, seed, heavy=heavy, **machine) for seed in seeds]
                good, served, p95_s = (fmean(figures) for figures in zip(*runs, strict=True))
                row += f" {good:>6.1f} {served:>6.1f} {p95_s:>5.1f}"
            print(f"{name:>24} {rate_rps:>4} {f'{ttft_ms}/{tpot_ms}':>9}{row}", flush=True)


def show_prompts(seeds: Iterable[int]) -> None:
    """Prints good requests where prompts take a third of an engine's time and more."""
    arms = (PASS, PRODUCT, ALONE)
    print(f"{'rate':>4} {'targets':>9} {' '.join(f'{arm:>12}' for arm in arms)}")
    for rate_rps, ttft_ms, tpot_ms in PROMPT_RATES:
        slo = SloTarget(ttft_ms=ttft_ms, tpot_ms=tpot_ms)
        row = (fmean(_of_chats(noisy(**PROMPTS), rate_rps, slo, arm, seed)[0] for seed in seeds) for arm in arms)
        print(f"{rate_rps:>4} {f'{ttft_ms}/{tpot_ms}':>9} {' '.join(f'{share:>12.1f}' for share in row)}", flush=True)


def show_gpu(seeds: Iterable[int]) -> None:
    """Prints good requests of a GPU's model without noise, whose pace hardly depends on the batch."""
    arms = (PASS, *map(str, GPU_CAPS), PRODUCT, ALONE)
    print(f"{'load':>24} {'targets':>9} {' '.join(f'{arm:>12}' for arm in arms)}")
    for rate_rps, prompt, output, ttft_ms, tpot_ms in GPU_RATES:
        workload = f"poisson:rate={rate_rps},duration=60,prompt={prompt},output={output}"
        slo = SloTarget(ttft_ms=ttft_ms, tpot_ms=tpot_ms)
        shares = (fmean(of_one_tenant(load_profile(GPU), workload, slo, arm, seed)[0] for seed in seeds) for arm in arms)
        row = " ".join(f"{share:>12.1f}" for share in shares)
        print(f"{f'{rate_rps}/s of {prompt} + {output}':>24} {f'{ttft_ms}/{tpot_ms}':>9} {row}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flood", action="store_true", help="a tenant beside one that floods")
    parser.add_argument("--slow", action="store_true", help="clients that declare no targets, on a slow engine")
    parser.add_argument("--steep", action="store_true", help="the same on an engine that each sequence makes slower, beside fixed windows")
    parser.add_argument("--busy", action="store_true", help="tight targets on a machine that other processes hold up")
    parser.add_argument("--gpu", action="store_true", help="tight targets on a GPU's model, beside fixed windows")
    parser.add_argument("--prompts", action="store_true", help="tight targets on an engine whose prompts take a good part of its time")
    parser.add_argument("--phases", action="store_true", help="tight targets on a machine that is slow for a while, now and then")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    seeds = range(1, args.seeds + 1)
    if args.flood:
        for weight in (4.0, 1.0):
            alone, beside, flood = (sum(figures) for figures in zip(*(flooded(weight, seed) for seed in seeds), strict=True))
            print(f"weights {weight:g}:1: {alone} good alone, {beside} beside the flood ({beside / alone:.3f}); {flood} of the flood")
        return
    if args.slow or args.steep:
        arms = (PASS, *(map(str, STEEP_CAPS) if args.steep else ()), PRODUCT)
        print(f"{'rate':>5} {'seconds':>7} {' '.join(f'{arm:>12}' for arm in arms)}")
        for rate, seconds in STEEP if args.steep else SLOW:
            shares = (fmean(good for seed in seeds for good in slow(rate, seconds, seed, arm, steep=args.steep)) for arm in arms)
            print(f"{rate:>5} {seconds:>7} {' '.join(f'{100.0 * share:>12.1f}' for share in shares)}", flush=True)
        return
    if args.gpu or args.prompts:
        (show_gpu if args.gpu else show_prompts)(seeds)
        return
    if args.busy or args.phases:
        show_busy(seeds, phases=args.phases)
        return
    arms = (PASS, *map(str, CAPS), PRODUCT)
    print(f"{'rate':>4} {'targets':>9} {'pass-through':>12} {'best window, shed':>20} {'hmas':>6}")
    for rate_rps, ttft_ms, tpot_ms in RATES:
        slo = SloTarget(ttft_ms=ttft_ms, tpot_ms=tpot_ms)
        good = {arm: fmean(tight(rate_rps, slo, arm, seed)[0] for seed in seeds) for arm in arms}
        best = max(CAPS, key=lambda cap: good[str(cap)])
        row = f"{rate_rps:>4} {f'{ttft_ms}/{tpot_ms}':>9} {good['pass-through']:>12.1f} {f'{good[str(best)]:.1f} ({best})':>20}"
        print(f"{row} {good['hmas']:>6.1f}", flush=True)


if __name__ == "__main__":
    main()
