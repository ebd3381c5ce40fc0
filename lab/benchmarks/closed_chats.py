"""Users that chat with two slow engines with prefix caches, as `make lab-prefix-live` has them on two real vLLM of a core each.

Each user sends a question, reads the answer of 40 tokens, pauses for a second in the mean and asks on; four system prompts are shared. The
engines are slower than their users, have blocks of 128 tokens as vLLM has on CPUs, and compute a prompt in one step.

    python lab/benchmarks/closed_chats.py               # some 20 s: good answers, hit rate and TTFT
    python lab/benchmarks/closed_chats.py --seeds 12
    python lab/benchmarks/closed_chats.py --whole 8     # nobody streams; with 4, every other user does

TTFT is that of streams. A whole answer is good if it ends within its TTFT target and its TPOT target for each further token.
"""

import argparse
import math
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import NamedTuple

import msgspec
from hmas_lab.prefix.arms import ARMS, CACHE_AWARE, EXACT, PRODUCT
from hmas_lab.prefix.routers import InTheCaches, Watched
from hmas_lab.simulated_serving import QUEUEING

from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.core.types import Controls, OutcomeKind, Request, Slo
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec
from hmas.controller.simulation import Arrival, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile
from hmas.workloads.table import prior

NO_GUARD = f"{PRODUCT}, no guard"
COMPARED = (CACHE_AWARE, "fcfs: default", PRODUCT, EXACT, NO_GUARD, "h-mas: least-loaded")
ENGINES, USERS, SECONDS, PAUSE_S = ("a", "b"), 8, 300.0, 1.0
BLOCK, BLOCKS = 128, 360
SYSTEM, FIRST, QUESTION, ANSWER = 150, 250, 60, 40
"""Tokens of a system prompt, of the document that a chat begins with, of a question in the median, and of an answer."""
LAST_TURN, TURNS_MOST, PROMPT_MOST = 0.25, 8, 1700
SLO = Slo(ttft_ms=1500.0, tpot_ms=150.0)
PROFILE = msgspec.structs.replace(
    load_profile("demo-small"),
    step_ms=60.0,
    prefill_ms_per_token=3.0,
    prefill_ms_per_ktoken_sq=0.0,
    decode_ms_per_seq=10.0,
    decode_ms_per_kv_ktoken=0.5,
    block_size=BLOCK,
    kv_blocks=BLOCKS,
    max_model_len=2048,
)


class Seen(NamedTuple):
    """Answers, the share of requests that met both targets, that of prompt tokens found cached, and TTFT in ms."""

    answers: float
    good: float
    hit: float
    ttft_p50_ms: float
    ttft_p95_ms: float


class User:
    """One user's chats, one after another."""

    def __init__(self, number: int, seed: int, *, stream: bool) -> None:
        self._stream = stream
        self._dice = random.Random(f"{seed}-{number}")
        self._name, self._chats, self._fresh = str(number), 0, (1 + number) << 40
        self._begin()

    def _begin(self) -> None:
        self._chats += 1
        self._left = 1
        while self._dice.random() > LAST_TURN and self._left < TURNS_MOST:
            self._left += 1
        system = 1 + self._dice.randrange(4)
        self._blocks = tuple(range(system << 20, (system << 20) + SYSTEM // BLOCK))
        self._tokens = SYSTEM + FIRST

    def pause_s(self) -> float:
        """How long the user waits before the next question."""
        return self._dice.expovariate(1.0 / PAUSE_S)

    def asks(self, at_s: float) -> Arrival:
        """The next question, of a new chat where the last one is over."""
        if not self._left or self._tokens > PROMPT_MOST:
            self._begin()
        self._left -= 1
        self._tokens += round(min(800.0, max(4.0, self._dice.lognormvariate(math.log(QUESTION), 1.0))))
        self._tokens = min(self._tokens, PROFILE.max_model_len - ANSWER)
        more = self._tokens // BLOCK - len(self._blocks)
        if more > 0:
            self._blocks += tuple(range(self._fresh, self._fresh + more))
            self._fresh += more
        request = Request(
            id=f"{self._name}-{self._chats}-{self._left}",
            tenant="t",
            model=PROFILE.model,
            arrival_s=at_s,
            prompt_tokens=self._tokens,
            max_output_tokens=ANSWER,
            declared_slo=SLO,
            session=f"{self._name}-{self._chats}",
            blocks=self._blocks,
            stream=self._stream,
        )
        self._tokens += ANSWER
        return Arrival(request=request, estimate=prior(), output_tokens=ANSWER, block_hashes=self._blocks, hash_tokens=BLOCK)


def run(arm_name: str, whole: int, seed: int) -> Seen:
    """One arm, over `SECONDS`; `whole` of the users do not stream."""
    arm = ARMS[PRODUCT if arm_name == NO_GUARD else arm_name]
    queueing, router = QUEUEING[arm.serving], Watched(arm.make(ENGINES))
    settings = msgspec.structs.replace(queueing.settings, tpot_guard=0.0) if arm_name == NO_GUARD else queueing.settings
    engines = {name: EngineModel(PROFILE) for name in ENGINES}
    window = 10_000 if arm.serving == "at-arrival" else PROFILE.max_num_seqs
    scheduler = Scheduler(
        settings=settings,
        instances=[InstanceSpec(name=name, capacity_n_run=window) for name in ENGINES],
        router=router,
        policy=queueing.policy,
    )
    for name in ENGINES:
        scheduler.set_controls(name, Controls(n_run=window))
    users = [User(number, seed, stream=number * whole % USERS >= whole) for number in range(USERS)]

    def with_view(arrival: Arrival) -> Arrival:
        cached = InTheCaches(engines, arrival.block_hashes, BLOCK) if arm.exact else None
        return replace(arrival, request=msgspec.structs.replace(arrival.request, cached=cached))

    def asks_on(ended: Ended, now_s: float) -> Iterator[Arrival]:
        user = users[int(ended.entry.request.id.partition("-")[0])]
        at_s = now_s + user.pause_s()
        if at_s <= SECONDS:
            yield with_view(user.asks(at_s))

    first = sorted((with_view(user.asks(user.pause_s())) for user in users), key=lambda one: one.request.arrival_s)
    records = simulate(iter(first), engines, scheduler, followups=asks_on, until_s=math.inf).records
    ttfts_ms = sorted(record.ttft_ms if record.ttft_ms >= 0.0 else math.inf for record in records if record.stream)
    hit = router.cached_tokens / max(1, router.prompt_tokens)
    good = fmean(record.slo_met for record in records)
    answers = sum(record.outcome is OutcomeKind.COMPLETED for record in records)
    p50_ms, p95_ms = (percentile(ttfts_ms, rank) if ttfts_ms else math.nan for rank in (50, 95))
    return Seen(answers, good, hit, p50_ms, p95_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--whole", type=int, default=0, choices=range(USERS + 1), help="users that do not stream")
    args = parser.parse_args()
    print(f"{'':26} {'answers':>8} {'good':>6} {'hit':>6} {'TTFT p50':>9} {'p95':>6}")
    with ProcessPoolExecutor() as pool:
        for name in COMPARED:
            runs = list(pool.map(partial(run, name, args.whole), range(args.seeds)))
            answers, good, hit, p50_ms, p95_ms = (fmean(figures) for figures in zip(*runs, strict=True))
            print(f"{name:26} {answers:>8.0f} {good:>6.1%} {hit:>6.1%} {p50_ms:>9,.0f} {p95_ms:>6,.0f}", flush=True)


if __name__ == "__main__":
    main()
