"""Routers on unequal engines: the throttle, speeds, figures, the page, and one small study on embedded engines."""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from hmas_lab.compare import plain
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.questions import read_questions
from hmas_lab.spoilt import until_quiet
from hmas_lab.throttle import PERIOD_S, Turns, throttled
from hmas_lab.unequal.figures import Row, row_of, summary
from hmas_lab.unequal.page import body
from hmas_lab.unequal.settings import FAST, OURS, ROUTERS, SLOW, Settings, door_settings
from hmas_lab.unequal.speeds import TOKENS, Speed, check_alive, ratio, speed_of
from hmas_lab.unequal.study import Unequal

from hmas.controller.core.types import Slo, TaskType
from hmas.controller.routing.registry import ROUTERS as KNOWN
from hmas.controller.runtime.ports import free_port
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import faster, load_profile
from hmas.engines.sim.server import create_app, start
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.results import Result
from hmas.planning import StudyError

POLL_S, POLLS = 0.01, 500


def test_turns_keep_their_share_though_each_ends_late():
    turns = Turns(0.33)
    ran_s = stood_s = 0.0
    for number in range(2000):
        late_s = 0.004 * (number % 3)
        run_s = turns.run_s()
        ran = run_s + (late_s if run_s else 0.0)
        stood = turns.stop_s(ran) + late_s
        turns.ended(ran, stood)
        ran_s, stood_s = ran_s + ran, stood_s + stood
    assert ran_s / (ran_s + stood_s) == pytest.approx(0.33, abs=0.002)


def test_a_pause_of_the_machine_is_not_made_up_for_by_a_burst():
    turns = Turns(0.33)
    turns.ended(0.0, 60.0)
    assert turns.run_s() == PERIOD_S
    turns.ended(PERIOD_S, 0.0)
    turns.ended(PERIOD_S, 0.0)
    assert turns.run_s() < PERIOD_S
    turns.ended(60.0, 0.0)
    assert turns.run_s() == 0.0, "and what ran for a minute does not stand still for two"
    turns.ended(0.0, 2.0 * PERIOD_S / 0.33)
    assert turns.run_s() > 0.0


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


async def seen(pid: int, state: str) -> bool:
    for _ in range(POLLS):
        if state_of(pid) == state:
            return True
        await asyncio.sleep(POLL_S)
    return False


async def test_a_process_is_stopped_in_turn_and_runs_on_afterwards():
    waits = (sys.executable, "-c", "input()")
    process = await asyncio.create_subprocess_exec(*waits, stdin=asyncio.subprocess.PIPE, start_new_session=True)
    try:
        async with throttled(process.pid, 0.33):
            assert await seen(process.pid, "T")
            assert await seen(process.pid, "S")
            assert await seen(process.pid, "T")
        assert state_of(process.pid) != "T"
    finally:
        process.kill()
        await process.wait()


async def test_a_throttle_that_ended_too_early_is_told():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass", start_new_session=True)
    await process.wait()

    async def throttle_for_a_while() -> None:
        async with throttled(process.pid, 0.33):
            for _ in range(POLLS):
                await asyncio.sleep(POLL_S)

    with pytest.raises(StudyError, match=f"throttles group {process.pid} ended with status 0"):
        await throttle_for_a_while()


async def test_runs_are_made_again_while_they_are_spoilt():
    noise = iter([True, True, False, True])

    async def make() -> bool:
        return next(noise)

    assert await until_quiet(make, bool, 2) == [True, True, False]
    assert await until_quiet(make, bool, 0) == [True], "the last one may be spoilt"


async def test_speeds_are_of_the_first_token_and_of_each_after_it():
    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        if asked["messages"][0]["content"] == "bad":
            return web.json_response({"error": "no"}, status=400)
        await asyncio.sleep(0.002 * asked["max_tokens"])
        return web.json_response({})

    port = free_port()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    url = f"http://127.0.0.1:{port}"
    try:
        found = await speed_of(url, "m", ["one", "two", "three"])
        with pytest.raises(StudyError, match="answers 400 while its speed is measured"):
            await speed_of(url, "m", ["bad"])
    finally:
        await runner.cleanup()
    assert 1.5 < found.token_ms < 8.0
    with pytest.raises(StudyError, match="does not answer while its speed is measured: Client"):
        await speed_of(url, "m", ["one"])
    with pytest.raises(StudyError, match="the slow engine has ended under a run"):
        await check_alive({SLOW: url})


