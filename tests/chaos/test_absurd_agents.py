"""An agent that answers absurdly costs next to nothing: real processes, a real Valkey, pass-through beside it on the same requests."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from absurd import FIELDS, MODES, Absurd

from controller.admin.client import AdminClient
from hmas.lab.dataset import load_mixture
from hmas.lab.frontdoor.arms import Arm, Stack, running_arm
from hmas.lab.frontdoor.load import DoorLoad
from hmas.lab.frontdoor.settings import PASS, QUICK, TARGETS
from hmas.lab.loadgen import LoadSpec, run_process, write_plan
from hmas.lab.questions import read_questions
from hmas.lab.results import Result, is_good, read_results
from hmas.lab.workload import Arrival

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]
FORMS = ("chat-1", "chat-3", "completion")
LOW_RPS, HIGH_RPS = float(os.environ.get("LOW", 4)), float(os.environ.get("HIGH", 12))
LOW_S, HIGH_S = 8.0, 21.0
SPEAKS_ONLY = Arm(("--agents", "qos"))
"""Agents are listened to, and none of those that the gateway listens to runs."""


def arrivals(number: int, *, rps: float, seconds: float) -> list[Arrival]:
    """Ordinary chats without declared targets, judged by TTFT 2 s and TPOT 60 ms."""
    settings = msgspec.structs.replace(QUICK, forms=FORMS)
    questions = read_questions(None, max_prompt=settings.max_prompt, max_output=settings.max_output)
    found = DoorLoad(settings, questions, load_mixture()[1]).arrivals(number, rps=rps, seconds=seconds)
    return [msgspec.structs.replace(one, slo=TARGETS, declares=False) for one in found]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stacks(tmp_path_factory) -> AsyncIterator[tuple[Stack, Stack, str]]:
    async with AsyncExitStack() as exits:
        folder = tmp_path_factory.mktemp("a")
        passing = await exits.enter_async_context(running_arm(PASS, QUICK.engines, folder / "p"))
        steered = await exits.enter_async_context(running_arm("absurd", QUICK.engines, folder / "s", SPEAKS_ONLY))
        yield passing, steered, f"unix://{folder}/s/state/bus/r.sock"


@asynccontextmanager
async def speaking(agent: Absurd) -> AsyncIterator[None]:
    task = asyncio.create_task(agent.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def through_all_modes(agent: Absurd, seconds: float) -> None:
    for mode in MODES:
        agent.mode = mode
        await asyncio.sleep(seconds / len(MODES))


async def send(stack: Stack, load: list[Arrival], folder: Path) -> list[Result]:
    folder.mkdir(parents=True)
    spec = LoadSpec(url=stack.url, model=stack.model, length_channel="sim", drain_s=20.0)
    write_plan(folder / "plan", load, spec, folder / "results")
    await run_process(folder / "plan", lambda _: None)
    return read_results(folder / "results")


async def side_by_side(stacks: tuple[Stack, Stack, str], agent: Absurd, load: list[Arrival], seconds: float, folder: Path):
    passing, steered, _ = await asyncio.gather(
        send(stacks[0], load, folder / "pass"), send(stacks[1], load, folder / "absurd"), through_all_modes(agent, seconds)
    )
    return passing, steered


@pytest.mark.parametrize("name", list(FIELDS))
async def test_an_absurd_agent_costs_at_most_two_per_cent(stacks: tuple[Stack, Stack, str], name: str, tmp_path: Path):
    admin = AdminClient(stacks[1].admin)
    agent = Absurd(name, stacks[2], [engine["name"] for engine in admin.engines()])
    async with speaking(agent):
        low = await side_by_side(stacks, agent, arrivals(1, rps=LOW_RPS, seconds=LOW_S), LOW_S, tmp_path / "low")
        high = await side_by_side(stacks, agent, arrivals(2, rps=HIGH_RPS, seconds=HIGH_S), HIGH_S, tmp_path / "high")
    for what, (passing, steered) in (("low", low), ("high", high)):
        print(name, what, len(passing), sum(map(is_good, passing)), sum(map(is_good, steered)))
        for span, length in ((LOW_S if what == "low" else HIGH_S, len(MODES)),):
            for i, mode in enumerate(MODES):
                a, b = ([r for r in rs if i <= r.at_s / span * length < i + 1] for rs in (passing, steered))
                print("   ", mode, len(a), sum(map(is_good, a)), sum(map(is_good, b)), max((r.ttft_ms for r in b), default=0))
    for event in admin.events(200):
        if event["kind"] in ("agent.aside", "dispatch.relieved"):
            print(event["kind"], event["subject"], event["after"], event["reason"])
