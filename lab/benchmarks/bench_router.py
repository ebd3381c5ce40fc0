"""What a choice of an instance and a look-up in the prefix index cost. `python lab/benchmarks/bench_router.py`; no test runs it.

Goals: a choice within 20 us at 8 instances and 200 us at 1,000 with four scorers; a look-up of 4,096 tokens within 20 us.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from hmas.controller.core.prompt_texts import PromptTexts
from hmas.controller.core.types import Controls, Estimates, Request, Slo
from hmas.controller.routing.prefix_index import PrefixIndex
from hmas.controller.routing.registry import ROUTERS, make_router
from hmas.controller.scheduling.instances.instance import Instance
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.scheduler import InstanceSpec, Scheduler, SchedulerSettings

FOUR = "default:queue=1:prefix=0.3:session=0.05:first-token=0.2"
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


def entry(number: int = 0, blocks: int = BLOCKS) -> QueueEntry:
    """A request of 4,096 tokens that belongs to a session."""
    hashes = tuple(hash((number // 4, place)) for place in range(blocks))
    request = Request(id=f"r{number}", tenant="t", model="m", arrival_s=0.0, prompt_tokens=4096, session=f"s{number // 4}", blocks=hashes)
    return QueueEntry(request=request, estimates=Estimates(slo=Slo(ttft_ms=2000, tpot_ms=60)), seq=number)


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


def choice_us(router_text: str, count: int, seconds: float) -> float:
    """The time of one choice, with 400 sessions and their prompts known."""
    router = make_router(router_text)
    states = instances(count)
    if hasattr(router, "sent"):
        for number in range(400):
            router.sent(entry(number), states[7 * number % count].name, 0.0)
    asked = [entry(number) for number in range(400)]
    turn = 0

    def choose() -> object:
        nonlocal turn
        turn = (turn + 1) % 400
        return next(iter(router.rank(asked[turn], states, 0.0)))

    return spent_us(choose, seconds)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each figure")
    seconds = parser.parse_args().seconds
    rows: list[tuple[str, float, str]] = []
    for count, goal in ((8, "20"), (1000, "200")):
        rows += [(f"{name}, {count} instances", choice_us(name, count, seconds), "") for name in ROUTERS]
        rows.append((f"four scorers, {count} instances", choice_us(FOUR, count, seconds), goal))
    print(f"{'':48}{'us':>8}{'goal':>8}")
    for name, value, goal in [*rows, *index_rows(seconds)]:
        print(f"{name:48}{value:8.1f}{goal:>8}")


if __name__ == "__main__":
    main()
