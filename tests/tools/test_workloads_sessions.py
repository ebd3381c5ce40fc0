import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from hmas.controller.core.errors import TraceError
from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import Controls, OutcomeKind, TaskType
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.controller.simulation import simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile
from hmas.workloads import SessionDriver, build, build_sessions
from hmas.workloads.session_files import read_text2sql, read_tool_sessions

DATA = os.environ.get("HMAS_DATA_DIR", "")
needs_data = pytest.mark.skipif(not DATA, reason="HMAS_DATA_DIR names no folder of public data")
PROFILE = load_profile("demo-small")


def sql(name="w-0", steps=("extract_keywords", "generate_candidate_x", "generate_candidate_x", "revise", "evaluate", "evaluate")):
    calls = [{"i": i, "step": step, "input_tokens": 300 + i, "output_tokens": 10 + i} for i, step in enumerate(steps)]
    return {"workflow_id": name, "trace": "financial", "n_calls": len(calls), "calls": calls}


def tools(name="t-0", source="agentcgroup/all", **more):
    calls = [
        {
            "ready_s": 0.0,
            "end_s": 4.0,
            "input_tokens": 640,
            "cached_tokens": 320,
            "output_tokens": 20,
            "tools": [{"dur_s": 9.0, "return_tokens": 64}],
        },
        {"ready_s": 6.5, "end_s": 8.0, "input_tokens": 832, "cached_tokens": 640, "output_tokens": 30, "tools": []},
        {"ready_s": 8.25, "end_s": 9.0, "input_tokens": 960, "cached_tokens": None, "output_tokens": 0, "tools": []},
    ]
    return {"session_id": name, "source": source, "model": None, "calls": calls} | more


