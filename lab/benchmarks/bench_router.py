"""What a choice of an instance and a look-up in the prefix indexes cost. `python lab/benchmarks/bench_router.py`; no test runs it.

Goals: a choice within 20 us at 8 instances and 200 us at 1,000, with four scorers and by predictions; a look-up of 4,096 tokens within
20 us.
`--blocks 10000000` also fills the exact index, by 1,000 instances, and shows its memory and what a block costs to store and to remove.
"""

import argparse
import random
import resource
import statistics
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from hmas.controller.core.prompt_texts import PromptTexts
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.exact_index import ExactIndex, block_keys
from hmas.controller.routing.known_prompts import KnownPrompt, KnownPrompts
from hmas.controller.routing.prefix_index import PrefixIndex
from hmas.controller.routing.registry import ROUTERS, make_router
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.scheduler import InstanceSpec, Scheduler, SchedulerSettings
from hmas.engines.kv_events import KvEvent, decode_kv_batch, decode_kv_event

FOUR = "default:queue=1:prefix=0.3:session=0.05:first-token=0.2"
PREDICTED = ("latency-aware:first-token=0:completion=1", "workload-balanced")
"""What goes by predictions for the request."""
NAMED = 64
"""Most instances that an answer of prediction names."""
BLOCKS = 64
"""4,096 tokens in blocks of 64."""


def spent_us(work: Callable[[], object], seconds: float) -> float:
    """Median over batches of the processor time of one call, in microseconds."""
    samples = []
    until = time.process_time() + seconds
    while time.process_time() < until:
        begun = time.process_time()
        for _ in range(20):
            work()
        samples.append((time.process_time() - begun) / 20 * 1e6)
    return statistics.median(samples)


