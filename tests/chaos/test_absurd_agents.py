"""An agent that answers absurdly costs next to nothing: real processes, a real Valkey, pass-through beside it on the same requests."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from absurd import FIELDS, MODES, Absurd
from hmas_lab.as_it_comes import Stack
from hmas_lab.frontdoor.arms import Arm, arm_of, running_arm
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.frontdoor.settings import PASS, QUICK, TARGETS
from hmas_lab.questions import read_questions

from hmas.controller.admin.client import AdminClient
from hmas.controller.config.derived import ADMIN_TOKEN_FILE
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.process import LoadSpec, run_process, write_plan
from hmas.loadgen.results import Result, is_good, read_results
from hmas.loadgen.workload import Arrival

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]
FORMS = ("chat-1", "chat-3", "completion")
LOW_RPS, HIGH_RPS = 4.0, 11.0
"""About a third and nine tenths of what the two engines serve of these requests in time."""
LOW_S, HIGH_S = 7.0, 21.0
LEAST = 0.98
"""Good requests over those of pass-through, all modes together, at least."""
NOISE = 3
"""Good requests by which two equal stacks beside each other differ on a busy machine."""


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
        passing = await exits.enter_async_context(running_arm(arm_of(PASS), QUICK.engines, folder / "p"))
        steered = await exits.enter_async_context(running_arm(Arm(), QUICK.engines, folder / "s"))
        yield passing, steered, f"unix://{folder}/s/state/bus/r.sock"


@asynccontextmanager
async def speaking(agent: Absurd, folder: Path) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(agent.run()), asyncio.create_task(silenced(agent.agent, folder))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def kill_agent(name: str, folder: Path) -> None:
    """Kills an agent of the stack in this folder, if it runs."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"run" in words and name.encode() in words and str(folder).encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


async def silenced(name: str, folder: Path) -> None:
    """Kills the stack's own agent whenever it starts, before it says anything: the absurd one speaks in its place."""
    while True:
        kill_agent(name, folder)
        await asyncio.sleep(0.1)


async def through_all_modes(agent: Absurd, seconds: float) -> None:
    for mode in MODES:
        agent.mode = mode
        await asyncio.sleep(seconds / len(MODES))


async def send(stack: Stack, load: list[Arrival], folder: Path) -> list[Result]:
    folder.mkdir(parents=True)  # noqa: ASYNC240 - nothing else runs here
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
    state = Path(stacks[2].removeprefix("unix://")).parents[1]
    admin = AdminClient(stacks[1].admin, token_file=state / ADMIN_TOKEN_FILE)
    agent = Absurd(name, stacks[2], [engine["name"] for engine in admin.engines()])
    async with speaking(agent, state):
        low = await side_by_side(stacks, agent, arrivals(1, rps=LOW_RPS, seconds=LOW_S), LOW_S, tmp_path / "low")
        high = await side_by_side(stacks, agent, arrivals(2, rps=HIGH_RPS, seconds=HIGH_S), HIGH_S, tmp_path / "high")
    status = admin.status()
    good = {what: tuple(sum(map(is_good, results)) for results in pair) for what, pair in (("low", low), ("high", high))}
    print(name, good, status["agents"][name]["answers"])  # noqa: T201 - figures for who runs it with -s
    assert agent.said > 0
    assert status["agents"][name]["age_s"] is not None
    assert all(result.outcome == "completed" for _, steered in (low, high) for result in steered)
    passing, steered = (sum(counts) for counts in zip(*good.values(), strict=True))
    assert steered >= LEAST * passing - NOISE, (
        f"{name}: good requests of pass-through and beside it, by load: {good}; {status['agents'][name]}"
    )