def put(tmp_path, *rows, name="s.jsonl.gz"):
    path = tmp_path / name
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def run(plan, *, n_run=16, until_s=None, kv_capacity_tokens=0, **settings):
    scheduler = Scheduler(
        settings=SchedulerSettings(**settings),
        instances=[InstanceSpec(name="a", capacity_n_run=64, kv_capacity_tokens=kv_capacity_tokens)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    scheduler.set_controls("a", Controls(n_run=n_run))
    driver = SessionDriver(plan, model="m")
    result = simulate(driver.arrivals(), {"a": EngineModel(PROFILE)}, scheduler, followups=driver.followups, until_s=until_s)
    return driver, {record.request_id: record for record in result.records}


def test_stages_of_text_to_sql(tmp_path):
    (session,) = read_text2sql(put(tmp_path, sql()), parallel=True)
    assert [call.stage for call in session.calls] == [0, 1, 1, 2, 3, 3]
    assert [call.task for call in session.calls[:2]] == [TaskType.EXTRACTION, TaskType.CODE_GENERATION]
    (chain,) = read_text2sql(put(tmp_path, sql()), parallel=False)
    assert [call.stage for call in chain.calls] == [0, 1, 2, 3, 4, 5]


def test_pauses_prefixes_and_returns_of_tool_sessions(tmp_path):
    (session,) = read_tool_sessions(put(tmp_path, tools()), pause_s=7.0)
    assert [call.pause_s for call in session.calls] == pytest.approx([2.5, 0.25, 0.0]), "what the log shows, not the tools' sum"
    assert [call.prefix_tokens for call in session.calls] == [320, 640, 832]
    assert session.calls[2].output_tokens == 1
    assert session.measured
    untimed = tools(source="tau-bench/x")
    for call in untimed["calls"]:
        del call["ready_s"], call["end_s"]
    untimed["calls"][0]["tools"] = [{"dur_s": None, "return_tokens": 5}]
    (guessed,) = read_tool_sessions(put(tmp_path, untimed), pause_s=7.0)
    assert [call.pause_s for call in guessed.calls] == [7.0, 7.0, 0.0]
    assert not guessed.measured
    untimed["calls"][0]["tools"] = [{"dur_s": 2.0, "return_tokens": 5}, {"dur_s": 3.0, "return_tokens": 5}]
    (longest,) = read_tool_sessions(put(tmp_path, untimed), pause_s=7.0)
    assert longest.calls[0].pause_s == 3.0


def test_calls_without_a_prompt_are_left_out(tmp_path):
    empty = tools("t-1")
    for call in empty["calls"]:
        call["input_tokens"] = 0
    holed = tools("t-2")
    holed["calls"][1]["input_tokens"] = 0
    (session,) = read_tool_sessions(put(tmp_path, empty, holed), pause_s=1.0)
    assert (session.id, len(session.calls)) == ("t-2", 2)
    assert session.calls[0].pause_s == pytest.approx(4.25)


def test_a_session_runs_stage_by_stage_with_its_pauses(tmp_path):
    plan = build_sessions(f"tools:{put(tmp_path, tools())}?rate=0.01,count=1")
    driver, records = run(plan)
    first, second, third = (records[f"s0000000-{place:04d}"] for place in range(3))
    ended = [record.arrival_s + record.total_ms / 1000 for record in (first, second, third)]
    assert first.arrival_s == plan.at_s[0]
    assert second.arrival_s == pytest.approx(ended[0] + 2.5)
    assert third.arrival_s == pytest.approx(ended[1] + 0.25)
    (end,) = driver.ended
    assert (end.calls, end.completed, end.source) == (3, True, "agentcgroup/all")
    assert (end.start_s, end.end_s) == (plan.at_s[0], pytest.approx(ended[2]))
    assert [*driver.unsent(whole=True)] == [*driver.unsent(whole=False)], "no session is left"


def test_a_stage_waits_for_all_of_the_one_before(tmp_path):
    driver, records = run(build_sessions(f"text2sql:{put(tmp_path, sql())}?rate=0.01,count=1"))
    at = {int(key[-4:]): record for key, record in records.items()}
    ends = {place: record.arrival_s + record.total_ms / 1000 for place, record in at.items()}
    assert at[1].arrival_s == at[2].arrival_s == pytest.approx(ends[0])
    assert at[3].arrival_s == pytest.approx(max(ends[1], ends[2]))
    assert at[4].arrival_s == at[5].arrival_s == pytest.approx(ends[3])
    assert driver.ended[0].completed


def test_every_session_ends_once_and_every_call_is_served(tmp_path):
    path = put(tmp_path, sql("a"), sql("b", ("extract_keywords", "revise")), sql("c", ("evaluate",) * 5))
    plan = build_sessions(f"text2sql:{path}?rate=3,duration=60")
    driver, records = run(plan)
    assert len(plan) == pytest.approx(180, abs=60)
    assert sorted(end.number for end in driver.ended) == list(range(len(plan)))
    assert all(end.completed for end in driver.ended)
    assert len(records) == plan.calls == sum(end.calls for end in driver.ended)
    assert {record.outcome for record in records.values()} == {OutcomeKind.COMPLETED}


def test_a_call_that_fails_ends_its_session(tmp_path):
    long = sql("long", ("extract_keywords", "revise", "evaluate"))
    long["calls"][1]["input_tokens"] = PROFILE.max_model_len + 1
    driver, records = run(build_sessions(f"text2sql:{put(tmp_path, long)}?rate=0.01,count=1"))
    assert len(records) == 2
    assert [(end.calls, end.completed) for end in driver.ended] == [(2, False)]
    assert [*driver.unsent(whole=True)] == [*driver.unsent(whole=False)], "no session is left"
    cut, records = run(build_sessions(f"text2sql:{put(tmp_path, long)}?rate=0.01,count=1,context={PROFILE.max_model_len}"))
    assert cut.ended[0].completed
    assert records["s0000000-0001"].prompt_tokens < PROFILE.max_model_len


def test_a_call_that_is_refused_on_arrival_ends_its_session(tmp_path):
    long = sql("long", ("extract_keywords", "revise", "evaluate"))
    long["calls"][0]["input_tokens"] = PROFILE.kv_capacity_tokens + 1
    plan = build_sessions(f"text2sql:{put(tmp_path, long)}?rate=0.01,count=1")
    driver, records = run(plan, kv_capacity_tokens=PROFILE.kv_capacity_tokens)
    assert [record.outcome for record in records.values()] == [OutcomeKind.REJECTED]
    assert [(end.calls, end.completed, end.end_s) for end in driver.ended] == [(1, False, records["s0000000-0000"].arrival_s)]
    assert [*driver.unsent(whole=True)] == [*driver.unsent(whole=False)], "no session is left"
    plan = build_sessions(f"text2sql:{put(tmp_path, sql('x', ('evaluate',) * 9))}?rate=0.01,count=1")
    driver, records = run(plan, n_run=1, queue_limit=2)
    assert {record.outcome for record in records.values()} == {OutcomeKind.REJECTED, OutcomeKind.COMPLETED}
    assert [(end.calls, end.completed) for end in driver.ended] == [(9, False)], "its stage has ended first"


def test_calls_that_were_never_sent_are_told(tmp_path):
    plan = build_sessions(f"tools:{put(tmp_path, tools())}?rate=0.01,count=2")
    driver, records = run(plan, until_s=float(plan.at_s[1]) + 0.01)
    assert len(records) == 4, "the first session has ended, the second runs its first call"
    assert [(request.id, request.arrival_s) for request in driver.unsent(whole=True)] == [
        (f"s0000001-{place:04d}", plan.at_s[1]) for place in (1, 2)
    ]
    assert list(driver.unsent(whole=False)) == []
    failing = tools()
    failing["calls"][1]["input_tokens"] = PROFILE.max_model_len + 1
    driver, records = run(build_sessions(f"tools:{put(tmp_path, failing)}?rate=0.01,count=1"))
    (request,) = driver.unsent(whole=False)
    assert (request.id, request.prompt_tokens, request.tenant) == ("s0000000-0002", 960, "agentcgroup/all")
    assert request.arrival_s == driver.ended[0].end_s


def test_blocks_chain_through_a_session_and_share_a_sources_beginning(tmp_path):
    path = put(tmp_path, tools("a"), tools("b"), tools("c", source="agentcgroup/other"))
    plan = build_sessions(f"tools:{path}?rate=1,count=40")
    firsts: dict[str, tuple[int, ...]] = {}
    seen: dict[str, tuple[int, ...]] = {}
    driver = SessionDriver(plan, model="m")
    begun = list(driver.arrivals())
    for arrival in begun:
        assert arrival.hash_tokens == 64
        assert len(arrival.block_hashes) == 10
        shared = firsts.setdefault(arrival.request.tenant, arrival.block_hashes[:5])
        assert arrival.block_hashes[:5] == shared, "320 cached tokens before the first call: the source's common beginning"
        seen[arrival.request.session] = arrival.block_hashes
    assert len(set(firsts.values())) == 2
    own = [set(blocks[5:]) for blocks in seen.values()]
    assert len(set().union(*own)) == sum(map(len, own)), "nothing else is shared between sessions"


def test_the_next_prompt_begins_with_the_one_before(tmp_path):
    plan = build_sessions(f"tools:{put(tmp_path, tools())}?rate=0.01,count=1")
    sent = []

    class Spy(SessionDriver):
        def _arrival(self, live, place, at_s):
            sent.append(super()._arrival(live, place, at_s))
            return sent[-1]

    driver = Spy(plan, model="m")
    scheduler = Scheduler(
        settings=SchedulerSettings(),
        instances=[InstanceSpec(name="a", capacity_n_run=8)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    simulate(driver.arrivals(), {"a": EngineModel(PROFILE)}, scheduler, followups=driver.followups)
    first, second, third = (arrival.block_hashes for arrival in sent)
    assert (len(first), len(second), len(third)) == (10, 13, 15)
    assert second[:10] == first
    assert third[:13] == second


def test_slo_importance_and_caps(tmp_path):
    plan = build_sessions(f"text2sql:{put(tmp_path, sql())}?rate=1,count=20,slo_scale=2")
    for number, arrival in enumerate(SessionDriver(plan, model="m").arrivals()):
        request = arrival.request
        assert request.declared_slo == slo_for(TaskType.EXTRACTION, float(plan.importance[number]), 2.0)
        assert (request.tenant, request.session, request.max_output_tokens) == ("text2sql/financial", str(number), 256)
    assert 0.5 <= plan.importance.min() <= plan.importance.max() <= 1.0


def test_which_sessions_come_is_drawn_apart_from_when(tmp_path):
    path = put(tmp_path, *(sql(f"w-{n}") for n in range(9)))
    slow, fast = (build_sessions(f"text2sql:{path}?rate={rate},count=50,seed=3") for rate in (1, 4))
    assert slow.which.tolist() == fast.which.tolist()
    assert slow.at_s == pytest.approx(fast.at_s * 4)
    assert (build_sessions(f"text2sql:{path}?rate=1,count=50,seed=4").which != slow.which).any()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"workflow_id": "x", "calls": [{"step": "a", "input_tokens": -5, "output_tokens": 1}]},
            r"row 2: Expected `int` >= 1 - at `\$.calls\[0\].input_tokens`",
        ),
        (
            {"workflow_id": "x", "calls": [{"step": "a", "output_tokens": 1}]},
            r"row 2: .*missing required field `input_tokens` - at `\$.calls\[0\]`",
        ),
        ({"workflow_id": "x", "calls": [{"step": "a", "input_tokens": None, "output_tokens": 1}]}, r"row 2: Expected `int`, got `null`"),
        ({"workflow_id": "x", "calls": []}, r"row 2: Expected `array` of length >= 1 - at `\$.calls`"),
        ("nonsense", r"row 2: Expected `object`"),
    ],
)
def test_bad_workflows(tmp_path, row, message):
    with pytest.raises(TraceError, match=message):
        build_sessions(f"text2sql:{put(tmp_path, sql(), row)}")


