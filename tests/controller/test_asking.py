"""Which requests the agents are asked about."""

import asyncio
from pathlib import Path

import pytest
from gateway_kit import chat, eventually, running

from hmas.controller.config.schema import AgentsConfig, SchedulerConfig
from hmas.controller.control.asking import KNOWN_RATIO, Asking
from hmas.controller.control.estimates import Declared
from hmas.controller.core.messages import REQUESTS, TELEMETRY, Completion, RequestNotice
from hmas.controller.core.types import Estimates, Slo

SLO = Slo(ttft_ms=1000.0, tpot_ms=50.0)
BOTH = Declared(ttft_ms=1000.0, tpot_ms=50.0)


def lengths(expected: float, upper: float) -> Estimates:
    return Estimates(slo=SLO, output_tokens=expected, output_tokens_upper=upper)


def asking(*, all_requests: bool = False, sample_rps: float = 0.0) -> Asking:
    return Asking(all_requests=all_requests, sample_rps=sample_rps, now_s=0.0)


@pytest.mark.parametrize(
    ("estimates", "declared", "waits", "asked"),
    [
        (lengths(100, 400), BOTH, True, True),
        (lengths(100, 400), BOTH, False, False),
        (lengths(100, 100 * KNOWN_RATIO), BOTH, True, False),
        (lengths(100, 100), Declared(ttft_ms=1000.0), True, True),
        (lengths(100, 100), Declared(tpot_ms=50.0), True, True),
        (lengths(100, 100), Declared(), True, True),
    ],
)
def test_asked_is_what_waits_and_is_not_known(estimates: Estimates, declared: Declared, waits: bool, asked: bool):
    assert asking().wants(estimates, declared, 1.0, waits=waits) is asked
    assert asking(all_requests=True).wants(estimates, declared, 1.0, waits=waits)


def test_a_sample_of_the_others_is_asked_about():
    some = asking(sample_rps=5.0)
    at_40_rps = [some.wants(lengths(100, 400), BOTH, number / 40.0, waits=False) for number in range(400)]
    # Five a second, and the five that the bucket holds at first.
    assert 50 <= sum(at_40_rps) <= 56
    assert sum(at_40_rps[200:]) == pytest.approx(25, abs=1)
    # What waits does not use up the sample.
    assert all(some.wants(lengths(100, 400), BOTH, 10.0, waits=True) for _ in range(20))
    assert some.wants(lengths(100, 400), BOTH, 10.3, waits=False)


def test_rare_requests_are_all_asked_about():
    some = asking(sample_rps=0.5)
    assert all(some.wants(lengths(100, 400), BOTH, 3.0 * number, waits=False) for number in range(10))


async def test_the_gateway_asks_about_what_waits_and_says_so_in_the_completion(tmp_path: Path):
    settings = SchedulerConfig(policy="fcfs", n_run=1, tick_s=0.02)
    async with running(tmp_path, scheduler=settings, agents=AgentsConfig(ask_sample_rps=0.0)) as rig:
        first = asyncio.create_task(rig.post(chat("sent at once", tokens=200)))
        await eventually(lambda: rig.sims[0].model.running == 1)
        second = asyncio.create_task(rig.post(chat("waits", tokens=2)))
        await asyncio.gather(first, second)
        notices = [message for message in await rig.bus.latest(REQUESTS, 10) if isinstance(message, RequestNotice)]
        ended = [message for message in await rig.bus.latest(TELEMETRY, 100) if isinstance(message, Completion)]
    assert [notice.excerpt for notice in notices] == ["waits"]
    assert [(completion.output_tokens, completion.asked) for completion in ended] == [(200, False), (2, True)]
