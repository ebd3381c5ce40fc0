"""SIGKILL each process in turn under load: every submitted request gets exactly one outcome, and what was killed comes back."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hmas.controller.admin.client import AdminClient
from hmas.controller.config.derived import ADMIN_TOKEN_FILE
from hmas.controller.core.errors import AdminError
from hmas.controller.core.types import Slo, TaskType
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.runtime.ports import free_port
from hmas.loadgen.process import LoadGenerator, LoadSpec
from hmas.loadgen.results import Result
from hmas.loadgen.workload import Arrival, Turn

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(180)]

AGENTS = ("perception", "prediction", "qos", "meta", "statera")
RATE_RPS = 25.0
LOAD_S = 6.0
KILL_AFTER_S = 2.0


def arrivals(count: int) -> list[Arrival]:
    """A steady stream of short requests, some of them long enough to be in flight when the kill comes."""
    return [
        Arrival(
            at_s=i / RATE_RPS,
            kind="conversation",
            tenant="default",
            task_type=TaskType.QA,
            importance=0.75,
            messages=(Turn(role="user", content=f"Question {i}: why is the sky blue?"),),
            prompt_tokens=12,
            output_tokens=20 + 40 * (i % 3),
            max_tokens=512,
            slo=Slo(ttft_ms=4000, tpot_ms=70),
        )
        for i in range(count)
    ]


class Stack:
    """A running `hmas up` with two embedded engines."""

    def __init__(self, directory: Path) -> None:
        self.port, self.admin_port = free_port(), free_port()
        self.directory = directory
        self.log = (directory / "up.log").open("wb")
        env = {**os.environ, "HMAS_STATE_DIR": str(directory), "HMAS_BUS__DURABLE": "true", "HMAS_AGENTS__STALE_AFTER_S": "3"}
        command = [sys.executable, "-m", "hmas", "up", "--engine", "sim", "--engine", "sim", "--no-auth"]
        ports = ["--port", str(self.port), "--admin-port", str(self.admin_port)]
        self.process = subprocess.Popen([*command, *ports], env=env, stdout=self.log, stderr=self.log)
        self.admin = AdminClient(f"http://127.0.0.1:{self.admin_port}", token_file=directory / ADMIN_TOKEN_FILE)

    def pid_of(self, name: str) -> int | None:
        """The running process of that name, found among the descendants of `hmas up`."""
        marks = {"valkey": ["unixsocket"], "gateway": ["run\0gateway"], "sim-1": ["--name\0sim-1"], "sim-2": ["--name\0sim-2"]}
        wanted = marks.get(name, [f"run\0agent\0{name}"])
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes().decode(errors="replace")
                parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError):
                continue
            # The server started by the supervisor rewrites its command line, so it is known by its parent and its socket.
            if parent == self.process.pid and (all(mark in command for mark in wanted) or (name == "valkey" and "valkey" in command)):
                return int(path.name)
        return None

    def status(self) -> dict:
        return self.admin.status()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


def wait_until(what: str, check: Callable[[], bool], timeout_s: float = 40.0) -> None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        try:
            if check():
                return
        except AdminError:
            pass
        time.sleep(0.05)
    pytest.fail(f"not within {timeout_s:g} s: {what}")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    # A short path: the embedded server's socket must stay under 107 bytes.
    with tempfile.TemporaryDirectory(prefix="hmas") as directory:
        running = Stack(Path(directory))
        try:
            wait_until("gateway serves and knows both engines", lambda: healthy_engines(running) == 2)
            yield running
            assert running.stop() == 0, (Path(directory) / "up.log").read_text()[-4000:]
        finally:
            running.close()


def healthy_engines(stack: Stack) -> int:
    return sum(bool(instance["healthy"]) for instance in stack.status()["instances"])


async def load_and_kill(stack: Stack, name: str) -> list[Result]:
    """Replays the load and kills the named process in the middle of it."""
    load = LoadSpec(url=f"http://127.0.0.1:{stack.port}", model="sim", length_channel="sim", drain_s=30.0)
    generator = LoadGenerator(arrivals(int(RATE_RPS * LOAD_S)), load, SystemClock())
    running = asyncio.create_task(generator.run())
    await asyncio.get_running_loop().run_in_executor(None, wait_progress, generator)
    before = stack.pid_of(name)
    assert before is not None, f"{name} is not running"
    os.kill(before, signal.SIGKILL)
    await running
    wait_until(f"{name} is started again", lambda: stack.pid_of(name) not in (None, before))
    return generator.results


def wait_progress(generator: LoadGenerator) -> None:
    wait_until("load is under way", lambda: sum(r.outcome == "completed" for r in generator.results) > RATE_RPS * KILL_AFTER_S / 2)


def conserved(stack: Stack) -> bool:
    """The gateway's own account: nothing queued or running is left, and every arrival has ended once."""
    counts = stack.status()["counts"]
    return counts["conserved"] and counts["queued"] == 0 and counts["running"] == 0 and counts["arrived"] == sum(counts["ended"].values())


