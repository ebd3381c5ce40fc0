"""The front door: its load, its figures and ratios, its goals, its page, and one small measurement on real processes."""

import random
from types import MappingProxyType
from typing import Any

import click
import orjson
import pytest
from hmas_lab.frontdoor.arms import WRONG_STARTS, Arm, arm_names, arm_of, capped, without
from hmas_lab.frontdoor.capacity import CapacityPoint, capacity_points, mean_points
from hmas_lab.frontdoor.cells import cell_of, figures, first_token_ms_beyond, is_kept, ratio
from hmas_lab.frontdoor.cli import settings_of
from hmas_lab.frontdoor.goals import judged, outcomes, quick_failures
from hmas_lab.frontdoor.load import DoorLoad, cells
from hmas_lab.frontdoor.measurement import Measurement, loads_summary, worth_summary
from hmas_lab.frontdoor.runs import Runs
from hmas_lab.frontdoor.settings import ARMS, FULL, PAPER, PASS, PLAIN, PRODUCT, STRONG, TARGETS, DoorSettings
from hmas_lab.frontdoor.tables import body, worth_words
from hmas_lab.questions import Question, read_questions
from typing_kit import known

from hmas.controller.config.derived import AGENT_NAMES, running_agents
from hmas.controller.config.loader import load_config
from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.types import DEFAULT_IMPORTANCE, Slo, TaskType
from hmas.controller.runtime.clock import SystemClock
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.results import Result, RunSummary
from hmas.planning import StudyError

QUESTIONS = [Question(f"What is the height of tower {i}?", TaskType.QA, 20 + i) for i in range(50)]


def result(index=0, *, good=True, kind="chat-1", capped=True, declared=True, **fields):
    ended: dict[str, Any] = {
        "outcome": "completed",
        "ttft_ms": 100.0 if good else 3000.0,
        "tpot_ms": 20.0,
        "total_ms": 300.0 if good else 3200.0,
        "output_tokens": 11,
    }
    return Result(
        index=index,
        at_s=fields.pop("at_s", 0.1 * index),
        kind=kind,
        tenant="default",
        task_type=TaskType.QA,
        size="short",
        prompt_tokens=10,
        wanted_tokens=11,
        slo=Slo(ttft_ms=2000, tpot_ms=60),
        capped=capped,
        declared=declared,
        **(ended | fields),
    )


def results(goods, **fields):
    return [result(i, good=good, **fields) for i, good in enumerate(goods)]


def load():
    return DoorLoad(FULL, QUESTIONS, load_mixture()[1])


