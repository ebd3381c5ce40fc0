"""`hmas plan`: the searches, against loads whose answer is known, and the command."""

import json
from typing import Any

import msgspec
import pytest

from hmas.cli.main import main
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.types import Estimates, Request, Slo
from hmas.planning import plan as planning
from hmas.planning import probing
from hmas.planning.backends import on_cores
from hmas.planning.case import Case, SloTarget, read_admission
from hmas.planning.fleet import read_fleet
from hmas.planning.loads import open_load
from hmas.planning.plan import assumptions, check_question
from hmas.planning.probing import (
    LEAST,
    MAX_COUNT,
    MOST,
    Held,
    HoldTask,
    Needed,
    NeedTask,
    Probe,
    Question,
    cheapest,
    hold,
    need,
    probe,
)
from hmas.planning.running import build
from hmas.planning.tables import plan_text

CASE = Case(workload="poisson:rate=4,duration=60", fleet=read_fleet("1xdemo-small"), slo=SloTarget(ttft_ms=3000, tpot_ms=80))


def answers(limit, asked=None):
    """A fleet that holds every load up to `limit`."""

    def ask(load):
        if asked is not None:
            asked.append(load)
        share = 1.0 if load <= limit else 0.5
        return Probe(load=load, rate_rps=4.0 * load, share=share, goodput_rps=4.0 * load * share, duration_s=60.0 / load)

    return ask


@pytest.mark.parametrize("limit", [0.004, 0.3, 0.999, 1.0, 1.7, 40.0, 3000.0])
@pytest.mark.parametrize("start", [0.01, 1.0, 7.0])
def test_a_held_load_is_found_to_its_tolerance(limit, start):
    asked: list[float] = []
    found = hold(HoldTask(case=CASE, share=0.95, tolerance=0.02, start=start, wanted=1.0), answers(limit, asked))
    assert found.load <= limit < found.fails_at
    assert found.fails_at / found.load <= 1.02
    assert found.at is not None
    assert found.at.load == found.load
    assert found.wanted is not None
    assert found.wanted.load == 1.0
    assert [one.load for one in found.probes] == sorted(set(asked))
    assert len(asked) == len(set(asked)) < 30


def test_the_search_ends_where_everything_or_nothing_is_held():
    task = HoldTask(case=CASE, share=0.95, tolerance=0.02, start=1.0)
    nothing = hold(task, answers(0.0))
    assert (nothing.load, nothing.at) == (0.0, None)
    assert nothing.fails_at >= LEAST
    everything = hold(task, answers(float("inf")))
    assert everything.load <= MOST
    assert everything.fails_at == 0.0


@pytest.mark.parametrize("least", [1, 2, 3, 17, 100, MAX_COUNT])
@pytest.mark.parametrize("guess", [1, 4, 90, 5000])
def test_a_needed_count_is_the_least(least, guess):
    asked: list[float] = []

    def ask(count):
        asked.append(count)
        share = 1.0 if count >= least else 0.5
        return Probe(load=1.0, rate_rps=4.0, share=share, goodput_rps=4.0 * share, duration_s=60.0)

    found = need(NeedTask(case=CASE, kind=CASE.fleet.kinds[0], share=0.95, guess=guess), ask)
    assert found.count == least
    assert found.at is not None
    assert found.at.share == 1.0
    assert (found.fewer is None) == (least == 1)
    assert len(asked) == len(set(asked)) == found.tried < 30


def test_a_count_that_does_not_exist():
    found = need(NeedTask(case=CASE, kind=CASE.fleet.kinds[0], share=0.95, guess=3), lambda _count: answers(0.0)(1.0))
    assert (found.count, found.at) == (0, None)


@pytest.mark.slow
def test_a_probe_counts_what_was_kept():
    light, heavy = probe(CASE), probe(Case(workload="poisson:rate=4,duration=60", fleet=CASE.fleet, slo=CASE.slo, load=4.0))
    assert light.share > heavy.share
    assert heavy.duration_s == pytest.approx(light.duration_s / 4)
    assert light.goodput_rps == pytest.approx(light.share * light.rate_rps)