@pytest.mark.parametrize("name", [*AGENTS, "valkey"])
async def test_serving_goes_on_without(stack: Stack, name: str):
    arrived_before = stack.status()["counts"]["arrived"]
    results = await load_and_kill(stack, name)
    assert len(results) == int(RATE_RPS * LOAD_S)
    bad = [(r.index, r.outcome, r.detail) for r in results if r.outcome != "completed"]
    assert bad == []
    wait_until("everything has ended", lambda: conserved(stack))
    assert stack.status()["counts"]["arrived"] == arrived_before + len(results)


@pytest.mark.parametrize("name", ["qos", "meta", "statera"])
async def test_serving_goes_on_while_an_agent_hangs_and_when_it_comes_back(stack: Stack, name: str):
    """A process that is stopped says nothing and hears nothing, and has a backlog to work off when it goes on."""
    wait_until("the agents are followed", lambda: followed(stack) == {"meta", "statera"})
    arrived_before = stack.status()["counts"]["arrived"]
    load = LoadSpec(url=f"http://127.0.0.1:{stack.port}", model="sim", length_channel="sim", drain_s=30.0)
    generator = LoadGenerator(arrivals(int(RATE_RPS * LOAD_S)), load, SystemClock())
    running = asyncio.create_task(generator.run())
    await asyncio.get_running_loop().run_in_executor(None, wait_progress, generator)
    pid = stack.pid_of(name)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        await running
        # Nobody hears of it for longer than it is believed.
        await asyncio.get_running_loop().run_in_executor(None, wait_until, "the gateway falls back", lambda: "fallback" in followed(stack))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [r.outcome for r in generator.results] == ["completed"] * int(RATE_RPS * LOAD_S)
    wait_until("everything has ended", lambda: conserved(stack))
    assert stack.status()["counts"]["arrived"] == arrived_before + len(generator.results)
    wait_until("the agents are followed again", lambda: followed(stack) == {"meta", "statera"})


def followed(stack: Stack) -> set[str]:
    """On whose word policy and windows are what they are."""
    policy, knobs = stack.admin.policy(), stack.admin.knobs()["instances"]
    return {policy["source"], *(instance["n_run"]["source"] for instance in knobs)}


async def test_a_killed_engine_costs_only_what_it_was_streaming(stack: Stack):
    arrived_before = stack.status()["counts"]["arrived"]
    results = await load_and_kill(stack, "sim-1")
    outcomes = [r.outcome for r in results]
    assert "lost" not in outcomes, [(r.index, r.detail) for r in results if r.outcome == "lost"]
    assert outcomes.count("completed") + outcomes.count("failed") == len(results)
    # What had its first token ends with an error event; the rest is retried on the other engine.
    assert outcomes.count("failed") <= 32
    wait_until("everything has ended", lambda: conserved(stack))
    assert stack.status()["counts"]["arrived"] == arrived_before + len(results)
    wait_until("the engine is back", lambda: healthy_engines(stack) == 2)


async def test_a_killed_gateway_breaks_connections_but_starts_clean(stack: Stack):
    results = await load_and_kill(stack, "gateway")
    assert len(results) == int(RATE_RPS * LOAD_S)
    assert sum(r.outcome == "completed" for r in results) > 0
    # Nobody can answer for a killed process: its clients see their connection break, each of them once, and none hangs.
    assert all(r.total_ms >= 0 for r in results)
    wait_until("the gateway is back with both engines", lambda: healthy_engines(stack) == 2)
    wait_until("everything has ended", lambda: conserved(stack))
    again = LoadGenerator(arrivals(20), LoadSpec(url=f"http://127.0.0.1:{stack.port}", model="sim", length_channel="sim"), SystemClock())
    await again.run()
    assert [r.outcome for r in again.results] == ["completed"] * 20


def test_the_sums_come_out_for_operators_too(stack: Stack):
    document = json.loads(
        subprocess.run(
            [sys.executable, "-m", "hmas", "status", "--json", "--admin", f"http://127.0.0.1:{stack.admin_port}"],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "HMAS_STATE_DIR": str(stack.directory)},
        ).stdout
    )
    assert document["counts"]["conserved"] is True
    assert {name for name, agent in document["agents"].items() if isinstance(agent, dict) and agent["age_s"] is not None} >= {
        "perception",
        "prediction",
        "meta",
        "statera",
    }
