"""qos: change points are found, placed and measured, and seldom where there is none."""

import numpy as np
import pytest
from control_kit import completion, snapshot
from scipy.special import ndtri, stdtr  # type: ignore[import-untyped]  # it ships no types
from typing_kit import known

from hmas.agents.qos.changes import CLIP, LIMIT, SLACK, Block, Cusum, MixScorer, Reference, Watch, standard_normal
from hmas.agents.qos.counters import TASKS as KINDS
from hmas.agents.qos.model import QosModel
from hmas.agents.qos.workload_watch import ARRIVALS, CHANGES_MAX, OUTPUTS, PROMPTS, TASKS, Lengths, WorkloadWatch
from hmas.controller.core.messages import LongView
from hmas.controller.core.types import TaskType

BLOCK_S = 5.0


def lengths(start_s: float, tokens: np.ndarray) -> Lengths:
    return Lengths(start_s, len(tokens), int(tokens.sum()), float(np.log(tokens).sum()))


def feed(watch: WorkloadWatch, rng, first: int, blocks: int, *, rate=10.0, mu=6.0, sigma=1.2, mix=(0.7, 0.3)) -> list:
    found: list = []
    for number in range(first, first + blocks):
        start_s, n = number * BLOCK_S, int(rng.poisson(rate * BLOCK_S))
        tokens = np.ceil(np.exp(rng.normal(mu, sigma, n)))
        watch.arrivals(start_s, n, start_s + BLOCK_S)
        watch.lengths(PROMPTS, lengths(start_s, tokens), start_s + BLOCK_S)
        watch.lengths(OUTPUTS, lengths(start_s, tokens), start_s + BLOCK_S)
        counts = rng.multinomial(n, [*mix, *([0.0] * (len(KINDS) - len(mix)))])
        watch.tasks(start_s, counts, start_s + BLOCK_S)
        found += [change for change in watch.since(start_s + BLOCK_S) if change not in found]
    return found


def test_false_alarms_are_as_rare_as_stated():
    rng, alarms, blocks = np.random.default_rng(11), 0, 100_000
    reference, up, down = Reference(1e-9), Cusum(), Cusum()
    for score in rng.normal(3.0, 7.0, blocks).tolist():
        unusual = reference.judge(score)
        if unusual is not None and (up.add(unusual) | down.add(-unusual)):
            alarms += 1
            reference, up, down = Reference(1e-9), Cusum(), Cusum()
    # Stated: one in 9,500 blocks, so 10.5 are expected at most; more than 20 would come by chance once in 400 times.
    assert alarms <= 20


@pytest.mark.parametrize("rate", [1.0, 10.0, 100.0])
def test_a_steady_workload_is_left_in_peace(rate):
    found = feed(WorkloadWatch(BLOCK_S, KINDS), np.random.default_rng(5), 0, 4_000, rate=rate)
    # Four watches, 4,000 blocks: 1.5 are expected at most.
    assert len(found) <= 5


@pytest.mark.parametrize(
    ("change", "figure", "ratio"),
    [
        ({"rate": 15.0}, ARRIVALS, 1.5),
        ({"rate": 6.0}, ARRIVALS, 0.6),
        ({"mu": 6.7}, PROMPTS, np.exp(0.7)),
        ({"mu": 5.3}, OUTPUTS, np.exp(-0.7)),
    ],
)
def test_a_change_is_found_placed_and_measured(change, figure, ratio):
    watch, rng = WorkloadWatch(BLOCK_S, KINDS), np.random.default_rng(3)
    assert feed(watch, rng, 0, 60) == []
    found = [one for one in feed(watch, rng, 60, 20, **change) if one.figure == figure]
    (one,) = found
    assert one.at_s == pytest.approx(60 * BLOCK_S, abs=2 * BLOCK_S)
    assert one.found_s <= 60 * BLOCK_S + 12 * BLOCK_S
    assert one.after / one.before == pytest.approx(ratio, rel=0.25)
    assert one.detail == ""