def entry(number: int = 0, blocks: int = BLOCKS, alone: Mapping[str, tuple[float, float]] | None = None) -> QueueEntry:
    """A request of 4,096 tokens that belongs to a session."""
    hashes = tuple(hash((number // 4, place)) for place in range(blocks))
    request = Request(id=f"r{number}", tenant="t", model="m", arrival_s=0.0, prompt_tokens=4096, session=f"s{number // 4}", blocks=hashes)
    return QueueEntry(request=request, estimates=Estimates(slo=Slo(ttft_ms=2000, tpot_ms=60), alone=alone or {}), seq=number)


def instances(count: int) -> list[Instance]:
    """Instances under unlike loads, whose speeds were measured."""
    scheduler = Scheduler(
        settings=SchedulerSettings(),
        instances=[InstanceSpec(name=f"i{place:04d}", capacity_n_run=256, kv_capacity_tokens=400_000) for place in range(count)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    found = list(scheduler.instances.values())
    for place, instance in enumerate(found):
        scheduler.set_controls(instance.name, Controls(n_run=256))
        instance.pace.decoded(20.0 + place % 7)
        instance.pace.prefilled(100.0 + place % 11, 1000)
        instance.sequences = instance.in_flight = 17 * place % 60
    return found


def choice_us(router_text: str, count: int, seconds: float, named: int = 0) -> float:
    """The time of one choice, with 400 sessions and their prompts known, and predictions for the `named` emptiest instances."""
    router = make_router(router_text)
    states = instances(count)
    if hasattr(router, "sent"):
        for number in range(400):
            router.sent(entry(number), states[7 * number % count].name, 0.0)
    emptiest = sorted(states, key=lambda one: one.in_flight)[:named]
    alone = {one.name: (1.3 * 4096 * one.prefill_token_ms, 0.9 * one.decode_token_ms) for one in emptiest}
    asked = [entry(number, alone=alone) for number in range(400)]
    turn = 0

    def choose() -> object:
        nonlocal turn
        turn = (turn + 1) % 400
        return next(iter(router.rank(asked[turn], states, 0.0)))

    return spent_us(choose, seconds)


def passage_us(binding: Literal["central", "arrival"], count: int, seconds: float) -> float:
    """The time of one request from its arrival to its end in a scheduler, with every window full and four requests waiting for each."""
    scheduler = Scheduler(
        settings=SchedulerSettings(binding=binding, queue_limit=1_000_000),
        instances=[InstanceSpec(name=f"i{place:04d}", capacity_n_run=2) for place in range(count)],
        router=make_router("default"),
        policy="edf",
    )
    number = 0

    def arrives() -> None:
        nonlocal number
        number += 1
        request = Request(id=f"r{number}", tenant="t", model="m", arrival_s=0.0, prompt_tokens=100)
        scheduler.submit(request, Estimates(slo=Slo(ttft_ms=2000, tpot_ms=60)), 0.0)
        scheduler.dispatch(0.0)

    for _ in range(6 * count):
        arrives()

    def passes() -> None:
        arrives()
        oldest = next(iter(scheduler.instances[f"i{7 * number % count:04d}"].running))
        scheduler.end(oldest, OutcomeKind.COMPLETED, 0.0, 10)

    return spent_us(passes, seconds)


def index_rows(seconds: float) -> list[tuple[str, float, str]]:
    """A look-up where 8 instances have a part of the prompt each, a recording, and the hashing of a prompt's text."""
    index = PrefixIndex()
    for number in range(1000):
        index.sent(entry(4 * number).request.blocks, f"i{number % 8}")
    blocks = entry(4 * 500).request.blocks
    for place in range(8):
        index.sent(blocks[: 8 * (place + 1)], f"i{place}")
    texts = PromptTexts()
    texts.begin("user")
    texts.add("A word of six. " * (256 * BLOCKS // 15 + 1))
    return [
        ("look-up of 4,096 tokens", spent_us(lambda: index.matched(blocks), seconds), "20"),
        ("recording of 4,096 tokens", spent_us(lambda: index.sent(blocks, "i3"), seconds), ""),
        ("hashing the text of 4,096 tokens", spent_us(lambda: texts.blocks("tenant"), seconds), ""),
    ]


def exact_rows(seconds: float) -> list[tuple[str, float, str]]:
    """The same for the exact index, in blocks of 16 tokens as engines have them on a GPU, and the events of a prompt of 4,096 tokens."""
    index, prompts = ExactIndex(), KnownPrompts()
    tokens = [7 * place % 50_000 for place in range(4096)]
    data = array("I", tokens).tobytes()
    for place in range(8):
        count = 32 * (place + 1)
        index.stored(f"i{place}", KvEvent(tuple(range(1 << 40, (1 << 40) + count)), tokens=data[: 64 * count], block_tokens=16))
    keys = {16: block_keys(tokens, 16)}
    blocks = entry(4).request.blocks
    prompts.learn(blocks, KnownPrompt(tokens, (16,), ""))
    hashes = [number.to_bytes(32, "big") for number in range(256)]
    event = {"block_hashes": hashes, "parent_block_hash": None, "token_ids": tokens, "block_size": 16}
    stored = msgspec.msgpack.encode([0.0, [{"type": "BlockStored", **event}]])
    removed = msgspec.msgpack.encode([0.0, [{"type": "BlockRemoved", "block_hashes": hashes}]])

    def apply() -> None:
        for payload in (stored, removed):
            for raw in decode_kv_batch(payload):
                for one in decode_kv_event(raw):
                    if one.tokens:
                        index.stored("i9", one)
                    else:
                        index.removed("i9", one.hashes)

    return [
        ("exact look-up of 4,096 tokens", spent_us(lambda: index.matched(keys, 4096), seconds), "20"),
        ("finding the tokens of a known text", spent_us(lambda: prompts.find(blocks), seconds), ""),
        ("keys of 4,096 tokens", spent_us(lambda: KnownPrompt(tokens, (16,), ""), seconds), ""),
        ("a block stored and removed by events", spent_us(apply, seconds) / 256, ""),
    ]


def fill(blocks: int) -> None:
    """Memory and time of an index with so many blocks, in prompts of 100 blocks, by 1,000 instances."""
    index, draw = ExactIndex(), random.Random(1).randbytes
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    longest_ms = begun_s = 0.0
    begun_s = time.process_time()
    for number in range(blocks // 100):
        event = KvEvent(tuple(memoryview(draw(800)).cast("Q")), tokens=draw(6400), block_tokens=16)
        one_s = time.process_time()
        index.stored(f"i{number % 1000}", event)
        longest_ms = max(longest_ms, 1000.0 * (time.process_time() - one_s))
    spent_s = time.process_time() - begun_s
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb
    print(
        f"{len(index):,} blocks of 1,000 instances: {memory_mb:,.0f} MB, {memory_mb * 1048576 / blocks:.0f} bytes each; "
        f"{blocks / spent_s:,.0f} stored each second, 100 blocks in {longest_ms:.1f} ms at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each figure")
    parser.add_argument("--blocks", type=int, default=0, help="fill the exact index with so many blocks, too")
    options = parser.parse_args()
    seconds = options.seconds
    rows: list[tuple[str, float, str]] = []
    for count, goal in ((8, "20"), (1000, "200")):
        rows += [(f"{name}, {count} instances", choice_us(name, count, seconds), "") for name in ROUTERS]
        rows.append((f"four scorers, {count} instances", choice_us(FOUR, count, seconds), goal))
        rows.append((f"a request, central queue, {count} instances", passage_us("central", count, seconds), ""))
        rows.append((f"a request, bound at arrival, {count} instances", passage_us("arrival", count, seconds), ""))
        for router, name in zip(PREDICTED, ("completion", "workload-balanced"), strict=True):
            rows.append((f"{name} measured, {count} instances", choice_us(router, count, seconds), ""))
            rows.append((f"{name} predicted, {count} instances", choice_us(router, count, seconds, min(count, NAMED)), goal))
    print(f"{'':48}{'us':>8}{'goal':>8}")
    for name, value, goal in [*rows, *index_rows(seconds), *exact_rows(seconds)]:
        print(f"{name:48}{value:8.1f}{goal:>8}")
    if options.blocks:
        fill(options.blocks)


if __name__ == "__main__":
    main()
