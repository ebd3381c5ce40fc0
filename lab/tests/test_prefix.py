"""The study of prefix caches: the rules of other gateways, the count of hits, the traffic, and a small run of all of it."""

from dataclasses import dataclass

import msgspec
import pytest
from hmas_lab.cli import main
from hmas_lab.hetero.arms import ARMS as HETERO_ARMS
from hmas_lab.paper.arms import ARMS as PAPER_ARMS
from hmas_lab.prefix.arms import ARMS, EXACT, HASH, PRODUCT, ROUND_ROBIN
from hmas_lab.prefix.load import SHAPES, load, sessions
from hmas_lab.prefix.page import body
from hmas_lab.prefix.routers import CacheAware, ConsistentHash, InTheCaches, cached_at_best
from hmas_lab.prefix.serving import Row, Task, run_task
from hmas_lab.prefix.study import QUICK, Settings, capacity_rps, goals, kept_rows, run, summary, tasks_of
from hmas_lab.prefix_live.fronts import FRONTS
from hmas_lab.simulated_rows import read_names

from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.engines.sim.model import EngineModel, SimRequest
from hmas.engines.sim.profile import load_profile
from hmas.planning import StudyError
from hmas.planning.backends import on_cores


@dataclass
class State:
    name: str
    in_flight: int = 0
    n_run: int = 10
    sequences: int = 0
    in_flight_tokens: int = 0
    prefill_tokens: int = 0
    awaiting: int = 0
    kv_committed: float = 0.0
    routing_window: float = 10.0
    kv_capacity_tokens: int = 0
    prefill_token_ms: float = 0.0
    decode_token_ms: float = 0.0
    caches_prefixes: bool | None = None


def entry(*blocks: int, session: str = "", name: str = "r") -> QueueEntry:
    request = Request(id=name, tenant="t", model="m", arrival_s=0.0, prompt_tokens=64 * len(blocks), session=session, blocks=blocks)
    return QueueEntry(request=request, estimates=Estimates(slo=Slo(ttft_ms=1, tpot_ms=1)), seq=0)


def test_cache_aware_goes_by_the_longest_match_until_load_is_uneven():
    router = CacheAware()
    states = [State("a"), State("b", in_flight=1), State("c", in_flight=2)]

    def chosen(one: QueueEntry) -> str:
        return next(iter(router.rank(one, states, 0.0))).instance

    assert chosen(entry(1, 2, 3, 4)) == "a"
    router.sent(entry(1, 2, 3, 4), "c", 0.0)
    router.sent(entry(1, 9), "b", 0.0)
    assert chosen(entry(1, 2, 3, 5)) == "c"
    assert chosen(entry(1, 6, 7, 8)) == "a", "one block of four is below the threshold"
    states[2].in_flight = 66
    assert chosen(entry(1, 2, 3, 5)) == "a", "more than 64 and 1.5 times the least"
    states[2].in_flight = 64
    assert chosen(entry(1, 2, 3, 5)) == "c"


def test_a_session_keeps_its_place_on_the_ring_while_its_instance_is_there():
    names = [f"i{number}" for number in range(5)]
    router = ConsistentHash(names)

    def chosen(session: str, there: list[str]) -> str:
        choices = list(router.rank(entry(session=session), [State(name) for name in there], 0.0))
        assert sorted(choice.instance for choice in choices) == sorted(there)
        return choices[0].instance

    before = {f"s{number}": chosen(f"s{number}", names) for number in range(200)}
    assert set(before.values()) == set(names)
    after = {session: chosen(session, names[1:]) for session in before}
    assert all(after[session] == where for session, where in before.items() if where != "i0"), "only sessions of the lost one move"
    assert len({after[session] for session, where in before.items() if where == "i0"}) > 1


def test_exact_knowledge_is_what_the_engine_reports_as_cached():
    engine = EngineModel(load_profile("demo-small"))
    blocks = tuple(range(10))
    view = InTheCaches({"a": engine}, blocks, 64)
    assert view.look() == ({}, 640)
    engine.add(SimRequest("first", 640, 4, 0, 0.0, (*blocks[:7], 77, 78, 79), 64))
    now_s = 0.0
    while (result := engine.step(now_s)) is not None:
        now_s = result.end_s
    assert view.look() == ({"a": 448}, 640)
    engine.add(SimRequest("second", 641, 4, 0, now_s, blocks, 64))
    cached = []
    while (result := engine.step(now_s)) is not None:
        now_s = result.end_s
        cached += [event.cached_tokens for event in result.produced if event.finished]
    assert cached == [448]


def test_an_endless_cache_has_what_any_earlier_prompt_had():
    seen: set[int] = set()
    assert [cached_at_best(seen, blocks) for blocks in ((1, 2, 3), (1, 2, 4), (2, 3), (1, 2, 4, 5))] == [0, 2, 2, 3]


@pytest.mark.parametrize("name", SHAPES)
def test_drawn_sessions_keep_their_history(name):
    shape = SHAPES[name]
    drawn = sessions(shape, seed=3)
    assert len({session.source for session in drawn}) <= shape.apps
    turns = [len(session.calls) for session in drawn]
    assert sum(turns) / len(turns) == pytest.approx(4.99 if shape.turns else 1.0, rel=0.1)
    for session in drawn:
        least, most = shape.system_tokens
        assert least <= session.calls[0].prefix_tokens <= most
        for before, after in zip(session.calls, session.calls[1:], strict=False):
            assert after.prefix_tokens == before.prompt_tokens
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens


def test_traffic_comes_at_its_rate():
    arrivals = list(load("apps", 1, 500, 4.0, "m").arrivals)
    assert len(arrivals) == 500
    assert arrivals[-1].request.arrival_s == pytest.approx(125.0, rel=0.2)
    assert all(arrival.block_hashes for arrival in arrivals)


def test_a_run_counts_its_hits():
    def figures(arm: str) -> dict[str, float]:
        task = Task(arm=arm, workload="apps", rate_rps=4.0, seed=1, requests=200)
        return msgspec.json.decode(run_task(msgspec.json.encode(task)), type=Row).figures

    found = {arm: figures(arm) for arm in (ROUND_ROBIN, PRODUCT, EXACT)}
    assert len({round(one["hit_at_best"], 6) for one in found.values()}) == 1
    assert found[ROUND_ROBIN]["hit"] + 0.1 < found[PRODUCT]["hit"] <= found[PRODUCT]["hit_at_best"]
    assert found[ROUND_ROBIN]["hit"] + 0.1 < found[EXACT]["hit"]
    assert all(one["served"] == 1.0 for one in found.values())


def row(arm: str, good: float, ttft_ms: float, hit: float, *, seed: int = 0, p95_ms: float = 0.0) -> Row:
    figures = {"good": good, "ttft_ms_p50": ttft_ms, "ttft_ms_p95": p95_ms or 2 * ttft_ms, "hit": hit, "hit_at_best": 0.8}
    return Row(task=Task(arm=arm, workload="chats", rate_rps=1.0, load=0.5, seed=seed, requests=1), code="c", figures=figures)


def test_goals_are_held_against_the_best_of_the_peers():
    rows = [row(ROUND_ROBIN, 0.9, 100.0, 0.2), row(HASH, 0.8, 80.0, 0.7), row(PRODUCT, 0.898, 82.0, 0.78), row(EXACT, 0.95, 90.0, 0.8)]
    product, exact = goals(summary(rows))
    assert product["reached"]
    assert product["hit_below_best"] == pytest.approx(0.02)
    assert exact["ttft_p50_over_peers"] == pytest.approx(90 / 80)
    assert not exact["reached"]


def test_what_is_refused_counts_as_infinitely_late(monkeypatch):
    monkeypatch.setattr("hmas_lab.prefix.serving.INSTANCES", 1)
    task = Task(arm=PRODUCT, workload="one-prompt", rate_rps=100.0, seed=0, requests=300)
    figures = msgspec.json.decode(run_task(msgspec.json.encode(task)), type=Row).figures
    assert 0.5 < figures["served"] < 0.95
    assert figures["ttft_ms_p95"] == -1.0, "infinite"
    assert figures["ttft_ms_p50"] > 0.0


def test_no_goal_is_reached_where_too_many_are_refused():
    peers = [row(ROUND_ROBIN, 0.8, 100.0, 0.7, seed=seed) for seed in range(2)]
    ours = [row(PRODUCT, 0.9, 90.0, 0.8), row(PRODUCT, 0.9, 90.0, 0.8, seed=1, p95_ms=-1.0)]
    (place,) = places = summary([*peers, *ours])
    assert place["arms"][PRODUCT]["ttft_ms_p95"] is None, "no mean of an infinite time"
    (found,) = goals(places)
    assert (found["ttft_p50_over_peers"], found["ttft_p95_over_peers"], found["reached"]) == (pytest.approx(0.9), None, False)


def test_the_study_runs_and_goes_on_where_it_was(tmp_path):
    settings = msgspec.structs.replace(QUICK, requests=300, workloads=("apps",), arms=(ROUND_ROBIN, HASH, PRODUCT))
    kept = kept_rows(tmp_path / "rows.jsonl")
    document = run(settings, on_cores(1), kept)
    assert [(place["workload"], list(place["arms"])) for place in document["summary"]] == [("apps", [ROUND_ROBIN, HASH, PRODUCT])]
    assert 1.0 < document["capacity_rps"]["apps"] < 100.0
    assert "`h-mas: default`" in body(document)
    assert "| in time | served | TTFT p50, ms |" in body(document)
    document["summary"][0]["arms"][PRODUCT]["ttft_ms_p95"] = None
    assert [line.split(" | ")[5] for line in body(document).splitlines() if line.startswith("| `h-mas: default` |")] == ["-"]
    again = run(settings, lambda *_: pytest.fail("there is nothing left to run"), kept_rows(tmp_path / "rows.jsonl"))
    assert again["rows"] == document["rows"]


def test_chats_also_run_with_an_instance_away():
    tasks = list(tasks_of(Settings(seeds=1, arms=(PRODUCT,)), {"apps": 8.0, "chats": 20.0}))
    assert [(task.workload, task.load, task.away) for task in tasks][-2:] == [("chats", 1.3, False), ("chats", 0.7, True)]
    assert tasks[-1].rate_rps == pytest.approx(14.0)
    assert all(not task.away for task in tasks[:-1])


def test_too_few_requests_to_find_the_capacity_with_are_told(tmp_path):
    with pytest.raises(StudyError, match="requests is 5; allowed for one-prompt: more"):
        capacity_rps("one-prompt", 5, kept_rows(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("allowed", [ARMS, HETERO_ARMS, PAPER_ARMS, FRONTS], ids=["prefix", "heteroserve", "paper", "prefix-live"])
def test_every_arm_can_be_chosen_by_its_name(allowed):
    assert [read_names("--arms", name, tuple(allowed)) for name in allowed] == [(name,) for name in allowed]


def test_the_command_names_what_it_does_not_know(capsys, tmp_path):
    assert main(["prefix", "--workloads", "magic", "--out", str(tmp_path)]) == 2
    assert "magic" in capsys.readouterr().err
