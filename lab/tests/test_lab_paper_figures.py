"""Figures of the paper's evaluation on made-up requests: sums that must come out, and the two borrowed admissions."""

import random
from typing import cast

import pytest
from hmas_lab.compare import mean_half
from hmas_lab.paper.arms import ADAPTIVE, DEFAULT, FIXED, PRODUCT, SGLANG, STRONG
from hmas_lab.paper.figures import best_of, over
from hmas_lab.paper.gates import RATIO_LEAST, RATIO_START, ConservativeGate, Held, PastFutureGate, make_gate
from hmas_lab.paper.goals import goals
from hmas_lab.paper.over_time import decomposed, gain, in_phases, mismatches, per_window, rates_over_time, series_of
from hmas_lab.paper.rows import Row
from hmas_lab.paper.tables import goals_table, ratio_words
from typing_kit import known

from hmas.controller.core.objectives import service_gain
from hmas.controller.core.placement import InstanceState
from hmas.controller.core.types import Estimates, OutcomeKind, Request, Slo, TaskType
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.engines.sim.model import EngineModel
from hmas.loadgen.results import Result
from hmas.planning.case import PRESETS, Case
from hmas.planning.fleet import read_fleet
from hmas.planning.report import make_report
from hmas.planning.running import run_case

SLO = Slo(ttft_ms=1000.0, tpot_ms=50.0)


def result(at_s=0.0, *, prompt=100, output=101, ttft_ms=500.0, tpot_ms=40.0, outcome="completed", slo=SLO):
    served = outcome == "completed"
    total_ms = ttft_ms + tpot_ms * (output - 1) if served else 0.0
    return Result(
        index=0,
        at_s=at_s,
        kind="made",
        tenant="a",
        task_type=TaskType.QA,
        size="short",
        prompt_tokens=prompt,
        wanted_tokens=output,
        slo=slo,
        outcome=outcome,
        ttft_ms=ttft_ms if served else -1.0,
        tpot_ms=tpot_ms if served else -1.0,
        total_ms=total_ms,
        output_tokens=output if served else 0,
    )


def test_demand_that_is_served_as_it_comes_has_no_mismatch_and_twice_as_much_has_one():
    steady = [result(float(second), prompt=50, output=51, ttft_ms=1.0, tpot_ms=0.0) for second in range(100)]
    assert mismatches(steady, 0.0, 100.0)["mismatch_p95"] == pytest.approx(0.0, abs=1e-6)
    half_dropped = [result(second / 2.0, prompt=50, output=51, ttft_ms=1.0, tpot_ms=0.0) for second in range(200)]
    half_dropped = [
        one if number % 2 else result(one.at_s, prompt=50, output=51, outcome="shed") for number, one in enumerate(half_dropped)
    ]
    found = mismatches(half_dropped, 0.0, 100.0)
    assert found["mismatch_mean"] == pytest.approx(1.0, rel=0.1)


def test_tokens_are_served_evenly_from_the_first_to_the_last():
    one = result(20.0, prompt=0, output=1001, ttft_ms=0.0, tpot_ms=100.0)
    background = [result(float(second), prompt=1, output=1, ttft_ms=0.0, tpot_ms=0.0) for second in range(200)]
    # 1001 tokens over 100 s; while they are produced ten a second are served beside the two of the background.
    scores = mismatches([one, *background], 30.0, 119.0)
    alone = mismatches(background, 30.0, 119.0)
    assert alone["mismatch_mean"] == pytest.approx(0.0, abs=1e-9)
    assert scores["mismatch_mean"] == pytest.approx(0.0, abs=0.1)
    asked_then = mismatches([one, *background], 21.0, 22.0)["mismatch_mean"]
    assert asked_then == pytest.approx((1001 + 20) / (10.01 + 20) - 1.0, rel=0.02)


def test_what_is_gained_and_what_is_lost_make_up_the_arriving_worth():
    rng = random.Random(3)
    results = [
        result(
            rng.uniform(0.0, 100.0),
            prompt=rng.randint(1, 900),
            output=rng.randint(2, 900),
            ttft_ms=rng.uniform(0.0, 4000.0),
            tpot_ms=rng.uniform(5.0, 120.0),
            outcome=rng.choice(["completed", "completed", "shed"]),
        )
        for _ in range(300)
    ]
    parts = decomposed(results, 0.0, 100.0)
    worth = sum(service_gain(one.prompt_tokens, one.wanted_tokens, 0.0, 0.0, one.slo) for one in results) / 100.0
    assert sum(parts[f"run_{name}"] for name in ("throughput", "unserved", "late_ttft", "late_tpot")) == pytest.approx(worth)
    assert parts["run_throughput"] == pytest.approx(sum(map(gain, results)) / 100.0)
    assert 0.0 < parts["run_ttft"] < parts["run_throughput"]