def test_the_ratio_is_that_of_whole_answers():
    fast, slow = Speed(first_ms=20.0, token_ms=10.0), Speed(first_ms=30.0, token_ms=30.0)
    assert ratio(fast, slow) == (30.0 + 30.0 * TOKENS) / (20.0 + 10.0 * TOKENS)


def result(at_s: float, instance: str = FAST, ttft_ms: float = 100.0, outcome: str = "completed") -> Result:
    return msgspec.convert(
        {
            "index": 0, "at_s": at_s, "kind": "chat-1", "tenant": "default", "task_type": TaskType.QA, "size": "short", "prompt_tokens": 10,
            "wanted_tokens": 11, "slo": Slo(ttft_ms=2000, tpot_ms=60), "outcome": outcome, "ttft_ms": ttft_ms, "tpot_ms": 20.0,
            "total_ms": 300.0, "instance": instance,
        },
        Result,
        from_attributes=True,
    )  # fmt: skip


def test_a_row_leaves_the_warm_up_out_and_counts_what_never_began():
    results = [
        result(0.5, SLOW, 9000.0),
        result(1.0),
        result(2.0),
        result(3.0, SLOW, 3000.0),
        result(4.0, "", -1.0, "shed"),
    ]
    row = row_of(results, warmup_s=1.0, never_ms=50_000.0)
    assert (row.sent, row.good, row.ended, row.to_fast) == (4, 2, 3, 0.6667)
    assert row.ttft_ms_p50 == 1550.0
    assert row.ttft_ms_p95 > 40_000.0, "one of four has no first token"
    assert row.good_share == 0.5
    assert row_of([], warmup_s=1.0, never_ms=1.0).good_share == 0.0


def row(good: int, ttft_ms: float = 100.0) -> dict[str, object]:
    found: dict[str, object] = plain(Row(sent=10, good=good, ended=10, ttft_ms_p50=ttft_ms, ttft_ms_p95=2.0 * ttft_ms, to_fast=0.75))
    return found


def block(number: int, **good: int) -> dict[str, object]:
    names = {"round-robin": good["turns"], OURS: good["ours"]} | ({"least-loaded": good["least"]} if "least" in good else {})
    runs = {name: row(count, 1000.0 / count) for name, count in names.items()}
    spoilt = {} if "least" in good else {"least-loaded": 3}
    return {"number": number, "ratio": 3.1, "loads": [{"load": 0.5, "order": list(runs), "runs": runs, "rejected": spoilt}]}


BLOCKS = [
    block(1, turns=5, ours=9, least=8),
    block(2, turns=4, ours=8),
    block(3, turns=5, ours=9, least=9),
    block(4, turns=4, ours=8, least=7),
]
COMPARED = ("round-robin", "least-loaded", OURS)


def test_routers_are_compared_within_blocks_and_without_spoilt_runs():
    (found,) = summary(BLOCKS, (0.5,), COMPARED)["loads"]
    arms = found["arms"]
    assert list(arms) == list(COMPARED)
    assert "over_default" not in arms[OURS]
    over = arms["round-robin"]["over_default"]
    assert (over["blocks"], over["good_share"], over["verdict"]) == (4, {"mean": -40.0, "half": 0.0, "sure_half": 0.0}, "worse")
    assert over["ttft_ms_p50"]["mean"] > 0.0
    least = arms["least-loaded"]
    assert (least["runs"], least["rejected"], least["sent"], least["good"]) == (3, 3, 30, 24)
    assert least["over_default"]["blocks"] == 3
    assert least["over_default"]["verdict"] == "within noise"
    assert least["over_default"]["good_share"]["sure_half"] > least["over_default"]["good_share"]["half"] > 0.0
    few = summary(BLOCKS[:2], (0.5,), COMPARED)["loads"][0]["arms"]
    assert few["round-robin"]["over_default"]["verdict"] == "too few runs"
    assert few["least-loaded"]["over_default"]["good_share"]["half"] is None, "one pair has no interval"