def test_a_change_of_the_mix_names_the_kind_that_moved_most():
    watch, rng = WorkloadWatch(BLOCK_S, KINDS), np.random.default_rng(3)
    assert feed(watch, rng, 0, 60) == []
    (one,) = feed(watch, rng, 60, 20, mix=(0.5, 0.1, 0.4))
    assert (one.figure, one.before) == (TASKS, 0.0)
    assert one.after == pytest.approx(0.4, abs=0.1)
    assert one.detail.startswith(f"{KINDS[2]} 0% -> ")
    assert one.at_s == pytest.approx(60 * BLOCK_S, abs=2 * BLOCK_S)


def test_after_a_change_the_new_level_is_the_one_that_counts():
    watch, rng = WorkloadWatch(BLOCK_S, KINDS), np.random.default_rng(8)
    feed(watch, rng, 0, 60)
    feed(watch, rng, 60, 60, rate=20.0)
    back = feed(watch, rng, 120, 30, rate=10.0)
    changes = [one for one in watch.since(0.0) if one.figure == ARRIVALS]
    assert [round(one.after / 10.0) for one in changes] == [2, 1]
    assert changes[-1] in back
    assert changes[-1].before == pytest.approx(20.0, rel=0.1)


def test_one_outlier_is_no_change():
    watch = Watch("figure", 1e-9)
    rng = np.random.default_rng(2)
    for number in range(60):
        score = 1000.0 if number == 40 else float(rng.normal())
        assert watch.offer(Block(number * BLOCK_S, score, 1.0, score), number * BLOCK_S) is None
    assert CLIP - SLACK < LIMIT / 2, "so three blocks are needed at least"


def test_figures_that_never_vary_are_no_division_by_nought():
    reference = Reference(1e-9)
    assert [reference.judge(5.0) for _ in range(20)][-1] == 0.0
    assert reference.judge(6.0) == CLIP
    assert reference.judge(4.0) is not None


def test_few_requests_are_joined_until_they_say_something():
    watch, rng = WorkloadWatch(BLOCK_S, KINDS), np.random.default_rng(4)
    feed(watch, rng, 0, 600, rate=0.3)
    found = feed(watch, rng, 600, 300, rate=0.3, mu=8.0)
    assert {PROMPTS, OUTPUTS} <= {one.figure for one in found}


def test_the_list_of_changes_is_bounded():
    watch, rng = WorkloadWatch(BLOCK_S, KINDS), np.random.default_rng(6)
    for turn in range(40):
        feed(watch, rng, 15 * turn, 15, rate=(10.0, 40.0)[turn % 2], mu=(5.0, 8.0)[turn % 2])
    assert len(watch.since(float("-inf"))) == CHANGES_MAX


def test_the_mix_is_measured_alike_however_many_requests_stand_behind_it():
    rng, mix = np.random.default_rng(1), [0.4, 0.3, 0.2, 0.1]
    means = []
    for number in (20, 2_000):
        scorer = MixScorer()
        scores = [scorer(Block(0.0, 0.0, 1.0, counts=rng.multinomial(number, mix))) for _ in range(400)]
        assert scores[0] is None
        means.append(np.mean([known(score) for score in scores[1:]]))
    # With a handful of requests of a kind, roots of counts lie a little wider.
    assert means[0] == pytest.approx(means[1], rel=0.15)


def longs_of(
    model: QosModel, seconds: int, *, from_s: float, rate_of, tokens_of, task_of=lambda _: TaskType.QA, arrived=0
) -> list[LongView]:
    rng, views = np.random.default_rng(9), []
    for step in range(seconds * 10):
        now_s = from_s + step / 10
        for _ in range(rng.poisson(rate_of(now_s) / 10)):
            arrived += 1
            model.complete(
                completion(arrived, now_s, prompt_tokens=int(np.ceil(np.exp(rng.normal(*tokens_of(now_s))))), task_type=task_of(now_s)),
                now_s,
            )
        views += [v for v in model.observe(snapshot(now_s, arrived=arrived, ended=arrived), now_s) if isinstance(v, LongView)]
    return views