def test_what_arrives_is_worth_the_same_whether_or_not_it_is_served():
    parts = []
    for admission in ("open", "shed"):
        case = Case(workload="poisson:rate=9,duration=30", fleet=read_fleet("1xdemo-small:n_run=24"), admission=PRESETS[admission])
        report = make_report(run_case(case))
        found = decomposed(report.results, 0.0, 30.0)
        worths = (sum(found[f"{part}_{name}"] for name in ("throughput", "unserved", "late_ttft", "late_tpot")) for part in ("run", "peak"))
        counts = {name: one.submitted for name, one in report.score.per_class.items()}
        parts.append((counts, sum(one.wanted_tokens for one in report.results), *map(pytest.approx, worths)))
    assert report.score.outcomes["shed"] > 50
    assert parts[0] == parts[1]


def test_the_congested_part_is_where_most_tokens_come():
    calm = [result(float(second), prompt=10, output=11) for second in range(100)]
    crowd = [result(50.0 + number / 100.0, prompt=1000, output=11, ttft_ms=3000.0) for number in range(50)]
    parts = decomposed([*calm, *crowd], 0.0, 100.0)
    assert parts["peak_throughput"] > 5.0 * parts["run_throughput"]
    assert parts["peak_ttft"] < 0.1 * parts["peak_throughput"]


def test_phases_are_shares_of_what_came_in_them():
    late = {"ttft_ms": 2000.0}
    results = [
        *(result(float(second)) for second in range(10, 20)),
        *(result(20.0 + second, **({} if second < 2 else late)) for second in range(10)),
        *(result(40.0 + second, **({} if second < 4 else late)) for second in range(10)),
        result(1.0, **late),
    ]
    found = in_phases(results, 5.0, 60.0, 3)
    assert [found[f"phase{number}"] for number in (1, 2, 3)] == pytest.approx([1.0, 0.2, 0.4])
    assert (found["drop_1_3"], found["recovery_3_2"]) == pytest.approx((0.6, 2.0))
    assert in_phases(results, 5.0, 60.0, 1) == {}


def test_windows_hold_what_lies_in_them_and_only_whole_ones_count():
    assert per_window([(0.0, 1.0), (9.99, 2.0), (10.0, 4.0), (25.0, 8.0), (-1.0, 16.0)], 0.0, 29.0) == [3.0, 4.0]
    even = [result(float(second), ttft_ms=100.0, tpot_ms=0.0) for second in range(100)]
    found = rates_over_time(even, 0.0, 100.0)
    assert found["cv_ttft"] == pytest.approx(0.0)
    assert found["esg_peak_over_mean"] == pytest.approx(1.0, abs=0.02)
    assert found["esg_mean"] == pytest.approx(gain(even[0]), rel=0.02)
    assert sum(series_of(even, 100.0)["arrived"]) == pytest.approx(10.0)


def row(arm, seed, goodput):
    return Row(
        model="m",
        scenario="burst",
        arm=arm,
        seed=seed,
        window=0,
        code="",
        steered=False,
        figures={"goodput_rps": goodput, "esg_rate": goodput},
    )


def test_a_ratio_is_of_means_on_the_seeds_that_both_have():
    ours = [row(PRODUCT, seed, value) for seed, value in ((1, 20.0), (2, 12.0), (3, 9.0))]
    found = over(ours, [row(DEFAULT, seed, value) for seed, value in ((2, 6.0), (1, 10.0))], "goodput_rps", 1)
    assert (found["mean"], found["half"], found["base_is_zero"]) == (pytest.approx(2.0), pytest.approx(0.0), False)
    uneven = over(ours, [row(DEFAULT, seed, value) for seed, value in ((1, 10.0), (2, 0.0), (3, 10.0))], "goodput_rps", 1)
    assert uneven["mean"] == pytest.approx(41.0 / 20.0)
    residuals = [(20.0 - 20.5) / (20 / 3), 12.0 / (20 / 3), (9.0 - 20.5) / (20 / 3)]
    assert uneven["half"] == pytest.approx(mean_half(residuals)[1])
    assert over(ours, [row(DEFAULT, 1, 0.0)], "goodput_rps", 1)["base_is_zero"]
    assert ratio_words(found | {"mean": 500.0}) == "> 10"
    assert ratio_words(uneven) == f"2.050 ± {uneven['half']:.3f}"