def test_a_run_is_not_given_up_for_a_forecast():
    case = msgspec.structs.replace(CASE, fleet=read_fleet("1xdemo-small:n_run=1"))
    made, model = build(case)[0], case.fleet.model(case.model)
    slo = Slo(ttft_ms=1000.0, tpot_ms=1000.0)
    for number in range(4):
        request = Request(id=str(number), tenant="t", model=model, arrival_s=0.0, prompt_tokens=5, stream=number < 3)
        made.submit(request, Estimates(slo=slo, ttft_ms=900.0), 0.0)
    made.dispatch(0.0)
    made.expire(0.9)
    misses = probing.Misses(allowed=1.0)
    misses.judge(made, 0.9)
    assert (made.snapshot(0.9, "g").overdue, misses.sure) == (3, 0)
    with pytest.raises(probing.Hopeless):
        misses.judge(made, 1.5)
    assert misses.sure == 2, "neither the one that was sent nor the whole answer, which is due later"


def wish(**more):
    kinds = read_fleet("demo-small:price=1.0,demo-small:n_run=12:price=0.7").kinds
    values: dict[str, Any] = {
        "case": Case(workload="poisson:rate=3,duration=25", fleet=read_fleet("1xdemo-small"), slo=SloTarget(ttft_ms=3000, tpot_ms=80)),
        "share": 0.9, "load": 2.0, "kinds": kinds, "tolerance": 0.1,
    }  # fmt: skip
    return Question(**(values | more))


@pytest.fixture(scope="module")
def plan():
    made = wish()
    check_question(made)
    return planning.make_plan(made, open_load(made.case), on_cores(1), lambda text: None)


@pytest.mark.slow
def test_a_plan_keeps_its_word(plan):
    case, share = plan.wish.case, plan.wish.share
    held = plan.held
    assert held.at is not None
    again = probe(Case(workload=case.workload, fleet=case.fleet, slo=case.slo, load=held.load))
    assert again == held.at
    assert again.share >= share
    assert probe(Case(workload=case.workload, fleet=case.fleet, slo=case.slo, load=held.fails_at)).share < share
    for kind in plan.wish.kinds:
        one = plan.needed[kind.name]
        assert one.at is not None
        assert one.at.share >= share
        assert one.fewer is not None
        assert one.fewer.share < share
        assert one.at.load == plan.wish.load


def test_the_cheapest_fleet_holds_and_costs_no_more_than_any_kind_alone(plan):
    singles = [plan.needed[kind.name].count * kind.price for kind in plan.wish.kinds]
    assert plan.mix is not None
    assert plan.mix.price <= min(singles) + 1e-9
    assert plan.mix.share >= plan.wish.share
    fleet = read_fleet(plan.mix.fleet)
    case = plan.wish.case
    assert probe(Case(workload=case.workload, fleet=fleet, slo=case.slo, load=plan.wish.load)).share == plan.mix.share


def test_the_next_instance_buys_load(plan):
    for one, kind in zip(plan.next_one, plan.wish.kinds, strict=True):
        assert one.kind == kind.name
        assert one.load_gain == pytest.approx(one.held.load - plan.held.load)
        assert one.load_gain > 0.3
        assert one.rate_gain_rps == pytest.approx(one.load_gain * plan.own_rps)
        assert one.rate_gain_per_price == pytest.approx(one.rate_gain_rps / kind.price)
    alike, narrow = (one.goodput_gain_rps for one in plan.next_one)
    assert alike > 0.5
    assert alike > narrow >= 0.0, "at a load that both together do not hold, a window of 12 may gain nothing"


def test_a_plan_says_what_it_assumed(plan):
    text = plan_text(plan)
    assert "1xdemo-small holds" in text
    assert "cheapest found: " in text
    assert "TTFT 3000 ms and TPOT 80 ms" in text
    assert "Roofline from data-sheet numbers" in text
    assert "requests are few" in text
    assert json.dumps(planning.document(plan))


def test_without_prices_there_is_no_cheapest(plan):
    mix, tried, _ = cheapest(wish(kinds=read_fleet("demo-small,demo-small:n_run=12:price=0.7").kinds), plan.needed, lambda text: None)
    assert (mix, tried) == (None, 0)


def with_a_kind_that_never_does(monkeypatch, holds):
    """The cheapest fleet, where three large instances hold the load and a small kind alone never does; and the mixes that were tried."""
    large, small = kinds = read_fleet("demo-small:price=3.2,demo-small:n_run=12:price=1.0").kinds
    asked: list[tuple[int, int]] = []

    def run(case, _share):
        counts = {group.kind.name: group.count for group in case.fleet.groups}
        asked.append((counts[large.name], counts[small.name]))
        return answers(1.0 if holds(*asked[-1]) else 0.0)(1.0)

    monkeypatch.setattr(probing, "probe", run)
    needed = {
        large.name: Needed(count=3, at=answers(1.0)(1.0), fewer=answers(0.0)(1.0), tried=2),
        small.name: Needed(count=0, at=None, fewer=None, tried=9),
    }
    return cheapest(wish(kinds=kinds), needed, lambda text: None), asked