def test_every_cell_comes_equally_often_and_in_a_drawn_order():
    found = load().arrivals(0, rps=8.0, seconds=40.0)
    kinds: list[tuple[object, ...]] = [(a.kind, a.max_tokens > 0, a.declares) for a in found]
    whole = len(found) // 32 * 32
    counts = [kinds[:whole].count(tuple(cell)) for cell in cells(FULL.forms)]
    assert counts == [whole // 32] * 32
    assert kinds[:32] != kinds[32:64]
    assert {a.slo.ttft_ms for a in found if a.declares} == {1000.0, 2000.0}
    assert {a.slo for a in found if not a.declares} == {TARGETS}


def test_a_load_is_the_same_for_every_arm_and_differs_by_repetition():
    first = load().arrivals(0, rps=4.0, seconds=20.0)
    assert load().arrivals(0, rps=4.0, seconds=20.0) == first
    assert load().arrivals(1, rps=4.0, seconds=20.0) != first


def test_a_slow_engine_stretches_every_target():
    slow = load()
    slow.stretch = 3.0
    fast = load().arrivals(0, rps=4.0, seconds=20.0)
    assert [a.slo.tpot_ms for a in slow.arrivals(0, rps=4.0, seconds=20.0)] == [3.0 * a.slo.tpot_ms for a in fast]


def test_what_is_still_being_answered_is_no_silence():
    lost = {"outcome": "lost", "detail": "no end within 60 s after the last arrival"}
    found = figures([result(**lost), result(**lost, ttft_ms=-1.0), result(outcome="lost", detail="the stream ended")])
    assert (found.unfinished, found.unanswered) == (1, 2)


def test_the_ramp_rises_evenly():
    times = [a.at_s for a in load().ramp(2.0, 6.0, 10.0)]
    assert len(times) == 40
    assert sum(t < 5.0 for t in times) == 15
    assert times == sorted(times)


def test_capacity_is_where_good_requests_are_most():
    times = [a.at_s for a in load().ramp(4.0, 16.0, 40.0)]
    found = [result(i, good=i < 200 or i > 350 or i % 10 == 0, at_s=at_s) for i, at_s in enumerate(times)]
    points = capacity_points(found, stretches=8)
    assert 10.0 < max(point.good_rps for point in points) < 12.5, "the end, where nothing follows any more, is not counted"
    assert points[-1].good_rps < 3.0
    assert capacity_points([]) == []


def test_capacity_is_the_mean_of_several_ramps():
    one, other = ([CapacityPoint(rps=2.0, good_share=share), CapacityPoint(rps=3.0, good_share=1.0)] for share in (0.5, 1.0))
    assert [point.good_share for point in mean_points([one, other])] == [0.75, 1.0]
    first, second = (load().ramp(2.0, 6.0, 10.0, number) for number in (0, 1))
    assert [a.at_s for a in first] == [a.at_s for a in second]
    assert [a.body for a in first] != [a.body for a in second]


def test_first_tokens_are_compared_request_by_request():
    theirs = [result(i, ttft_ms=20.0 if i < 49 else 80.0) for i in range(100)]
    ours = [result(i, ttft_ms=21.0 if i < 51 else 81.0) for i in range(100)]
    medians = [known(figures(one).ttft_ms_p50) for one in (ours, theirs)]
    assert medians[0] - medians[1] < -50.0, "two requests more below the gap, and the medians jump"
    found = first_token_ms_beyond(ours, theirs)
    assert found == (1.0, 1.0, 1.0)
    assert first_token_ms_beyond([result(ttft_ms=-1.0)], [result()]) is None
    noisy = [result(i, ttft_ms=100.0 + i) for i in range(100)]
    wide = first_token_ms_beyond(noisy, [result(i, ttft_ms=100.0) for i in range(100)])
    assert wide is not None
    assert (wide.low, wide.high) == (40.0, 59.0)
    with pytest.raises(ValueError, match="shorter"):
        first_token_ms_beyond(ours, theirs[:-1])


@pytest.mark.parametrize(("later_ms", "verdict"), [(4.0, "pass"), (9.0, "open"), (40.0, "fail")])
def test_later_first_tokens_fail_only_where_it_is_certain(later_ms, verdict):
    theirs = [result(i, ttft_ms=100.0) for i in range(25)]
    ours = [result(i, ttft_ms=100.0 + later_ms + i - 12) for i in range(25)]
    (found,) = [one for one in outcomes({0.5: {PASS: theirs, PRODUCT: ours}}) if "first tokens" in one.goal]
    assert found.verdict == verdict


def test_figures_tell_refusals_with_and_without_a_time_apart():
    refused = {"outcome": "shed", "ttft_ms": -1.0, "tpot_ms": -1.0, "output_tokens": 0}
    found = figures(
        [
            result(),
            result(good=False),
            result(**refused, retry_after_s=3.0),
            result(**refused),
            result(outcome="lost", ttft_ms=-1.0, tpot_ms=-1.0, total_ms=40_000.0),
        ]
    )
    assert (found.sent, found.ended, found.good, found.told, found.refused, found.unanswered, found.kept) == (5, 2, 1, 1, 1, 1, 1)
    assert (found.ttft_ms_max, found.ttft_ms_p50, found.ttft_ms_p95) == (3000.0, None, None), "three of five have no first token"
    assert figures([]).ttft_ms_p95 == 0.0


def test_kept_is_30_s_beyond_the_deadline():
    assert not is_kept(result(ttft_ms=31_900.0))
    assert is_kept(result(ttft_ms=32_100.0))
    whole = {"streamed": False, "ttft_ms": -1.0, "tpot_ms": -1.0}
    assert not is_kept(result(**whole, total_ms=32_500.0)), "ten tokens after the first may take 0.6 s more"
    assert is_kept(result(**whole, total_ms=32_700.0))


def test_a_ratio_is_as_sure_as_its_requests_are_many():
    same = ratio(results([True] * 20), results([True] * 20))
    assert (same.value, same.half) == (1.0, 0.0)
    few = ratio(results([True] * 9 + [False]), results([True] * 10))
    many = ratio(results(([True] * 9 + [False]) * 20), results([True] * 200))
    assert few.value == many.value == 0.9
    assert few.half > 4 * many.half > 0.0
    rng = random.Random(3)
    ours, theirs = ([rng.random() < 0.8 for _ in range(400)] for _ in range(2))
    found = ratio(results(ours), results(theirs))
    assert 0.06 < found.half < 0.12, "two independent shares of 0.8 out of 400"
    assert ratio(results([True]), results([False])).value is None
    with pytest.raises(ValueError, match="2 requests beside 1"):
        ratio(results([True, True]), results([True]))


def test_a_cell_is_open_where_chance_may_have_done_it():
    few = ratio(results([True] * 9 + [False]), results([True] * 10))
    many = ratio(results(([True] * 9 + [False]) * 20), results([True] * 200))
    assert (judged(few, 0.99), judged(many, 0.99), judged(many, 0.85), judged(many, 0.9)) == ("open", "fail", "pass", "open")


def by_load(ours, *, at=0.5):
    return {at: {PASS: results([True] * 40), PLAIN: results([True] * 40), PRODUCT: ours}}


def test_goals_are_judged_cell_by_cell():
    fine = {one.goal: one.verdict for one in outcomes(by_load(results([True] * 40)))}
    assert set(fine.values()) == {"pass"}
    assert len(fine) == 6
    broken = results([False] * 30 + [True] * 10)
    broken[0].outcome, broken[0].ttft_ms, broken[0].total_ms = "lost", -1.0, 60_000.0
    found = {one.goal: one for one in outcomes(by_load(broken))}
    failed = [goal for goal, one in found.items() if one.verdict == "fail"]
    assert len(failed) == 5, "all but refusals without Retry-After"
    assert "chat-1, capped, declared: 10 beside 40" in [one.worst for one in found.values()]
    assert [one for one in outcomes(by_load(broken, at=0.7)) if "pass-through in every cell" in one.goal] == [], "no goal is set there"


def test_past_capacity_the_load_is_judged_as_a_whole():
    ours = [*results([True] * 150 + [False] * 49), result(199, kind="tools", good=False)]
    arms = {PASS: results([True] * 100 + [False] * 100), PRODUCT: ours}
    found = {one.goal: one for one in outcomes({1.3: arms})}
    assert found["load 1.3: goodput at least 1.35 of pass-through"].verdict == "pass"
    assert found["load 1.3: goodput at least 1.35 of pass-through"].worst == "all requests: 150 beside 100"


def test_a_load_that_pass_through_bears_tells_nothing():
    arms = {PASS: results([True] * 30 + [False] * 10), PRODUCT: results([True] * 38 + [False] * 2)}
    found = next(one for one in outcomes({1.3: arms}) if "1.35" in one.goal)
    assert (found.verdict, found.worst) == ("open", "all requests: 38 beside 30; all 40 that were sent would be 1.33 times")


def test_the_short_form_fails_where_a_group_loses_far_below_capacity():
    assert quick_failures(by_load(results([True] * 40))) == []
    assert quick_failures(by_load(results([True] * 39 + [False]))) == [], "one request is no share"
    words = quick_failures(by_load(results([True] * 38 + [False] * 2)))
    assert words[0] == "load 0.5, all requests: 38 good requests beside 40 in pass-through"
    assert quick_failures(by_load(results([True] * 38 + [False] * 2), at=1.3)) == []
    assert quick_failures({0.5: {PRODUCT: results([False] * 40)}}) == [], "without pass-through there is nothing to compare with"
    lost = [*results([True] * 39), result(39, outcome="lost", ttft_ms=-1.0)]
    assert quick_failures(by_load(lost, at=1.3)) == ["load 1.3: 1 of 40 requests unanswered"]


def test_every_arm_is_started_as_a_user_starts_it():
    assert arm_of(PRODUCT) == ((), {}, {})
    assert arm_of(PLAIN).options == ("--no-agents",)
    assert arm_of(PASS).config["scheduler"]["policy"] == "fcfs"
    assert arm_of(without("qos")).options == ("--agents", "perception,prediction,meta,statera")
    assert arm_of(PAPER).options == ("--preset", "paper")
    with pytest.raises(StudyError, match="arm 'x'; allowed: pass-through, no-agents"):
        arm_of("x")


def asked(**options):
    return settings_of({"vllm_python": None, "quick": False, "apart": False, **dict.fromkeys(DEFAULTS), **options})


DEFAULTS = MappingProxyType(
    dict.fromkeys(("seconds", "warmup_s", "repeats", "seed", "capacity_rps", "caps", "budget", "loads", "arms", "forms"))
)


def test_arms_are_named_on_the_command_line():
    assert asked().arms == ARMS
    assert asked(arms="fcfs-cap-shed, as-it-comes").arms == (STRONG, PRODUCT)
    assert asked(arms=",".join(arm_names())).arms == tuple(arm_names())
    with pytest.raises(click.UsageError, match="--arms names 'sjf'; allowed: pass-through"):
        asked(arms="sjf,as-it-comes")
    assert asked(forms="n-2, chat-1").forms == ("chat-1", "n-2")
    with pytest.raises(ConfigError, match="--forms: poem; allowed: chat-1"):
        asked(forms="poem")
    assert asked(caps="8, 12").caps == (8, 12)
    with pytest.raises(click.UsageError, match="--caps is '8,x'; allowed: whole numbers from 1"):
        asked(caps="8,x")
    with pytest.raises(click.UsageError, match="needed: as-it-comes"):
        asked(arms="paper")


def test_pass_through_is_a_configuration_that_is_taken(tmp_path):
    path = tmp_path / "pass.yaml"
    for arm, overdue, n_run in ((arm_of(PASS), "keep", 256), (capped(7, 1.0), "shed", 7)):
        path.write_bytes(orjson.dumps(dict(arm.config)))
        config = load_config(str(path), {})
        assert (config.scheduler.fence, config.scheduler.tpot_guard, running_agents(config.agents)) == (False, 0.0, ())
        assert (config.scheduler.overdue, config.scheduler.n_run) == (overdue, n_run)


@pytest.mark.parametrize("stretch", [1.0, 4.1])
def test_the_shedding_baseline_refuses_by_the_targets_that_requests_are_judged_by(tmp_path, stretch):
    door = load()
    door.stretch = stretch
    (judged_by,) = {a.slo for a in door.arrivals(0, rps=4.0, seconds=20.0) if not a.declares}
    path = tmp_path / "capped.yaml"
    path.write_bytes(orjson.dumps(dict(capped(7, stretch).config)))
    slo = load_config(str(path), {}).slo
    assumed = slo.targets().target(TaskType.UNKNOWN, DEFAULT_IMPORTANCE)
    assert assumed.ttft_ms == judged_by.ttft_ms == 2000.0 * stretch
    assert assumed.tpot_ms == pytest.approx(judged_by.tpot_ms, abs=1.0), "whole milliseconds"
    assert slo.headroom == 0.0, "nothing raises them"


async def test_the_shedding_baseline_knows_how_far_the_measurement_stretches_targets(tmp_path):
    started: dict[str, Arm] = {}
    told: list[str] = []

    class Recorded(Runs):
        async def capacity(self):
            door.stretch = 4.1
            return []

        async def side_by_side(self, arms, label, arrivals):
            started.update(arms)
            summary = RunSummary(started_s=0.0, elapsed_s=1.0, max_gap_s=0.0, outcomes={})
            return {name: ([result()], summary) for name in arms}

    door = load()
    settings = DoorSettings(loads=(1.3,), seconds=4.0, repeats=1, arms=(STRONG, PRODUCT), caps=(4, 8), worth_loads=(), capacity_rps=1.0)
    runs = Recorded(settings, door, settings.engines, tmp_path, told.append)
    await Measurement(settings, door, runs, SystemClock(), told.append).run()
    assert started == {"cap-4": capped(4, 4.1), "cap-8": capped(8, 4.1), STRONG: capped(4, 4.1), PRODUCT: arm_of(PRODUCT)}


def test_wrong_starts_are_the_product_with_one_setting(tmp_path):
    path = tmp_path / "start.yaml"
    found = []
    for name in WRONG_STARTS:
        path.write_bytes(orjson.dumps(dict(arm_of(name).config)))
        scheduler = load_config(str(path), {}).scheduler
        found.append((scheduler.policy, scheduler.n_run))
    usual = SchedulerConfig()
    assert found == [("fcfs", usual.n_run), ("sjf", usual.n_run), (usual.policy, 4)]


def document():
    found = by_load(results([True] * 20 + [False] * 20))
    ours = found[0.5][PRODUCT]
    worth = [{0.5: {PRODUCT: ours} | {without(agent): results([True] * 40)}} for agent in AGENT_NAMES]
    goals = [{**{f: getattr(one, f) for f in one.__struct_fields__}, "verdict": one.verdict} for one in outcomes(found)]
    return {
        "capacity_rps": 7.0,
        "stretch": 1.0,
        "summary": {"loads": loads_summary(found), "goals": goals, "worth": worth_summary(worth)},
        "tuning": [{"load": 0.5, "sent": 40, "good": {"12": 30, "24": 35}}],
        "runs": [{"load": 0.5, "run": 1, "good": {PASS: 40, PLAIN: 40, PRODUCT: 20}}],
        "left_out": ["load 0.5, run 2: all"],
    }


def test_the_page_says_what_came_of_every_cell_and_of_every_agent():
    text = body(document())
    assert "| chat-1, capped, declared | 40 | 40 | 40 | 20 | 0.500 ± " in text
    assert "| statera | 0.5 | 20 | 40 | 0.500" in text
    assert "| 0.5 | no-agents | 20 | 40 | 0.500 ± 0.219 | 20:40 |" in text
    assert "| 0.5 | 40 | 30 with 12, 35 with 24 |" in text
    assert "Left out for want of time: load 0.5, run 2: all." in text


@pytest.mark.parametrize(
    ("value", "half", "good", "words"),
    [
        (1.0, 0.0, 5, "nothing that shows"),
        (1.1, 0.2, 5, "nothing that shows"),
        (1.3, 0.2, 5, "helps"),
        (0.5, 0.2, 5, "harms"),
        (None, 0.0, 5, "nothing is good without it"),
    ],
)
def test_an_agent_s_worth_in_words(value, half, good, words):
    assert worth_words({"value": value, "half": half, "good": good}) == words


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_small_measurement_on_real_processes(tmp_path):
    settings = DoorSettings(
        engines=("sim",), forms=("chat-1", "not-streamed"), loads=(0.5,), seconds=4.0, repeats=1, arms=(*ARMS, STRONG, PAPER),
        caps=(4, 8), worth_loads=(), warmup_s=1.0,
        cap=30, max_prompt=100, max_output=40, ramp=(1.0, 4.0), ramp_s=6.0, drain_s=20.0,
    )  # fmt: skip
    questions = read_questions(None, max_prompt=settings.max_prompt, max_output=settings.max_output)
    door = DoorLoad(settings, questions, load_mixture()[1])
    told: list[str] = []
    runs = Runs(settings, door, settings.engines, tmp_path, told.append)
    kept: list[dict[str, Any]] = []
    found = await Measurement(settings, door, runs, SystemClock(), told.append, keep=kept.append).run()
    assert kept == [found]
    assert 1.0 < found["capacity_rps"] < 8.0
    (one,) = found["summary"]["loads"]
    assert list(one["arms"]) == [*ARMS, STRONG, PAPER]
    assert set(one["rivals"]) == {PASS, PLAIN, STRONG, PAPER}
    assert set(found["tuning"][0]["good"]) == {"4", "8"}
    sent = {arm["sent"] for arm in one["arms"].values()}
    assert len(sent) == 1
    assert sent.pop() > 0
    assert one["arms"][PASS]["good"] == one["arms"][PASS]["sent"]
    assert {(cell["form"], cell["capped"]) for cell in one["cells"]} <= {(f, c) for f in settings.forms for c in (True, False)}
    assert found["left_out"] == []


def test_a_cell_is_read_off_a_result():
    assert cell_of(result(kind="tools", capped=False)) == ("tools", False, True)