def test_the_best_fixed_policy_is_told_with_those_that_follow_the_load_and_without():
    rows = {"fixed:robust-edf": (9.0, 9.0), "fixed:edf": (8.0, 9.0), "fixed:sjf": (20.0,), PRODUCT: (30.0, 30.0)}
    by_arm = {arm: [row(arm, seed, value) for seed, value in enumerate(values)] for arm, values in rows.items()}
    assert best_of(FIXED, by_arm, 2) == "fixed:robust-edf"
    assert best_of([arm for arm in FIXED if arm not in ADAPTIVE], by_arm, 2) == "fixed:edf"
    assert best_of(FIXED, {}, 2) == ""


def place(scenario, *, default=1.5, best=1.0, sglang=2.0, esg=2.0, ttft=0.9, shifts=False, latency=100.0, direct_rate=0.5, rps=1.0):
    def ratio(mean):
        return {"mean": mean, "half": 0.01, "verdict": "better", "base_is_zero": mean == 0.0}

    names = ("ttft_ms_mean", "ttft_ms_p95", "tpot_ms_mean", "tpot_ms_p95")
    figures = {name: {"mean": latency, "half": 0.0} for name in names} | {"ttft_compliance": {"mean": ttft, "half": 0.01}}
    figures["goodput_rps"] = {"mean": rps, "half": 0.0}
    direct = {name: {"mean": 100.0, "half": 0.0} for name in names} | {"goodput_rate": {"mean": direct_rate, "half": 0.0}}
    ratios = {
        DEFAULT: {"goodput_rps": ratio(default), "esg_rate": ratio(esg)},
        SGLANG: {"goodput_rps": ratio(1.0), "esg_rate": ratio(sglang)},
        STRONG: {"goodput_rps": ratio(1.0), "esg_rate": ratio(1.0)},
        "fixed:edf": {"goodput_rps": ratio(best), "esg_rate": ratio(1.0)},
    }
    arms = {PRODUCT: {"figures": figures, "over": ratios}, DEFAULT: {"figures": direct, "over": {}}}
    return {"model": "m", "scenario": scenario, "shifts": shifts, "best_fixed": "fixed:edf", "arms": arms}


@pytest.mark.parametrize(
    ("what", "missed"),
    [
        (place("burst"), set()),
        (place("burst", default=1.19), {"goodput over the engine default"}),
        (place("burst", default=0.0), set()),
        (place("burst", default=0.0, rps=0.0), {"goodput over the engine default"}),
        (place("burst", best=0.979), {"goodput over the best fixed policy in hindsight"}),
        (place("drift", shifts=True), {"goodput over the best fixed policy in hindsight"}),
        (place("drift", shifts=True, best=1.01), set()),
        (place("drift", shifts=True, best=1.01, ttft=0.88), {"TTFT compliance on the slice"}),
        (place("load-50"), {"ESG over the engine default at the top load"}),
        (place("load-50", esg=2.2, sglang=1.8), {"ESG over SGLang-like at the top load"}),
        (place("low", default=1.0, latency=101.0), set()),
        (place("low", latency=101.1), {f"{name} at low load, over direct" for name in ("TTFT mean", "TTFT p95", "TPOT mean", "TPOT p95")}),
    ],
)
def test_a_goal_is_reached_or_missed_by_its_limit(what, missed):
    assert {goal["goal"] for goal in goals([what]) if not goal["reached"]} == missed


@pytest.mark.parametrize(("share", "wanted"), [(0.8, "1.2 or more"), (0.95, "1.2 or more (all in time would be 1.05)")])
def test_a_goal_beyond_all_in_time_says_so(share, wanted):
    (told,) = (one["wanted"] for one in goals([place("burst", direct_rate=share)]) if one["goal"] == "goodput over the engine default")
    assert told == wanted


def test_a_goal_over_nothing_says_that_the_base_is_nothing():
    document = {"goals": goals([place("burst", default=0.0)]), "settings": {"seeds": 5}}
    assert [row[4] for row in goals_table(document).rows if row[1] == "goodput over the engine default"] == ["base is 0"]


class Room:
    """An instance as routers see it."""

    def __init__(self, name, in_flight=0):
        self.name, self.in_flight, self.sequences, self.n_run, self.in_flight_tokens = name, in_flight, in_flight, 64, 0
        self.routing_window = 64.0