def test_a_kind_that_alone_never_holds_the_load_is_tried_in_mixes(monkeypatch):
    (mix, tried, sure), asked = with_a_kind_that_never_does(monkeypatch, lambda large, small: large == 1 and small >= 4)
    assert mix is not None
    assert (mix.price, mix.instances, tried, sure) == (pytest.approx(7.2), 5, len(asked), True)
    assert asked == [(1, 1), (1, 2), (1, 3), (1, 4)]
    (mix, tried, sure), asked = with_a_kind_that_never_does(monkeypatch, lambda large, small: False)
    assert mix is not None
    assert (mix.price, tried, sure) == (pytest.approx(9.6), len(asked), True)
    assert (1, 6) in asked
    assert (2, 3) in asked
    monkeypatch.setattr(probing, "MIX_RUNS", 3)
    assert with_a_kind_that_never_does(monkeypatch, lambda large, small: False)[0][1:] == (3, False)


def test_a_plan_tells_which_kinds_are_too_small_for_some_requests():
    kinds = [msgspec.structs.replace(kind, profile=msgspec.structs.replace(kind.profile, max_model_len=600)) for kind in wish().kinds[1:]]
    made = wish(kinds=kinds)
    held = Held(load=0.0, fails_at=0.0, at=None, wanted=None, probes=[])
    load = open_load(made.case)
    said = [text for text in assumptions(made, load, held) if "longer than the context of demo-small:n_run=12, 600 tokens" in text]
    assert len(said) == 1
    assert f"{load.longer_than(600)} requests" in said[0]


@pytest.mark.slow
@pytest.mark.long
def test_a_target_that_no_engine_keeps():
    made = wish(case=Case(workload="poisson:rate=3,duration=5", fleet=read_fleet("2xdemo-small"), slo=SloTarget(tpot_ms=1)))
    plan = planning.make_plan(made, open_load(made.case), on_cores(1), lambda text: None)
    assert plan.held.load == 0.0
    assert {one.count for one in plan.needed.values()} == {0}
    assert plan.mix is None
    text = plan_text(plan)
    assert "2xdemo-small does not hold the targets at any load" in text
    assert "never" in text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"load": 0.0}, "load is 0"),
        ({"tolerance": 0.9}, "tolerance is 0.9"),
        ({"kinds": []}, "kinds are none"),
        ({"kinds": read_fleet("a100-qwen3-8b").kinds}, "is for model"),
    ],
)
def test_wishes_that_cannot_be_answered(more, said):
    with pytest.raises(ConfigError, match=said):
        check_question(wish(**more))


def hmas(capsys, *arguments):
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
def test_the_command(capsys, tmp_path):
    rows = "\n".join(f"{0.25 * i},{100 + i % 300},{20 + i % 40}" for i in range(200))
    (tmp_path / "trace.csv").write_text("arrival_s,context_tokens,generated_tokens\n" + rows + "\n")
    command = ("plan", "--trace", tmp_path / "trace.csv", "--slo", "ttft=2000,tpot=60,share=0.9", "--fleet", "1xdemo-small")
    code, out, err = hmas(capsys, *command, "--rate", 8, "--tolerance", 0.1, "--out", tmp_path / "plan.json")
    assert code == 0
    assert "What the next instance buys" in out
    assert "1xdemo-small holds" in err
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["wanted_load"] == pytest.approx(2.0, rel=0.01)
    assert document["case"]["workload"].startswith("azure:")
    code, again, _ = hmas(capsys, *command, "--rate", 8, "--tolerance", 0.1, "--json", "--workers", 1)
    assert json.loads(again) == document
    for more, said in (
        (["--slo", "e2e=5"], "e2e=5"),
        (["--trace", "trace.parquet"], "--trace is 'trace.parquet'"),
        (["--kinds", "x"], "'x'"),
    ):
        code, _, err = hmas(capsys, *command, *more)
        assert code == 2, more
        assert said in err


def test_admission_is_part_of_the_question():
    open_case = Case(workload="poisson:rate=9,duration=20", fleet=CASE.fleet, slo=CASE.slo, policy="fcfs", admission=read_admission("open"))
    assert probe(open_case).share < probe(Case(workload=open_case.workload, fleet=CASE.fleet, slo=CASE.slo)).share
