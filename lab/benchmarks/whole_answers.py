"""Answers that are not streamed, beside streams and alone, on two engines of the demo with noise: good requests in percent.

Nothing is heard of a whole answer before its end, so that the gateway has to learn the engines' pace from their own counters. It is good if
it ends within its TTFT target and its TPOT target for each further token.

    python lab/benchmarks/whole_answers.py              # a minute: 150 s of chats, of which the first 40 s do not count
    python lab/benchmarks/whole_answers.py --seeds 8
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import fmean

from guard_study import BY_END, KEEP, PASS, PRODUCT, chats, run
from noisy_engine import noisy

from hmas.controller.core.objectives import whole_due_ms
from hmas.controller.core.types import OutcomeKind, Slo
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.simulation import RequestRecord
from hmas.engines.sim.model import EngineModel

SECONDS, COLD_S = 150.0, 40.0
RATES = (4, 6, 8, 10, 14)
"""Requests per second. In pass-through, 79 % of the streams are good with 6, and 29 % with 8."""
WINDOWS = ("12", "16", "24", *(f"{window}{how}" for window in (16, 48) for how in (BY_END, KEEP)))
"""Fixed windows, first come first served, that refuse what can no longer be in time, or nothing (`keep`)."""


def good(arm: str, rate_rps: float, whole: float, seed: int) -> float:
    """Percentage of the requests that are good under one arm."""
    history = History()
    arrivals = list(chats("t", rate_rps, seed, 1.0, history, seconds=SECONDS, whole=whole))
    slos = {arrival.request.id: arrival.request.declared_slo for arrival in arrivals}
    records = run(arrivals, {name: EngineModel(noisy()) for name in ("a", "b")}, history, arm=arm, seed=seed)
    return 100.0 * fmean(_in_time(record, slos[record.request_id]) for record in records if record.arrival_s >= COLD_S)


def _in_time(record: RequestRecord, slo: Slo | None) -> bool:
    """Whether a request met the targets that it declared; a window that sheds whole answers has others for them."""
    if record.stream or slo is None or record.outcome is not OutcomeKind.COMPLETED:
        return record.slo_met
    return record.total_ms <= whole_due_ms(record.output_tokens, slo)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    print(f"{'not streamed':>12} {'rate':>4} {PASS:>12} {'best window':>20} {PRODUCT:>6}")
    with ProcessPoolExecutor() as pool:
        for whole in (0.0, 0.5, 1.0):
            for rate_rps in RATES:
                found = {arm: fmean(pool.map(partial(good, arm, rate_rps, whole), range(args.seeds))) for arm in (PASS, *WINDOWS, PRODUCT)}
                best = max(WINDOWS, key=lambda window: found[window])
                row = f"{whole:>12.0%} {rate_rps:>4} {found[PASS]:>12.1f} {f'{found[best]:.1f} ({best})':>20}"
                print(f"{row} {found[PRODUCT]:>6.1f}", flush=True)


if __name__ == "__main__":
    main()