def document() -> dict[str, object]:
    return {
        "settings": msgspec.to_builtins(Settings(blocks=5)) | {"warmup_s": 10.0},
        "machine": {"cpus": 2},
        "speeds": {FAST: {"first_ms": 60.0, "token_ms": 20.0}, SLOW: {"first_ms": 190.0, "token_ms": 62.0}},
        "ratio": 3.1,
        "stretch": 1.9,
        "targets_ms": [[3800.0, 114.0], [1900.0, 95.0]],
        "capacity_rps": {FAST: 2.0, SLOW: 0.5},
        "blocks": BLOCKS,
        "summary": summary(BLOCKS, (0.5,), COMPARED),
    }


def test_the_page_has_a_row_for_each_router_and_says_what_was_measured():
    text = body(document())
    assert (
        "4 of 5 blocks, 60 s of arrivals in a run; those of the first 10 s are not scored. Machine: 2 cores. 3 runs were rejected" in text
    )
    assert "The slow one takes 3.10 times as long for an answer; before each block: 3.10, 3.10, 3.10, 3.10." in text
    assert "2.00 on the fast engine, 0.50 on the slow one, 2.50 together." in text
    assert "| `round-robin` | 4 | 18 of 40 | 40 | 225 | 450 | 75.0% | -40.0 | 107 ± 33 | worse |" in text
    assert f"| `{OURS}` | 4 | 34 of 40 | 40 | 118 | 236 | 75.0% | - | - | - |" in text


def test_a_router_without_a_run_has_no_figures():
    gone = [block(1, turns=5, ours=9)]
    text = body(document() | {"blocks": gone, "summary": summary(gone, (0.5,), COMPARED)})
    assert "| `least-loaded` | 0 | 0 of 0 | 0 | - | - | - | - | - | - |" in text


def test_requests_are_chats_of_one_three_and_five_messages_in_equal_parts():
    door = door_settings(Settings())
    load = DoorLoad(door, read_questions(None, max_prompt=door.max_prompt, max_output=door.max_output), load_mixture()[1])
    arrivals = load.arrivals(0, rps=2.0, seconds=60.0)[:96]
    said = [len([m for m in one.body.document["messages"] if m["role"] in ("user", "assistant")]) for one in arrivals if one.body]
    assert {count: said.count(count) for count in set(said)} == {1: 32, 3: 32, 5: 32}
    assert sum("max_tokens" in one.body.document for one in arrivals if one.body) == 48
    assert sum(one.declares for one in arrivals) == 48
    assert set(ROUTERS) <= set(KNOWN)


@pytest.mark.slow
@pytest.mark.timeout(280)
async def test_a_small_study_on_embedded_engines(tmp_path):
    settings = Settings(blocks=1, seconds=8.0, loads=(0.5,), retries=0)
    door = msgspec.structs.replace(
        door_settings(settings), engine="sim", cap=30, max_prompt=100, max_output=40, drain_s=20.0,
    )  # fmt: skip
    questions = read_questions(None, max_prompt=door.max_prompt, max_output=door.max_output)
    told: list[str] = []
    async with AsyncExitStack() as exits:
        urls = {}
        for name, speed in ((FAST, 1.0), (SLOW, 1.0 / 3.0)):
            runner, port = await start(create_app(EngineModel(faster(load_profile("demo-small"), speed)), "demo", name), grace_s=0.1)
            exits.push_async_callback(runner.cleanup)
            urls[name] = f"http://127.0.0.1:{port}"
        study = Unequal(
            settings,
            door,
            DoorLoad(door, questions, load_mixture()[1]),
            prompts=[one.text for one in questions],
            urls=urls,
            model="demo",
            folder=tmp_path,
            say=told.append,
        )
        ground = await study.ground()
        made = await study.block(0, ground)
        with pytest.raises(StudyError, match=r"at load 0.5 \(0.00 requests/s\) no request is scored in 8 s; use more --seconds"):
            await study.block(0, msgspec.structs.replace(ground, capacity_rps={FAST: 1e-6, SLOW: 0.0}))
    assert 2.0 < made["ratio"] < 4.5
    assert ground.capacity_rps[FAST] > ground.capacity_rps[SLOW]
    (part,) = made["loads"]
    assert sorted(part["order"]) == sorted(ROUTERS)
    assert set(part["runs"]) | set(part["rejected"]) == set(ROUTERS)
    assert len({one["sent"] for one in part["runs"].values()}) <= 1
    assert all(0.0 < one["to_fast"] <= 1.0 for one in part["runs"].values())
    found = study.document(ground, [made], {"machine": {"cpus": os.cpu_count()}})
    assert found["complete"]
    assert "| `round-robin` | " in body(found)