def room(name) -> InstanceState:
    return cast("InstanceState", Room(name))


def sent_to(gate, one) -> str:
    """The instance that a request goes to, empty if it waits."""
    for choice in gate.rank(one, [room(NAME)], 0.0):
        gate.sent(one, choice.instance, 0.0)
        return choice.instance
    return ""


def look(gate, now_s, engine=None) -> None:
    """Shows a gate how far the one engine is; it looks at nothing else."""
    gate.look(now_s, cast("Scheduler", None), {} if engine is None else {NAME: cast("EngineModel", engine)})


FLEET = read_fleet("1xdemo-small")
NAME = next(iter(FLEET.instances()))
CAPACITY = FLEET.kinds[0].profile.kv_capacity_tokens


def entry(name, prompt, cap):
    request = Request(id=name, tenant="a", model="m", arrival_s=0.0, prompt_tokens=prompt, max_output_tokens=cap, declared_slo=SLO)
    return QueueEntry(request=request, estimates=Estimates(slo=SLO, importance=0.75), seq=0, weight=1.0)


def ended(one, output, kind=OutcomeKind.COMPLETED):
    return Ended(
        entry=one,
        kind=kind,
        instance=NAME,
        queue_ms=0.0,
        ttft_ms=1.0,
        service_ttft_ms=1.0,
        tpot_ms=1.0,
        total_ms=1.0,
        output_tokens=output,
        slo_met=True,
        running_at_dispatch=0,
        kv_usage_at_dispatch=0.0,
        predicted=one.estimates,
        policy="fcfs",
    )


@pytest.mark.parametrize("name", ["conservative", "past-future"])
def test_who_does_not_fit_waits_and_nobody_passes_it(name):
    gate = known(make_gate(name, FLEET))
    big = CAPACITY - 3000
    first, second, third = entry("1", big, 2000), entry("2", big, 2000), entry("3", 10, 10)
    assert sent_to(gate, first) == NAME
    assert not sent_to(gate, second)
    assert not sent_to(gate, third)
    gate.on_end(ended(first, 5), 1.0)
    assert not sent_to(gate, third)
    assert sent_to(gate, second) == NAME
    assert gate.held[NAME].keys() == {"2"}
    assert sent_to(gate, third) == NAME


class Engine:
    """An engine that says how far its sequences are."""

    def __init__(self, tokens, preemptions=0):
        self._tokens, self._preemptions = tokens, preemptions

    def tokens(self, _now_s):
        return self._tokens

    def snapshot(self, _name, _now_s):
        return type("Snapshot", (), {"preemptions_total": self._preemptions})


def test_the_conservative_share_decays_with_the_steps_and_rises_with_a_preemption():
    gate = ConservativeGate(FLEET)
    sent_to(gate, entry("1", 10, 1000))
    look(gate, 0.0, Engine([("1", 301)]))
    assert gate.ratio[NAME] == pytest.approx(RATIO_START - 301 * (RATIO_START - RATIO_LEAST) / 600)
    look(gate, 1.0, Engine([("1", 901)]))
    assert gate.ratio[NAME] == pytest.approx(RATIO_LEAST)
    look(gate, 2.0, Engine([("1", 901)], preemptions=1))
    assert gate.ratio[NAME] == pytest.approx(921 / 1001)


def test_the_past_future_peak_is_the_most_that_is_held_when_one_ends():
    gate = PastFutureGate(FLEET)
    for number, length in enumerate((10, 20, 300, 400)):
        gate.on_end(ended(entry(f"past{number}", 1, 500), length), 0.0)
    gate.on_end(ended(entry("refused", 1, 500), 0, OutcomeKind.SHED), 0.0)
    look(gate, 0.0)
    assert gate.expected(0, 500) == pytest.approx((10 + 20 + 300 + 400) / 4)
    assert gate.expected(20, 500) == pytest.approx(350 - 20)
    assert gate.expected(20, 100) == pytest.approx(80)
    assert gate.expected(400, 1000) == pytest.approx(600)
    held = [Held(100, 500, 0), Held(50, 500, 100), Held(70, 500, 350), Held(30, 40, 39)]
    left = [gate.expected(one.got, one.cap) for one in held]
    candidates = [sum(one.prompt + one.got + end for one, remaining in zip(held, left, strict=True) if remaining >= end) for end in left]
    assert gate.peak(held) == pytest.approx(max(candidates))
