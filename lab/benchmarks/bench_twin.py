"""What meta's digital twin costs: how long it replays, and what that does to a live gateway beside it.

python lab/benchmarks/bench_twin.py      # prints, and writes build/bench/twin.json

`hmas up` with two embedded engines serves a steady load, with all agents. In half of the runs meta goes by the rule map alone, in the other
half by the twin, in the order A B B A; nothing else differs. Compared are the gateway's own overhead (`x-hmas-overhead-ms`) and TTFT as the
client sees it, as ratios within each pair of runs. How long a round of replays took stands in the decisions themselves, and how many
candidates were weighed: those of the last rounds.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import numpy as np

from hmas.cli.output import table
from hmas.controller.admin.client import AdminClient
from hmas.controller.config.derived import ADMIN_TOKEN_FILE
from hmas.controller.core.errors import AdminError
from hmas.controller.runtime.ports import free_port

ARMS = {"rules": {"META_SELECTOR": "rules", "META_JUDGE": "false"}, "twin": {"META_SELECTOR": "twin"}}
GOAL_S, GOAL_P99 = 2.0, 1.05
STARTUP_S = 60.0
WORDS = tuple("the quick brown fox jumps over the lazy dog and goes on to explain why that matters".split())  # noqa: SIM905 - read as prose


def main() -> None:
    """Runs the pairs and writes what they came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs, at least 1")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured seconds of a run")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--out", type=Path, default=Path("build/bench/twin.json"))
    chosen = parser.parse_args()
    if chosen.pairs < 1 or chosen.seconds < 20 or chosen.rate <= 0:
        parser.error("allowed: --pairs 1 or more, --seconds 20 or more, --rate more than 0")
    pairs = []
    for number in range(chosen.pairs):
        order = list(ARMS) if number % 2 == 0 else list(reversed(ARMS))
        made = {arm: one_run(arm, chosen.seconds, chosen.rate) for arm in order}
        pairs.append(made)
        for arm in order:
            print(f"pair {number + 1}, {arm}: {made[arm]}", file=sys.stderr)
    result = told(pairs)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    rows = [(name, f"{value:.3f}") for name, value in result["figures"].items()]
    print(table(("figure", "value"), rows))
    print(f"written to {chosen.out}", file=sys.stderr)


def told(pairs: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over pairs; ratios are the twin's over the rule map's in the same pair."""
    replays = [seconds for pair in pairs for seconds in pair["twin"]["replays_s"]]
    figures = {
        "round of replays, s, median": median(replays) if replays else float("nan"),
        "round of replays, s, longest": max(replays, default=float("nan")),
        "candidates weighed, median": median(number for pair in pairs for number in pair["twin"]["candidates"]) if replays else 0.0,
    }
    for name in ("overhead_ms_p50", "overhead_ms_p99", "ttft_ms_p50", "ttft_ms_p99"):
        figures[f"{name}, rules"] = median(pair["rules"][name] for pair in pairs)
        figures[f"{name}, twin over rules"] = median(pair["twin"][name] / pair["rules"][name] for pair in pairs)
    return {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "goals": {"replay_s": GOAL_S, "overhead_p99_ratio": GOAL_P99},
        "figures": figures,
        "pairs": pairs,
    }


def one_run(arm: str, seconds: float, rate: float) -> dict[str, Any]:
    """One stack from start to end."""
    with tempfile.TemporaryDirectory(prefix="hmas") as directory:
        port, admin_port = free_port(), free_port()
        changes = {f"HMAS_AGENTS__{name}": value for name, value in ARMS[arm].items()}
        env = {**os.environ, "HMAS_STATE_DIR": directory, **changes}
        command = [sys.executable, "-m", "hmas", "up", "--engine", "sim", "--engine", "sim", "--no-auth"]
        with (Path(directory) / "up.log").open("wb") as log:
            ports = ["--port", str(port), "--admin-port", str(admin_port)]
            process = subprocess.Popen([*command, *ports], env=env, stdout=log, stderr=log)
            try:
                admin = AdminClient(f"http://127.0.0.1:{admin_port}", token_file=Path(directory) / ADMIN_TOKEN_FILE)
                _await_engines(admin)
                seen = asyncio.run(_load(f"http://127.0.0.1:{port}/v1/chat/completions", seconds, rate))
                decisions = admin.decisions(512)
            finally:
                process.terminate()
                process.wait(60)
    replays = [one for one in decisions if "replay_s" in one["evidence"]]
    return seen | {
        "replays_s": [round(one["evidence"]["replay_s"], 3) for one in replays],
        "candidates": [len(one["candidates"]) for one in replays],
    }


def _await_engines(admin: AdminClient) -> None:
    end_s = time.monotonic() + STARTUP_S
    while time.monotonic() < end_s:
        try:
            if sum(bool(instance["healthy"]) for instance in admin.status()["instances"]) == 2:
                return
        except AdminError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"`hmas up` did not serve within {STARTUP_S:g} s")


async def _load(url: str, seconds: float, rate: float) -> dict[str, float]:
    """A Poisson stream; the first third fills windows and is not measured."""
    random = np.random.default_rng(7)
    lead_s = seconds / 2.0
    gaps = random.exponential(1.0 / rate, int(rate * (lead_s + seconds)))
    overheads: list[float] = []
    ttfts: list[float] = []

    async def one(session: aiohttp.ClientSession, measured: bool) -> None:
        prompt = " ".join(random.choice(WORDS, int(random.integers(20, 400))))
        body = {
            "model": "sim",
            "stream": True,
            "max_tokens": int(random.integers(10, 200)),
            "messages": [{"role": "user", "content": prompt}],
        }
        start_s = time.perf_counter()
        async with session.post(url, json=body) as response:
            first_ms = -1.0
            async for _ in response.content.iter_any():
                if first_ms < 0.0:
                    first_ms = 1000.0 * (time.perf_counter() - start_s)
            if measured and response.status == 200 and "x-hmas-overhead-ms" in response.headers:
                overheads.append(float(response.headers["x-hmas-overhead-ms"]))
                ttfts.append(first_ms)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = []
        begin_s = due_s = time.perf_counter()
        for gap_s in gaps:
            due_s += float(gap_s)
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.append(asyncio.create_task(one(session, due_s - begin_s > lead_s)))
        await asyncio.gather(*tasks)
    if not overheads:
        raise SystemExit("nothing was served")
    found = {"measured": float(len(overheads))}
    for name, values in (("overhead_ms", overheads), ("ttft_ms", ttfts)):
        for quantile in (50, 99):
            found[f"{name}_p{quantile}"] = round(float(np.percentile(values, quantile)), 3)
    return found


if __name__ == "__main__":
    main()