def test_bad_tool_sessions(tmp_path):
    bad = tools("t-9")
    bad["calls"][0]["tools"][0]["dur_s"] = -1.0
    with pytest.raises(TraceError, match=r"row 2: Expected `float` >= 0.0 - at `\$.calls\[0\].tools\[0\].dur_s`"):
        build_sessions(f"tools:{put(tmp_path, tools(), bad)}")
    with pytest.raises(
        TraceError, match=r"source is 'swe'; allowed: all, how one of these begins, or none for measured pauses: agentcgroup/all"
    ):
        build_sessions(f"tools:{put(tmp_path, tools())}?source=swe")
    with pytest.raises(TraceError, match="no such file"):
        build_sessions(f"tools:{tmp_path / 'none.jsonl'}")
    with pytest.raises(TraceError, match="names no file"):
        build_sessions("tools")
    with pytest.raises(TraceError, match=r"workload is .poisson.; allowed: one of text2sql, tools"):
        build_sessions("poisson")
    with pytest.raises(TraceError, match="whose calls follow from each other"):
        build(f"tools:{put(tmp_path, tools())}")


@needs_data
def test_published_workflows():
    sessions = read_text2sql(f_path("workflows/hexgen_text2sql.jsonl.gz"), parallel=True)
    counts = [len(s.calls) for s in sessions]
    assert len(sessions) == 279
    assert (min(counts), np.median(counts), max(counts)) == (10, 18, 26)
    candidates = [c for s in sessions for c in s.calls if c.step.startswith("generate_candidate")]
    assert np.median([c.prompt_tokens for c in candidates]) == pytest.approx(11_000, rel=0.05)
    assert np.median([c.output_tokens for c in candidates]) == pytest.approx(620, rel=0.05)


@needs_data
def test_published_tool_sessions():
    path = f_path("tools/tool_sessions.jsonl.gz")
    sessions = read_tool_sessions(path, pause_s=1.0)
    assert len(sessions) >= 540
    plan = build_sessions(f"tools:{path}?source=agentcgroup/all_images_local,rate=0.05,duration=100")
    pauses = np.array([c.pause_s for s in plan.sessions for c in s.calls if c.pause_s > 0.0])
    # Tens of milliseconds for most, seconds for shell commands, minutes at the end.
    assert np.median(pauses) < 1.0
    assert np.quantile(pauses, 0.95) > 5.0
    assert {s.source.split("/")[0] for s in build_sessions(f"tools:{path}").sessions} <= {"agentcgroup", "SWE-agent"}
    cached = [c for s in sessions if s.source.endswith("haiku") for c in s.calls[1:]]
    assert np.median([c.prefix_tokens / c.prompt_tokens for c in cached]) > 0.9


def f_path(name):
    return Path(DATA) / name