def test_the_long_view_tells_what_changed_when_and_by_how_much_and_forgets_it_a_window_later():
    turn_s = 1300.0

    views = longs_of(
        QosModel(), 420, from_s=1000.0,
        rate_of=lambda t: 10.0 if t < turn_s else 20.0,
        tokens_of=lambda t: (5.0, 1.0) if t < turn_s else (7.0, 1.0),
        task_of=lambda t: TaskType.QA if t < turn_s else TaskType.SUMMARIZATION,
    )  # fmt: skip
    assert all(view.changes == [] for view in views if view.sent_s < turn_s)
    changes = {one.figure: one for view in views for one in view.changes}
    assert set(changes) == {ARRIVALS, PROMPTS, TASKS}
    for one in changes.values():
        assert one.at_s == pytest.approx(turn_s, abs=BLOCK_S)
        assert one.found_s <= turn_s + 30.0
    assert changes[ARRIVALS].after / changes[ARRIVALS].before == pytest.approx(2.0, rel=0.2)
    assert changes[PROMPTS].after / changes[PROMPTS].before == pytest.approx(np.exp(2.0), rel=0.25)
    assert changes[TASKS].after == pytest.approx(1.0, abs=0.05)
    assert views[-1].changes == []


def test_more_requests_that_nobody_was_asked_about_are_no_change_of_the_mix():
    """Where the gateway asks about five requests a second, the share whose type is unknown grows as their rate doubles."""
    turn_s, rng = 1300.0, np.random.default_rng(2)

    def task_of(now_s: float) -> TaskType:
        known = rng.random() < (0.5 if now_s < turn_s else 0.25)
        return TaskType.UNKNOWN if not known else TaskType.QA if rng.random() < 0.7 else TaskType.DIALOGUE

    views = longs_of(
        QosModel(), 420, from_s=1000.0,
        rate_of=lambda t: 10.0 if t < turn_s else 20.0, tokens_of=lambda _: (5.0, 1.0), task_of=task_of,
    )  # fmt: skip
    assert {one.figure for view in views for one in view.changes} == {ARRIVALS}
    assert all(view.by_task == pytest.approx({"QA": 0.7, "Dialogue": 0.3}, abs=0.2) for view in views if view.sent_s > 1060.0)


def test_a_gateway_that_starts_anew_is_no_change_of_the_workload():
    model = QosModel()
    steady = {"rate_of": lambda _: 10.0, "tokens_of": lambda _: (5.0, 1.0)}
    longs_of(model, 120, from_s=1000.0, **steady)
    rng = np.random.default_rng(1)
    views, arrived = [], 0
    for step in range(1200):
        now_s = 1150.0 + step / 10
        arrived += int(rng.poisson(1.0))
        view = snapshot(now_s, arrived=arrived, ended=arrived, gateway="another")
        views += [v for v in model.observe(view, now_s) if isinstance(v, LongView)]
    assert all(view.changes == [] for view in views)
    assert views[-1].telemetry.restarts == 1
    assert views[2].arrival_rps == pytest.approx(10.0, rel=0.3)


def test_a_silence_of_telemetry_is_no_change_of_the_workload():
    """Snapshots stop for two minutes and the same gateway's counters go on: what came meanwhile came over two minutes."""
    rng, model, views, arrived = np.random.default_rng(1), QosModel(), [], 0
    for step in range(4200):
        now_s = 1000.0 + step / 10
        arrived += int(rng.poisson(1.0))
        if not 1500 <= step < 2700:
            views += [v for v in model.observe(snapshot(now_s, arrived=arrived, ended=arrived), now_s) if isinstance(v, LongView)]
    assert all(view.changes == [] for view in views)
    assert all(view.arrival_rps == pytest.approx(10.0, rel=0.3) for view in views[3:])
    assert all(view.arrival_dispersion < 2.5 for view in views), "all of it in one sub-window would make it 15"
    assert views[-1].telemetry.restarts == 0


def test_a_t_becomes_the_normal_figure_of_the_same_probability():
    for freedom in (7.0, 20.0, 239.0):
        for t in np.linspace(-4.0, 4.0, 33).tolist():
            assert standard_normal(t, freedom) == pytest.approx(float(ndtri(stdtr(freedom, t))), abs=0.01)
