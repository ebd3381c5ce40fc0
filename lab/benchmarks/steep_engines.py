"""Engines to which each sequence adds a seventh of the pace of a request alone, beside fixed windows: good requests in percent.

On such an engine a batch that is a little too large makes all in flight miss their TPOT targets, and one that is too small is slow. The
best window depends on the targets; the product has none and is told nothing of the engine.

    python lab/benchmarks/steep_engines.py              # a minute
    python lab/benchmarks/steep_engines.py --seeds 8
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import fmean

from guard_study import PASS, PRODUCT, chats, of_one_tenant, run
from noisy_engine import noisy

from hmas.controller.scheduling.default_estimates import History
from hmas.engines.sim.model import EngineModel
from hmas.planning.case import SloTarget

STEEP_MS = 3.0
"""What a sequence adds to a step, which takes 20.6 ms for one."""
SECONDS, COLD_S = 120.0, 30.0
WINDOWS = ("4", "6", "8", "12")
"""Fixed windows, first come first served, that refuse what can no longer have its first token in time."""
UNIFORM = tuple((rate, target) for target in ((2000, 60), (1000, 40)) for rate in (1.5, 2.0, 2.5, 3.0, 4.0))
"""Requests per second of 300 tokens in and 100 out for one engine, with statera, and their targets in ms."""
CHATS = (1, 2, 3, 5, 7, 10)
"""Chats per second for two engines without agents; half have targets of 1 s and 40 ms, half of 2 s and 60 ms."""


def uniform(rate_rps: float, ttft_ms: int, tpot_ms: int, arm: str, seed: int) -> float:
    """Percentage of good requests of one size."""
    workload = f"poisson:rate={rate_rps},duration={SECONDS},prompt=300,output=100"
    return of_one_tenant(noisy(decode_ms_per_seq=STEEP_MS), workload, SloTarget(ttft_ms=ttft_ms, tpot_ms=tpot_ms), arm, seed).good


def of_chats(rate_rps: float, whole: float, arm: str, seed: int) -> float:
    """Percentage of good chats, of which `whole` are not streamed."""
    history = History()
    arrivals = chats("t", rate_rps, seed, 1.0, history, seconds=SECONDS, whole=whole)
    records = run(arrivals, {name: EngineModel(noisy(decode_ms_per_seq=STEEP_MS)) for name in ("a", "b")}, history, arm=arm, seed=seed)
    return 100.0 * fmean(record.slo_met for record in records if record.arrival_s >= COLD_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(1, parser.parse_args().seeds + 1)
    rows = {
        f"300 + 100, {ttft_ms}/{tpot_ms} ms, {rate}/s": partial(uniform, rate, ttft_ms, tpot_ms) for rate, (ttft_ms, tpot_ms) in UNIFORM
    }
    rows |= {
        f"chats, {'not streamed' if whole else 'streamed'}, {rate}/s": partial(of_chats, rate, whole)
        for whole in (0.0, 1.0)
        for rate in CHATS
    }
    print(f"{'load':>32} {PASS:>12} {'best window, shed':>20} {PRODUCT:>6}")
    with ProcessPoolExecutor() as pool:
        for name, good in rows.items():
            found = {arm: fmean(pool.map(partial(good, arm), seeds)) for arm in (PASS, *WINDOWS, PRODUCT)}
            best = max(WINDOWS, key=lambda window: found[window])
            print(f"{name:>32} {found[PASS]:>12.1f} {f'{found[best]:.1f} ({best})':>20} {found[PRODUCT]:>6.1f}", flush=True)


if __name__ == "__main__":
    main()
