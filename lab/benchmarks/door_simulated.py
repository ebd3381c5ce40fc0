"""The bodies of the front door on simulated engines: good requests in percent, beside fixed windows.

`hmas-lab frontdoor` sends these bodies over HTTP, in real time. Here the gateway's own parser reads them, and the shipped scheduler without
agents serves them, as do pass-through and fixed windows. Loads are shares of the rate at which pass-through has nine in ten in time. The
simulated engines compute a request of two answers as one sequence, so that this form is left out.

    python lab/benchmarks/door_simulated.py                               # ten minutes: all engines and mixes of forms
    python lab/benchmarks/door_simulated.py --engine demo --mix not-streamed --seeds 8
"""

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from statistics import fmean

import msgspec
from guard_study import BY_END, KEEP, PASS, PRODUCT, run
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.frontdoor.settings import FULL
from hmas_lab.questions import Question, data_dir, read_questions
from noisy_engine import noisy

from hmas.controller.config.section import SloConfig
from hmas.controller.core.request_body import read_call
from hmas.controller.core.types import OutcomeKind, Request
from hmas.controller.scheduling.default_estimates import History
from hmas.controller.simulation import Arrival
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile
from hmas.loadgen import workload
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.results import SIMULATED_OUTCOMES, Result, empty_result, is_good, with_record

SECONDS = 60.0
KNEE, HALVINGS, MOST_RPS = 90.0, 8, 64.0
"""Percent of the requests that pass-through still has in time at what is called the capacity; how that is searched for."""
LOADS = (0.5, 0.9, 1.1, 1.4, 2.0)
WINDOWS = ("6", "12", "24", "48", "96", "192", f"24{BY_END}", f"96{BY_END}", f"96{KEEP}")
"""Fixed windows, first come first served, that refuse what can no longer be in time, or nothing (`keep`)."""
MIXES = {
    "all": ("chat-1", "chat-3", "chat-9", "completion", "tools", "system-2000", "not-streamed"),
    "chats": ("chat-1", "chat-3"),
    "system-2000": ("system-2000",),
    "not-streamed": ("not-streamed",),
}
PROFILES = {
    "demo": load_profile("demo-small"),
    "noisy": noisy(),
    "steep": noisy(decode_ms_per_seq=3.0),
    "small cache": noisy(kv_blocks=1000, max_model_len=8192),
    "slow prompts": noisy(prefill_ms_per_token=0.5, prefill_ms_per_ktoken_sq=0.0),
}
"""The demo's engine as it is, with noise in its steps, with a seventh of a step more for each sequence, with a quarter of the KV
cache, and with prompts that take long."""
ENGINES = ("a", "b")


def served(arrivals: Sequence[workload.Arrival], engine: str, arm: str, seed: int) -> list[Result]:
    """What clients would measure of their requests on two engines under one arm."""
    history = History(SloConfig().targets())
    engines, most = {name: EngineModel(PROFILES[engine]) for name in ENGINES}, PROFILES[engine].max_num_seqs
    made = run(_requests(arrivals, history), engines, history, arm=arm, most=most, seed=seed)
    records = {record.request_id: record for record in made}
    results = []
    for index, arrival in enumerate(arrivals):
        record = records[_name(index)]
        outcome = SIMULATED_OUTCOMES[record.outcome or OutcomeKind.FAILED]
        results.append(with_record(empty_result(index, arrival), record, outcome=outcome, detail=record.reason))
    return results


def _name(index: int) -> str:
    return f"{index:06d}"


def _requests(arrivals: Sequence[workload.Arrival], history: History) -> Iterator[Arrival]:
    for index, arrival in enumerate(arrivals):
        assert arrival.body is not None
        call = read_call(arrival.body.path, arrival.body.document)
        request = Request(
            id=_name(index),
            tenant=arrival.tenant,
            model="m",
            arrival_s=arrival.at_s,
            prompt_tokens=call.prompt_tokens,
            max_output_tokens=call.max_output_tokens,
            has_tools=call.has_tools,
            declared_slo=arrival.slo if arrival.declares else None,
            stream=call.stream,
        )
        yield Arrival(request=request, estimate=lambda asked, _now_s: history.estimate(asked), output_tokens=arrival.output_tokens)


@cache
def _questions() -> list[Question]:
    return read_questions(data_dir(), max_prompt=FULL.max_prompt, max_output=FULL.max_output)


def good(mix: str, engine: str, rate_rps: float, arm: str, seed: int) -> float:
    """Percentage of good requests at a rate."""
    load = DoorLoad(msgspec.structs.replace(FULL, forms=MIXES[mix], seed=seed), _questions(), load_mixture()[1])
    return 100.0 * fmean(map(is_good, served(load.arrivals(0, rps=rate_rps, seconds=SECONDS), engine, arm, seed)))


def capacity_rps(mix: str, engine: str) -> float:
    """The rate at which pass-through has `KNEE` percent in time."""
    low, high = 0.0, MOST_RPS
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if good(mix, engine, middle, PASS, 0) >= KNEE else (low, middle)
    return high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--engine", choices=PROFILES, action="append", help="one of the engines; all of them by default")
    parser.add_argument("--mix", choices=MIXES, action="append", help="one of the mixes of forms; all of them by default")
    args = parser.parse_args()
    print(f"{'engines':>12} {'mix':>12} {'load':>4} {'rate':>5} {PASS:>12} {'best window':>20} {PRODUCT:>6}")
    cases = [(mix, engine) for engine in args.engine or PROFILES for mix in args.mix or MIXES]
    with ProcessPoolExecutor() as pool:
        for (mix, engine), capacity in zip(cases, pool.map(capacity_rps, *zip(*cases, strict=True)), strict=True):
            for load in LOADS:
                shares = {
                    arm: pool.map(partial(good, mix, engine, load * capacity, arm), range(1, args.seeds + 1))
                    for arm in (PASS, *WINDOWS, PRODUCT)
                }
                found = {arm: fmean(of_arm) for arm, of_arm in shares.items()}
                best = max(WINDOWS, key=lambda window: found[window])
                row = f"{engine:>12} {mix:>12} {load:>4} {load * capacity:>5.1f} {found[PASS]:>12.1f}"
                print(f"{row} {f'{found[best]:.1f} ({best})':>20} {found[PRODUCT]:>6.1f}", flush=True)


if __name__ == "__main__":
    main()
